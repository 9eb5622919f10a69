"""Stand-in for a control plane provider, which changes the Machines until they match the spec.

It is level-based, so it may be stopped anywhere. A machine consists of three objects with different
names. If only the first objects exist after a stop, the next reconcile creates the Machine that
refers to them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Set

from caphv.api.conditions import current_time
from caphv.api.object import (
    Key,
    Obj,
    annotations_of,
    being_deleted,
    key_of,
    list_at,
)
from caphv.api.resources import HARVESTER_MACHINE_TEMPLATES
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.errors import NotFound, Unreachable
from sandbox.capi import hooks, secrets, state, v1beta1
from sandbox.capi.bootstrap import endpoint_of, is_provisioned
from sandbox.capi.caches import Caches, cluster_of
from sandbox.capi.hooks import HookStep
from sandbox.capi.machineconditions import conditions_of
from sandbox.capi.plan import Create, Delete, Member, Step, Wait, next_step
from sandbox.capi.resources import (
    alive,
    condition,
    is_owned_by,
    is_paused,
    with_transition_times,
)
from sandbox.capi.status import Observation, k3s_status, rke2_status, v1beta1_status
from sandbox.capi.workload import Connection, Connections

log = logging.getLogger(__name__)


class ControlPlanes:
    """The controller for the control plane objects of one distribution."""

    def __init__(self, client: ApiClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches
        self._distribution = caches.distribution
        self._machines = caches.machines.resource
        self.controller = Controller(
            f"{self._distribution.name}-control-plane", self._reconcile, concurrency=4
        )
        self.connections = Connections(self.controller.enqueue)
        caches.enqueue_control_planes(
            self.controller.enqueue, caches.machines, caches.clusters, caches.harvester_machines
        )

    async def _reconcile(self, key: Key) -> None:
        control_plane = self._caches.control_planes.get(*key)
        if control_plane is None:
            await self.connections.forget(key)
            return

        owner = cluster_of(control_plane)
        cluster = self._caches.clusters.get(*owner) if owner else None
        if cluster is None or is_paused(cluster, control_plane):
            return
        machines = [
            machine
            for machine in self._caches.machines_of(key_of(cluster), control_plane=True)
            if is_owned_by(machine, control_plane)
        ]
        if being_deleted(control_plane):
            await self._reconcile_deletion(control_plane, cluster, machines)
            return

        await self._caches.add_finalizer(control_plane, self._distribution.finalizer)
        connection = await self._connect(control_plane, cluster)
        observation = self._observe(control_plane, cluster, machines, connection)

        # Execute the step last, because it may fail, and the status shows users the step.
        for machine in hooks.handled_machines(machines, self._distribution):
            await self._release(machine, len(machines), connection)
        for machine in machines:
            await self._set_conditions(machine, observation, connection)
        await self._report(observation)
        await self._execute(control_plane, cluster, observation.step)

    async def _connect(self, control_plane: Obj, cluster: Obj) -> Connection | None:
        """Create missing Secrets and connect to the workload cluster.

        Return None before the workload cluster can run.
        """
        endpoint = endpoint_of(cluster) if is_provisioned(cluster) else ""
        if endpoint:
            await secrets.ensure(
                self._client, self._caches, key_of(cluster), endpoint, control_plane
            )
        kubeconfig = secrets.kubeconfig(self._caches.secrets, key_of(cluster))
        if kubeconfig is None:
            return None
        return await self.connections.ensure(key_of(control_plane), kubeconfig)

    def _observe(
        self, control_plane: Obj, cluster: Obj, machines: list[Obj], connection: Connection | None
    ) -> Observation:
        """Return the state of a control plane, with its next step."""
        members = self._members(control_plane, cluster, machines, connection)
        has_endpoint = is_provisioned(cluster) and bool(endpoint_of(cluster))
        step: Step = Wait("the infrastructure of the cluster is not provisioned yet")
        if has_endpoint:
            step = next_step(
                members,
                control_plane["spec"].get("replicas", 1),
                self._distribution.max_surge(control_plane),
                state.failure_domains(cluster),
            )

        ready_nodes = connection.ready_control_plane_nodes() if connection else ()
        return Observation(
            control_plane,
            machines,
            members,
            step,
            provisioned=has_endpoint,
            joinable=bool(ready_nodes),
            ready_nodes=len(ready_nodes),
            addresses=registration_addresses(control_plane, cluster, machines),
        )

    def _members(
        self, control_plane: Obj, cluster: Obj, machines: list[Obj], connection: Connection | None
    ) -> list[Member]:
        namespace = cluster["metadata"]["namespace"]
        return [
            state.member_of(
                machine,
                self._caches.harvester_machines.get(namespace, state.infrastructure_name(machine)),
                self._caches.configs.get(namespace, state.config_name(machine)),
                control_plane,
                self._distribution,
                known=connection.known_nodes() if connection else (),
                ready=connection.ready_nodes() if connection else (),
            )
            for machine in machines
        ]

    # Steps

    async def _execute(self, control_plane: Obj, cluster: Obj, step: Step) -> None:
        match step:
            case Create(failure_domain):
                await self._create_machine(control_plane, key_of(cluster), failure_domain)
            case Delete(name):
                await self._delete_machine(key_of(cluster).namespace, name)

    async def _create_machine(self, control_plane: Obj, cluster: Key, failure_domain: str) -> None:
        template = await self._client.get(
            HARVESTER_MACHINE_TEMPLATES,
            self._distribution.template_name(control_plane),
            cluster.namespace,
        )

        # Create the Machine last, because it names the other objects.
        infrastructure, config = self._unused_objects(control_plane, cluster)
        if infrastructure is None:
            infrastructure = await self._caches.create(
                self._caches.harvester_machines,
                state.new_harvester_machine(control_plane, self._distribution, cluster, template),
            )
        if config is None:
            config = await self._caches.create(
                self._caches.configs, state.new_config(control_plane, self._distribution, cluster)
            )

        machine = state.new_machine(
            control_plane,
            self._distribution,
            cluster,
            (infrastructure, config),
            failure_domain,
            core=self._machines.version,
        )
        log.info(
            "creating machine %s of control plane %s", key_of(machine).name, key_of(control_plane)
        )
        await self._caches.create(self._caches.machines, machine)

    def _unused_objects(self, control_plane: Obj, cluster: Key) -> tuple[Obj | None, Obj | None]:
        """Return the HarvesterMachine and the bootstrap object of an interrupted creation, if any.

        No Machine refers to them.
        """
        machines = self._caches.machines_of(cluster, control_plane=True)
        infrastructure_names = {state.infrastructure_name(machine) for machine in machines}
        config_names = {state.config_name(machine) for machine in machines}

        harvester_machines = self._caches.harvester_machines_of(cluster)
        return (
            _find_unused(harvester_machines, control_plane, infrastructure_names),
            _find_unused(self._caches.configs.store, control_plane, config_names),
        )

    async def _delete_machine(self, namespace: str, name: str, *, with_hook: bool = True) -> None:
        """Delete a machine. K3s's provider sets its hook only at this time."""
        machine = self._caches.machines.get(namespace, name)
        if machine is None or being_deleted(machine):
            return

        log.info("deleting machine %s", name)
        with contextlib.suppress(NotFound):
            if with_hook and self._distribution.is_k3s:
                await self._annotate(
                    machine, {self._distribution.hook: self._distribution.hook_value}
                )
            await self._caches.delete(self._caches.machines, machine)

    # Deletion

    async def _release(self, machine: Obj, count: int, connection: Connection | None) -> None:
        """Remove the pre-terminate hook of a machine once the servers have removed its member."""
        if not hooks.is_awaited(machine, self._distribution):
            return

        node = state.node_name(machine)
        program = self._distribution.program
        removed = None
        if hooks.needs_node(machine, count):
            # Without a view of the Nodes, a missing Node would pass for a deleted one.
            if connection is None or not connection.nodes.current:
                raise Unreachable(
                    f"the workload cluster of machine {key_of(machine)} is not connected"
                )
            removed = connection.is_removed(node, program)

        match hooks.next_hook_step(machine, self._distribution, count, removed):
            case HookStep.REQUEST if connection is not None:
                await connection.request_removal(node, program)
            case HookStep.REMOVE:
                await self._remove_hook(machine)

    async def _remove_hook(self, machine: Obj) -> None:
        with contextlib.suppress(NotFound):
            await self._annotate(machine, hooks.removal_annotations(self._distribution))

    async def _annotate(self, machine: Obj, annotations: Mapping[str, str | None]) -> None:
        key = key_of(machine)
        patch = {"metadata": {"annotations": dict(annotations)}}
        answer = await self._client.patch(self._machines, key.name, key.namespace, patch)
        self._caches.machines.observe(answer)

    async def _reconcile_deletion(
        self, control_plane: Obj, cluster: Obj, machines: list[Obj]
    ) -> None:
        """Delete the machines after the workers, which cannot be drained without a control plane.

        Members of etcd no longer matter.
        """
        workers = self._caches.machines_of(key_of(cluster), control_plane=False)
        if not workers:
            for machine in machines:
                if self._distribution.hook in annotations_of(machine):
                    await self._remove_hook(machine)
                key = key_of(machine)
                await self._delete_machine(key.namespace, key.name, with_hook=False)

        members = self._members(control_plane, cluster, machines, None)
        await self._report(Observation(control_plane, machines, members, Wait()))

        if not workers and not machines:
            await self._caches.remove_finalizer(control_plane, self._distribution.finalizer)

    # Status

    async def _set_conditions(
        self, machine: Obj, observation: Observation, connection: Connection | None
    ) -> None:
        """Set those conditions of a Machine that its owner must set. K3s's provider sets none."""
        if self._distribution.is_k3s:
            return

        key = key_of(machine)
        member = next(member for member in observation.members if member.name == key.name)
        conditions = conditions_of(
            machine,
            current=member.current,
            initialized=observation.is_initialized and connection is not None,
            provisioning=not all(map(state.node_name, observation.machines)),
            nodes=connection.control_plane_nodes() if connection else (),
            ready=connection.ready_control_plane_nodes() if connection else (),
        )
        before = {entry["type"]: entry for entry in list_at(machine, "status", "conditions")}
        if all(_is_same(before.get(entry["type"]), entry) for entry in conditions):
            return

        # Name the resourceVersion, because the core writes the other conditions.
        kinds = {entry["type"] for entry in conditions}
        others = [entry for kind, entry in before.items() if kind not in kinds]
        patch = {
            "metadata": {"resourceVersion": machine["metadata"]["resourceVersion"]},
            "status": v1beta1.conditions(
                [*others, *with_transition_times(machine, conditions)], self._machines.version
            ),
        }
        with contextlib.suppress(NotFound):
            answer = await self._client.patch(
                self._machines, key.name, key.namespace, patch, subresource="status"
            )
            self._caches.machines.observe(answer)

    def _status(self, observation: Observation) -> Obj:
        if self._distribution.is_k3s:
            return k3s_status(observation)
        if self._distribution.contract == "v1beta1":
            return v1beta1_status(observation)
        return rke2_status(observation)

    async def _report(self, observation: Observation) -> None:
        status = self._status(observation)
        step = observation.step
        if isinstance(step, Delete) and step.remediation:
            status["lastRemediation"] = {
                "machine": step.name,
                "retryCount": 0,
                "timestamp": current_time(),
            }

        with contextlib.suppress(NotFound):
            await self._caches.write_status(
                self._caches.control_planes, observation.control_plane, status
            )


