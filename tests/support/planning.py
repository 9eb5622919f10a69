"""Cluster `team/shop` of a shipped class on a management cluster in memory, and plans of its changes."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from operations.capacity.machinechanges import Action
from operations.change.plan.model import Plan
from operations.change.plan.planning import plan_of_manifests
from tests.support.clusterclasses import objects as class_objects
from tests.support.memoryserver import MemoryServer

CORE = "cluster.x-k8s.io/v1beta2"
CONTROL_PLANE = "controlplane.cluster.x-k8s.io/v1beta2"
INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io/v1beta1"
SERVED = [
    *((CORE, kind) for kind in ("Cluster", "ClusterClass", "Machine", "MachineDeployment")),
    (CONTROL_PLANE, "RKE2ControlPlane"),
    *((INFRASTRUCTURE, f"Harvester{kind}") for kind in ("Cluster", "Machine", "MachineTemplate")),
]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LABEL, TOPOLOGY = "cluster.x-k8s.io/cluster-name", "topology.cluster.x-k8s.io/deployment-name"


def topology_cluster(workers: int = 2, **variables: Any) -> Obj:
    values = {
        "targetNamespace": "vms",
        "image": "default/sles-15",
        "sshKeyPair": "default/key",
        "vmNetworks": ["default/production"],
        "ipPoolRef": "machines",
        **variables,
    }
    pools = [{"class": "default-worker", "name": name, "replicas": workers} for name in ("md-0", "md-1")]
    topology = {
        "classRef": {"name": "harvester-rke2", "namespace": "classes"},
        "version": "v1.36.2+rke2r1",
        "controlPlane": {"replicas": 1},
        "workers": {"machineDeployments": pools},
        "variables": [{"name": name, "value": value} for name, value in values.items()],
    }
    return {"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "shop", "namespace": "team"}} | {
        "spec": {"topology": topology}
    }


def labelled(version: str, kind: str, name: str, labels: dict[str, str], **fields: Any) -> Obj:
    metadata = {"name": name, "namespace": "team", "labels": {LABEL: "shop", **labels}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def live(*, up_to_date: int = 2, workers: int = 2, **variables: Any) -> list[Obj]:
    """Cluster `team/shop` as it runs, with the HarvesterCluster, deployments and machines that the core made of it."""
    cluster = topology_cluster(**variables)
    cluster["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(topology_cluster())}
    cluster["spec"]["infrastructureRef"] = {
        "apiGroup": INFRASTRUCTURE.partition("/")[0],
        "kind": "HarvesterCluster",
        "name": "shop-x",
    }
    owned: Obj = {"identitySecret": {"namespace": "team", "name": "identity"}, "targetNamespace": "vms"}
    owned["controlPlaneEndpoint"] = {"host": "10.0.0.9", "port": 6443}
    objs = [cluster, labelled(INFRASTRUCTURE, "HarvesterCluster", "shop-x", {}, spec=owned)]
    for name in ("md-0", "md-1"):
        status = {"replicas": workers, "upToDateReplicas": up_to_date, "availableReplicas": workers}
        spec = {"clusterName": "shop", "replicas": workers}
        deployment = f"shop-{name}-x"
        labels = {TOPOLOGY: name}
        objs.append(labelled(CORE, "MachineDeployment", deployment, labels, spec=spec, status=status))
        of = {"cluster.x-k8s.io/deployment-name": deployment}
        objs += [labelled(CORE, "Machine", f"{deployment}-{number}", of, spec={}) for number in range(workers)]
    return [*objs, labelled(CORE, "Machine", "shop-cp-0", {"cluster.x-k8s.io/control-plane": ""}, spec={})]


def classes() -> list[Obj]:
    objs = copy.deepcopy(class_objects("harvester-rke2"))
    for obj in objs:
        obj["metadata"]["namespace"] = "classes"
    return objs


def server(*objs: Obj) -> MemoryServer:
    return MemoryServer(*(objs or live()), *classes(), served=SERVED)


async def planned(found: MemoryServer, *manifests: Obj, harvester: bool = False) -> Plan:
    plan = await plan_of_manifests(cast("ApiClient", found), manifests, "team", with_harvester=harvester)
    assert found.requests == [], "a plan changes nothing"
    return plan


def machines(plan: Plan) -> dict[str, tuple[int, int, int]]:
    """Before, after and replaced, by pool."""
    (cluster,) = plan.clusters
    return {pool.pool: (pool.before, pool.after, pool.replaced) for pool in cluster.pools}


def actions(plan: Plan) -> dict[str, Action]:
    return {each.object: each.action for each in plan.objects}
