"""What is observed of a cluster in the sandbox while `sandbox.scenario.lifecycle` runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import Obj, being_deleted, labels_of
from caphv.api.resources import HARVESTER_CLUSTERS, HARVESTER_MACHINES, clusters, machines
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from sandbox import cluster
from sandbox.capi.caches import of_core
from sandbox.harvester import kinds


@dataclass(frozen=True)
class MachineRow:
    """A machine for display; empty fields are not known yet."""

    name: str
    control_plane: bool
    version: str
    address: str
    zone: str
    host: str
    state: str


@dataclass
class Step:
    """A step of the scenario; `seconds` is set when it has ended, `outcome` describes the result."""

    title: str
    started: float = field(default_factory=time.monotonic)
    seconds: float | None = None
    outcome: str = ""
    failed: bool = False


class View:
    """The current state for display: informers on both API servers and the steps so far."""

    def __init__(
        self, management: ApiClient, harvester: ApiClient, spec: cluster.ClusterSpec, core: str = "v1beta2"
    ) -> None:
        namespace, target_namespace = spec.namespace, spec.target_namespace
        self.clusters = of_core(management, clusters(core), namespace=namespace)
        self.harvester_clusters = Informer(management, HARVESTER_CLUSTERS, namespace=namespace)
        self.machines = of_core(management, machines(core), namespace=namespace)
        self.harvester_machines = Informer(management, HARVESTER_MACHINES, namespace=namespace)
        self.vms = Informer(harvester, kinds.VIRTUAL_MACHINES, namespace=target_namespace)
        self.instances = Informer(harvester, kinds.INSTANCES, namespace=target_namespace)
        self.pools = Informer(harvester, kinds.IP_POOLS)
        self.steps: list[Step] = []
        self._namespace, self._target_namespace = namespace, target_namespace

    @property
    def informers(self) -> list[Informer]:
        """All informers."""
        return [
            self.clusters,
            self.harvester_clusters,
            self.machines,
            self.harvester_machines,
            self.vms,
            self.instances,
            self.pools,
        ]

    def harvester_cluster(self) -> Obj | None:
        """The HarvesterCluster; None if missing."""
        return next(iter(self.harvester_clusters.store), None)

    def endpoint(self) -> str:
        """URL of the workload API; empty until the control plane has an endpoint."""
        endpoint = (self.harvester_cluster() or {"spec": {}})["spec"].get("controlPlaneEndpoint") or {}
        return f"https://{endpoint['host']}:{endpoint.get('port')}" if endpoint.get("host") else ""

    def running(self) -> list[Obj]:
        """Machines in phase Running with a Node."""
        return [
            machine
            for machine in self.machines.store
            if (machine.get("status") or {}).get("phase") == "Running"
            and machine["status"].get("nodeRef")
            and not being_deleted(machine)
        ]

    def workers(self) -> list[Obj]:
        """Machines of the MachineDeployment that are not being deleted, by name."""
        return self._machines(control_plane=False)

    def control_planes(self) -> list[Obj]:
        """Machines of the control plane that are not being deleted, by name."""
        return self._machines(control_plane=True)

    def zones(self) -> set[str]:
        """Failure domains of the machines."""
        domains = {(m.get("status") or {}).get("failureDomain") for m in self.harvester_machines.store}
        return {domain for domain in domains if domain}

    def pools_used(self) -> set[str]:
        """IPPools of the machines' addresses."""
        pools = {(m.get("status") or {}).get("allocatedPoolRef") for m in self.harvester_machines.store}
        return {pool for pool in pools if pool}

    def machine_rows(self) -> list[MachineRow]:
        """All machines by name."""
        return [
            self._machine_row(machine)
            for machine in sorted(self.machines.store, key=lambda m: str(m["metadata"]["name"]))
        ]

    def problems(self) -> str:
        """Messages of objects that are not ready."""
        objects = [*self.harvester_clusters.store, *self.harvester_machines.store]
        messages = [
            f"{obj['metadata']['name']}: {condition['message']}"
            for obj in objects
            for condition in (obj.get("status") or {}).get("conditions") or ()
            if condition["type"] == "Ready" and condition["status"] != "True"
        ]
        return "; ".join(messages or map(self._progress, self.machines.store)) or "no objects found"

    def _progress(self, machine: Obj) -> str:
        """How far a machine is: its phase, and its HarvesterMachine and VM until it runs."""
        name, phase = machine["metadata"]["name"], (machine.get("status") or {}).get("phase")
        if phase == "Running":
            return f"{name} is Running"
        _, infrastructure = infrastructure_ref(machine)
        own = self.harvester_machines.get(self._namespace, infrastructure)
        vm = self.instances.get(self._target_namespace, infrastructure)
        conditions = ((own or {}).get("status") or {}).get("conditions") or ()
        states = ", ".join(f"{each['type']} {each['status']}" for each in conditions) or "no conditions"
        found = f"HarvesterMachine with {states}" if own else "no HarvesterMachine"
        started = (vm.get("status") or {}).get("phase") if vm else "no instance"
        return f"{name} is {phase} ({found}; VM: {started})"

    def _machines(self, *, control_plane: bool) -> list[Obj]:
        found = [
            machine
            for machine in self.machines.store
            if (cluster.CONTROL_PLANE_LABEL in labels_of(machine)) is control_plane and not being_deleted(machine)
        ]
        return sorted(found, key=lambda machine: str(machine["metadata"]["name"]))

    def _machine_row(self, machine: Obj) -> MachineRow:
        name = machine["metadata"]["name"]
        _, infrastructure = infrastructure_ref(machine)
        own = self.harvester_machines.get(self._namespace, infrastructure) or {}
        vmi = self.instances.get(self._target_namespace, infrastructure) or {}
        status = own.get("status") or {}
        state = str((machine.get("status") or {}).get("phase") or "Pending")
        provisioning = [c for c in status.get("conditions") or () if c["type"] == "VMProvisioningReady"]
        if state != "Running" and provisioning and provisioning[0]["status"] != "True":
            state = f"{state}: {provisioning[0]['message']}"
        elif state == "Running" and status and not status.get("ready"):
            state = next((c["message"] for c in status.get("conditions") or () if c["type"] == "Ready"), state)
        return MachineRow(
            name,
            cluster.CONTROL_PLANE_LABEL in labels_of(machine),
            str(machine["spec"].get("version") or ""),
            str(status.get("allocatedIPAddress") or ""),
            str(status.get("failureDomain") or ""),
            str((vmi.get("status") or {}).get("nodeName") or ""),
            state,
        )