def _find_unused(objects: Iterable[Obj], control_plane: Obj, used_names: Set[str]) -> Obj | None:
    """Return an object that a control plane owns and no longer uses, unless it is being deleted."""
    for obj in alive(objects):
        if is_owned_by(obj, control_plane) and key_of(obj).name not in used_names:
            return obj
    return None


def _is_same(before: Obj | None, condition: Obj) -> bool:
    """Return whether two conditions differ in nothing but their times."""
    fields = ("status", "reason", "message")
    return before is not None and all(before.get(name, "") == condition[name] for name in fields)


def registration_addresses(control_plane: Obj, cluster: Obj, machines: Iterable[Obj]) -> list[str]:
    """Return the hosts where nodes of RKE2 join, by `registrationMethod`.

    Only machines that are ready count.
    """
    method = control_plane["spec"].get("registrationMethod") or "control-plane-endpoint"
    if method == "control-plane-endpoint":
        return [endpoint_of(cluster).rpartition(":")[0]]
    if method == "address":
        return [str(control_plane["spec"].get("registrationAddress") or "")]

    kinds = {
        "internal-first": ("InternalIP", "ExternalIP"),
        "internal-only-ips": ("InternalIP",),
        "external-only-ips": ("ExternalIP",),
    }[method]
    hosts = []
    for machine in machines:
        # Take the first matching address of each machine, in the order of its status.
        addresses = list_at(machine, "status", "addresses")
        matches = [str(entry["address"]) for entry in addresses if entry["type"] in kinds]
        if condition(machine, "Ready") == "True":
            hosts += matches[:1]
    return hosts
