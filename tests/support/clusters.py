"""Objects of clusters as a management cluster holds them, for tests of what is made of them."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from caphv.api.object import Obj
from operations.read.objects import ManagementObjects

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
VERSION = "v1.36.2+rke2r1"
CLUSTER_LABEL = "cluster.x-k8s.io/cluster-name"


def ago(**delta: float) -> str:
    """A time before `NOW` as the API server writes it."""
    return (NOW - timedelta(**delta)).isoformat().replace("+00:00", "Z")


def condition(kind: str, status: str, reason: str = "", message: str = "", **delta: float) -> Obj:
    """A condition that changed some time ago, by default a minute."""
    since = ago(**(delta or {"minutes": 1}))
    return {"type": kind, "status": status, "reason": reason or kind, "message": message, "lastTransitionTime": since}


def metadata(name: str, **more: Any) -> Obj:
    """Metadata in namespace `team`."""
    return {"name": name, "namespace": "team", "uid": f"uid-{name}", "creationTimestamp": ago(days=3), **more}


def token(**delta: float) -> str:
    """A token that ends some time after `NOW`."""
    claims = json.dumps({"exp": (NOW + timedelta(**delta)).timestamp()}).encode()
    return f"a.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c"


class Builder:
    """A cluster with control plane machines and workers, all of it healthy until a test changes it.

    Machines are called `cp-1`, `worker-1` and so on, behind a prefix.
    """

    def __init__(self, name: str = "shop", workers: int = 2, prefix: str = "", *, control_planes: int = 1) -> None:
        self.name = name
        labels = {CLUSTER_LABEL: name}
        group = "infrastructure.cluster.x-k8s.io"
        self.cluster: Obj = {
            "kind": "Cluster",
            "metadata": metadata(name),
            "spec": {
                "controlPlaneEndpoint": {"host": "10.0.0.9", "port": 6443},
                "controlPlaneRef": {
                    "apiGroup": "controlplane.cluster.x-k8s.io",
                    "kind": "RKE2ControlPlane",
                    "name": name,
                },
                "infrastructureRef": {"apiGroup": group, "kind": "HarvesterCluster", "name": f"{name}-x"},
                "topology": {"classRef": {"name": "harvester-rke2"}, "version": VERSION},
            },
            "status": {
                "phase": "Provisioned",
                "conditions": [condition("Available", "True")],
                "controlPlane": counts(control_planes),
                "workers": counts(workers),
            },
        }
        self.harvester_cluster: Obj = {
            "kind": "HarvesterCluster",
            "metadata": metadata(f"{name}-x", labels=labels),
            "spec": {
                "server": "https://harvester:6443",
                "targetNamespace": "vms",
                "identitySecret": {"namespace": "team", "name": "identity"},
                "loadBalancerConfig": {"ipamType": "dhcp"},
            },
            "status": {"conditions": [condition("Ready", "True"), condition("HarvesterConnectionReady", "True")]},
        }
        self.control_plane: Obj = {
            "kind": "RKE2ControlPlane",
            "metadata": metadata(name, labels=labels),
            "spec": {"replicas": control_planes, "version": VERSION},
            "status": dict.fromkeys(("availableReplicas", "upToDateReplicas", "replicas"), control_planes),
        }
        self.deployment: Obj = {
            "kind": "MachineDeployment",
            "metadata": metadata(f"{name}-md-0", labels=labels),
            "spec": {"replicas": workers, "template": {"spec": {"version": VERSION}}},
            "status": {"availableReplicas": workers, "upToDateReplicas": workers},
        }
        names = [f"{prefix}cp-{n}" for n in range(1, control_planes + 1)]
        names += [f"{prefix}worker-{n}" for n in range(1, workers + 1)]
        self.machines = {each: self._machine(each) for each in names}
        self.harvester_machines = {each: self._harvester_machine(each) for each in names}

    def objects(self) -> ManagementObjects:
        """All of it, as it is read."""
        return ManagementObjects(
            server="https://management:6443",
            uid="0a1b2c3d-0000-0000-0000-000000000000",
            clusters=[self.cluster],
            machines=[*self.machines.values()],
            machine_deployments=[self.deployment],
            control_planes=[self.control_plane],
            harvester_clusters=[self.harvester_cluster],
            harvester_machines=[*self.harvester_machines.values()],
        )

    def break_machine(self, name: str, reason: str, message: str, **delta: float) -> None:
        """Have a HarvesterMachine report that it is not ready."""
        self.harvester_machines[name]["status"]["conditions"] = [condition("Ready", "False", reason, message, **delta)]

    def _machine(self, name: str) -> Obj:
        labels = {CLUSTER_LABEL: self.name}
        if "cp-" in name:
            labels |= {"cluster.x-k8s.io/control-plane": "", "cluster.x-k8s.io/control-plane-name": self.name}
        else:
            labels["cluster.x-k8s.io/deployment-name"] = f"{self.name}-md-0"
        return {
            "kind": "Machine",
            "metadata": metadata(name, labels=labels),
            "spec": {
                "version": VERSION,
                "providerID": f"harvester://{name}",
                "infrastructureRef": {"kind": "HarvesterMachine", "name": name},
            },
            "status": {
                "phase": "Running",
                "nodeRef": {"name": name},
                "nodeInfo": {"kubeletVersion": VERSION},
                "conditions": [condition("Ready", "True"), condition("NodeReady", "True")],
            },
        }

    def _harvester_machine(self, name: str) -> Obj:
        number = sum(map(ord, name)) % 200
        return {
            "kind": "HarvesterMachine",
            "metadata": metadata(name, labels={CLUSTER_LABEL: self.name}),
            "spec": {"cpu": 2, "memory": "4Gi"},
            "status": {
                "conditions": [condition("Ready", "True"), condition("VMUpToDate", "True")],
                "virtualMachine": {"host": "harvester-1"},
                "failureDomain": "zone-1",
                "addresses": [{"type": "ExternalIP", "address": f"10.0.0.{number}"}],
                "allocatedIPAddress": f"10.0.0.{number}",
                "allocatedPoolRef": "machines",
            },
        }


def counts(number: int) -> Obj:
    """Replicas of a part in the status of a Cluster, all as they should be."""
    names = ("desiredReplicas", "replicas", "availableReplicas", "upToDateReplicas")
    return dict.fromkeys(names, number)
