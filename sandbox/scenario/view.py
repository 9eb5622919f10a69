"""The observed state of a cluster in the sandbox while `sandbox.scenario.lifecycle` runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import Obj, at, being_deleted, dict_at, labels_of, list_at, text_at
from caphv.api.resources import HARVESTER_CLUSTERS, HARVESTER_MACHINES, clusters, machines
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from sandbox import cluster
from sandbox.capi.caches import core_informer
from sandbox.harvester import kinds


@dataclass(frozen=True)
class MachineRow:
    """A machine for display. A field is empty until its value is observed."""

    name: str
    control_plane: bool
    version: str
    address: str
    zone: str
    host: str
    state: str


@dataclass
class Step:
    """A step of the scenario. `seconds` is set at its end, and `outcome` describes the result."""

    title: str
    started: float = field(default_factory=time.monotonic)
    seconds: float | None = None
    outcome: str = ""
    failed: bool = False


class View:
    """The current state for display, with informers on both API servers and the steps so far."""

    def __init__(
        self,
        management: ApiClient,
        harvester: ApiClient,
        spec: cluster.ClusterSpec,
        core: str = "v1beta2",
    ) -> None:
        namespace = spec.namespace
        target_namespace = spec.target_namespace
        self.clusters = core_informer(management, clusters(core), namespace=namespace)
        self.harvester_clusters = Informer(management, HARVESTER_CLUSTERS, namespace=namespace)
        self.machines = core_informer(management, machines(core), namespace=namespace)
        self.harvester_machines = Informer(management, HARVESTER_MACHINES, namespace=namespace)
        self.vms = Informer(harvester, kinds.VIRTUAL_MACHINES, namespace=target_namespace)
        self.instances = Informer(harvester, kinds.INSTANCES, namespace=target_namespace)
        # IPPools have no namespace.
        self.pools = Informer(harvester, kinds.IP_POOLS)
        self.steps: list[Step] = []
        self._namespace = namespace
        self._target_namespace = target_namespace

    @property
    def informers(self) -> list[Informer]:
        """Return all informers."""
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
        """Return the HarvesterCluster; None if missing."""
        harvester_clusters = list(self.harvester_clusters.store)
        return harvester_clusters[0] if harvester_clusters else None

    def endpoint(self) -> str:
        """Return the URL of the workload API; empty until the control plane has an endpoint."""
        endpoint = dict_at(self.harvester_cluster(), "spec", "controlPlaneEndpoint")
        return f"https://{endpoint['host']}:{endpoint.get('port')}" if endpoint.get("host") else ""

    def running(self) -> list[Obj]:
        """Return the machines in phase Running with a Node."""
        return [
            machine
            for machine in self.machines.store
            if at(machine, "status", "phase") == "Running"
            and at(machine, "status", "nodeRef")
            and not being_deleted(machine)
        ]

    def workers(self) -> list[Obj]:
        """Return the machines of the MachineDeployment that are not being deleted, by name."""
        return self._machines(control_plane=False)

    def control_planes(self) -> list[Obj]:
        """Return the machines of the control plane that are not being deleted, by name."""
        return self._machines(control_plane=True)

    def zones(self) -> set[str]:
        """Return the failure domains of the machines."""
        machines = self.harvester_machines.store
        return {at(machine, "status", "failureDomain") for machine in machines} - {None, ""}

    def used_pools(self) -> set[str]:
        """Return the IPPools of the machines' addresses."""
        machines = self.harvester_machines.store
        return {at(machine, "status", "allocatedPoolRef") for machine in machines} - {None, ""}

    def machine_rows(self) -> list[MachineRow]:
        """Return all machines, sorted by name."""
        return [
            self._machine_row(machine)
            for machine in sorted(self.machines.store, key=lambda m: str(m["metadata"]["name"]))
        ]

    def problems(self) -> str:
        """Return the messages of objects that are not ready, else the progress of all machines."""
        objects = [*self.harvester_clusters.store, *self.harvester_machines.store]
        messages = [
            f"{obj['metadata']['name']}: {condition['message']}"
            for obj in objects
            for condition in list_at(obj, "status", "conditions")
            if condition["type"] == "Ready" and condition["status"] != "True"
        ]
        return "; ".join(messages or map(self._progress, self.machines.store)) or "no objects found"

    def _progress(self, machine: Obj) -> str:
        """Describe the phase of a machine, and until it runs its HarvesterMachine and VM."""
        name = machine["metadata"]["name"]
        phase = at(machine, "status", "phase")
        if phase == "Running":
            return f"{name} is Running"

        _, infrastructure = infrastructure_ref(machine)
        harvester_machine = self.harvester_machines.get(self._namespace, infrastructure)
        instance = self.instances.get(self._target_namespace, infrastructure)

        conditions = list_at(harvester_machine, "status", "conditions")
        states = ", ".join(f"{item['type']} {item['status']}" for item in conditions)
        progress = f"HarvesterMachine with {states or 'no conditions'}"
        if not harvester_machine:
            progress = "no HarvesterMachine"
        vm_phase = at(instance, "status", "phase") if instance else "no instance"
        return f"{name} is {phase} ({progress}; VM: {vm_phase})"

    def _machines(self, *, control_plane: bool) -> list[Obj]:
        machines = [
            machine
            for machine in self.machines.store
            if (cluster.CONTROL_PLANE_LABEL in labels_of(machine)) is control_plane
            and not being_deleted(machine)
        ]
        return sorted(machines, key=lambda machine: str(machine["metadata"]["name"]))

    def _machine_row(self, machine: Obj) -> MachineRow:
        name = machine["metadata"]["name"]
        _, infrastructure = infrastructure_ref(machine)
        harvester_machine = self.harvester_machines.get(self._namespace, infrastructure)
        instance = self.instances.get(self._target_namespace, infrastructure)
        status = dict_at(harvester_machine, "status")

        # The core's phase, with the provider's reason as long as the machine does not work.
        conditions = {item["type"]: item for item in status.get("conditions") or ()}
        provisioning = conditions.get("VMProvisioningReady")
        state = str(at(machine, "status", "phase") or "Pending")
        if state != "Running" and provisioning and provisioning["status"] != "True":
            state = f"{state}: {provisioning['message']}"
        elif state == "Running" and status and not status.get("ready") and "Ready" in conditions:
            state = conditions["Ready"]["message"]

        return MachineRow(
            name=name,
            control_plane=cluster.CONTROL_PLANE_LABEL in labels_of(machine),
            version=str(machine["spec"].get("version") or ""),
            address=str(status.get("allocatedIPAddress") or ""),
            zone=str(status.get("failureDomain") or ""),
            host=text_at(instance, "status", "nodeName"),
            state=state,
        )
