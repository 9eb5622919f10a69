"""Stand-in for a control plane provider: the Machines of a control plane object, one step at a time.

It is level-based, so it may be stopped anywhere. A machine consists of three objects with three names; if only the
first ones exist after a stop, the next reconcile makes the Machine that refers to them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping

from caphv.api.object import Key, Obj, annotations_of, being_deleted, key_of, owner_reference, uid_of
from caphv.api.resources import HARVESTER_MACHINE_TEMPLATES
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.errors import NotFound, Unreachable
from sandbox.capi import hooks, secrets, state, v1beta1
from sandbox.capi.bootstrap import endpoint_of, is_provisioned
from sandbox.capi.caches import Caches, cluster_key
from sandbox.capi.hooks import HookStep
from sandbox.capi.machineconditions import conditions_of
from sandbox.capi.plan import Create, Delete, Member, Step, Wait, next_step
from sandbox.capi.resources import (
    CLUSTERS,
    alive,
    condition,
    merged_conditions,
    now,
    ownership_of,
    paused,
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
        self.controller = Controller(f"{self._distribution.name}-control-plane", self._reconcile, concurrency=4)
        self.connections = Connections(self.controller.enqueue)
        caches.control_planes.add_handler(lambda change: self.controller.enqueue(change.key))
        for informer in (caches.machines, caches.clusters, caches.harvester_machines):
            informer.add_handler(lambda change: self._enqueue(cluster_key(change.obj) or change.key))

    def _enqueue(self, cluster: Key) -> None:
        for control_plane in self._caches.control_planes.store:
            if _cluster_of(control_plane) == cluster:
                self.controller.enqueue(key_of(control_plane))

    async def _reconcile(self, key: Key) -> None:
        control_plane = self._caches.control_planes.get(*key)
        cluster_of = _cluster_of(control_plane) if control_plane else None
        cluster = self._caches.clusters.get(*cluster_of) if cluster_of else None
        if control_plane is None:
            await self.connections.forget(key)
            return
        if cluster is None or paused(cluster, control_plane):
            return
        machines = [
            machine
            for machine in self._caches.machines_of(key_of(cluster), control_plane=True)
            if ownership_of(machine, control_plane)
        ]
        if being_deleted(control_plane):
            await self._reconcile_deletion(control_plane, cluster, machines)
            return

        await self._ensure_finalizer(control_plane)
        endpoint = endpoint_of(cluster) if is_provisioned(cluster) else ""
        if endpoint:
            await secrets.ensure(self._client, self._caches, key_of(cluster), endpoint, control_plane)
        access = secrets.access(self._caches.secrets, key_of(cluster))
        connection = await self.connections.ensure(key, access) if access else None

        members = self._members(control_plane, cluster, machines, connection)
        step: Step = Wait("the infrastructure of the cluster is not provisioned yet")
        if endpoint:
            step = next_step(
                members,
                control_plane["spec"].get("replicas", 1),
                self._distribution.max_surge(control_plane),
                state.failure_domains(cluster),
            )
        seen = Observation(
            control_plane,
            machines,
            members,
            step,
            provisioned=bool(endpoint),
            joinable=connection is not None and connection.has_control_plane(),
            ready_nodes=len(connection.ready_control_plane_nodes()) if connection else 0,
            addresses=registration_addresses(control_plane, cluster, machines),
        )
        for machine in machines:
            await self._release(machine, len(machines), connection)
            await self._set_conditions(machine, seen, connection)
        await self._report(seen)
        await self._execute(control_plane, cluster, step)

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
                await self._create(control_plane, key_of(cluster), failure_domain)
            case Delete(name):
                await self._delete(key_of(cluster).namespace, name)

    async def _create(self, control_plane: Obj, cluster: Key, failure_domain: str) -> None:
        template = await self._client.get(
            HARVESTER_MACHINE_TEMPLATES,
            self._distribution.template_name(control_plane),
            cluster.namespace,
        )
        infrastructure, config = self._unused(control_plane, cluster)
        if infrastructure is None:
            infrastructure = await self._new(
                self._caches.harvester_machines,
                state.new_harvester_machine(control_plane, self._distribution, cluster, template),
            )
        if config is None:
            config = await self._new(self._caches.configs, state.new_config(control_plane, self._distribution, cluster))
        machine = state.new_machine(
            control_plane,
            self._distribution,
            cluster,
            (infrastructure, config),
            failure_domain,
            core=self._machines.version,
        )
        log.info("creating machine %s of control plane %s", key_of(machine).name, key_of(control_plane))
        await self._new(self._caches.machines, machine)

    async def _new(self, informer: Informer, obj: Obj) -> Obj:
        answer = await self._client.create(informer.resource, obj)
        informer.observe(answer)
        return answer

    def _unused(self, control_plane: Obj, cluster: Key) -> tuple[Obj | None, Obj | None]:
        """HarvesterMachine and bootstrap object that no Machine refers to, from a creation that was interrupted."""
        machines = self._caches.machines_of(cluster, control_plane=True)
        used = {state.infrastructure_name(machine) for machine in machines}
        configured = {state.config_name(machine) for machine in machines}
        infrastructure = [
            obj
            for obj in alive(self._caches.harvester_machines_of(cluster))
            if ownership_of(obj, control_plane) and key_of(obj).name not in used
        ]
        configs = [
            obj
            for obj in alive(self._caches.configs.store)
            if ownership_of(obj, control_plane) and key_of(obj).name not in configured
        ]
        return next(iter(infrastructure), None), next(iter(configs), None)

    async def _delete(self, namespace: str, name: str, *, hooked: bool = True) -> None:
        """Delete a machine; K3s's provider sets its hook only now."""
        machine = self._caches.machines.get(namespace, name)
        if machine is None or being_deleted(machine):
            return
        log.info("deleting machine %s", name)
        with contextlib.suppress(NotFound):
            if hooked and self._distribution.is_k3s:
                await self._annotate(machine, {self._distribution.hook: self._distribution.hook_value})
            answer = await self._client.delete(self._machines, name, namespace, uid=uid_of(machine))
            self._caches.machines.deleted(namespace, name, answer)

    # Deletion

    async def _release(self, machine: Obj, count: int, connection: Connection | None) -> None:
        """Remove the pre-terminate hook of a deleted machine once the servers have removed its etcd member."""
        if not hooks.is_awaited(machine, self._distribution):
            return
        node, program, removed = state.node_name(machine), self._distribution.program, None
        if hooks.needs_node(machine, count):
            if connection is None or not connection.nodes.current:
                raise Unreachable(f"the workload cluster of machine {key_of(machine)} is not connected")
            removed = connection.is_removed(node, program)
        match hooks.next_hook_step(machine, self._distribution, count, removed):
            case HookStep.REQUEST if connection is not None:
                await connection.request_removal(node, program)
            case HookStep.REMOVE:
                await self._unhook(machine)

    async def _unhook(self, machine: Obj) -> None:
        with contextlib.suppress(NotFound):
            await self._annotate(machine, hooks.removal(self._distribution))

    async def _annotate(self, machine: Obj, annotations: Mapping[str, str | None]) -> None:
        key, patch = key_of(machine), {"metadata": {"annotations": dict(annotations)}}
        self._caches.machines.observe(await self._client.patch(self._machines, key.name, key.namespace, patch))

    async def _reconcile_deletion(self, control_plane: Obj, cluster: Obj, machines: list[Obj]) -> None:
        """Delete after the workers, which cannot be drained without a control plane; etcd members do not matter."""
        workers = self._caches.machines_of(key_of(cluster), control_plane=False)
        if not workers:
            for machine in machines:
                if self._distribution.hook in annotations_of(machine):
                    await self._unhook(machine)
                await self._delete(key_of(machine).namespace, key_of(machine).name, hooked=False)
        members = self._members(control_plane, cluster, machines, None)
        await self._report(Observation(control_plane, machines, members, Wait()))
        if not workers and not machines:
            finalizers = control_plane["metadata"].get("finalizers") or ()
            left = [name for name in finalizers if name != self._distribution.finalizer]
            await self._patch_finalizers(control_plane, left)

    async def _ensure_finalizer(self, control_plane: Obj) -> None:
        finalizers = control_plane["metadata"].get("finalizers") or []
        if self._distribution.finalizer not in finalizers:
            await self._patch_finalizers(control_plane, [*finalizers, self._distribution.finalizer])

    async def _patch_finalizers(self, control_plane: Obj, finalizers: list[str]) -> None:
        version = self._caches.control_planes.get(*key_of(control_plane)) or control_plane
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": version["metadata"]["resourceVersion"]}}
        key = key_of(control_plane)
        with contextlib.suppress(NotFound):
            answer = await self._client.patch(self._distribution.control_planes, key.name, key.namespace, patch)
            if answer["metadata"].get("finalizers") or not being_deleted(answer):
                self._caches.control_planes.observe(answer)

    # Status

    async def _set_conditions(self, machine: Obj, seen: Observation, connection: Connection | None) -> None:
        """Set the Machine's conditions that are its owner's task; K3s's provider sets none."""
        if self._distribution.is_k3s:
            return
        member = next(member for member in seen.members if member.name == machine["metadata"]["name"])
        wanted = conditions_of(
            machine,
            current=member.current,
            initialized=seen.initialized and connection is not None,
            provisioning=not all(map(state.node_name, seen.machines)),
            nodes=connection.control_plane_nodes() if connection else (),
            ready=connection.ready_control_plane_nodes() if connection else (),
        )
        before = {entry["type"]: entry for entry in (machine.get("status") or {}).get("conditions") or ()}
        fields = ("status", "reason", "message")
        if all(
            entry["type"] in before and all(before[entry["type"]].get(name, "") == entry[name] for name in fields)
            for entry in wanted
        ):
            return
        kinds = {entry["type"] for entry in wanted}
        others = [entry for kind, entry in before.items() if kind not in kinds]
        # The core writes the other conditions, hence the precondition.
        patch = {
            "metadata": {"resourceVersion": machine["metadata"]["resourceVersion"]},
            "status": v1beta1.conditions([*others, *merged_conditions(machine, wanted)], self._machines.version),
        }
        key = key_of(machine)
        with contextlib.suppress(NotFound):
            answer = await self._client.patch(self._machines, key.name, key.namespace, patch, subresource="status")
            self._caches.machines.observe(answer)

    def _status(self, seen: Observation) -> Obj:
        if self._distribution.is_k3s:
            return k3s_status(seen)
        return v1beta1_status(seen) if self._distribution.contract == "v1beta1" else rke2_status(seen)

    async def _report(self, seen: Observation) -> None:
        status, step, control_plane = self._status(seen), seen.step, seen.control_plane
        if isinstance(step, Delete) and step.remediation:
            status["lastRemediation"] = {"machine": step.name, "retryCount": 0, "timestamp": now()}
        before = control_plane.get("status") or {}
        if any(before.get(name) != value for name, value in status.items()):
            key = key_of(control_plane)
            with contextlib.suppress(NotFound):
                answer = await self._client.patch(
                    self._distribution.control_planes,
                    key.name,
                    key.namespace,
                    {"status": status},
                    subresource="status",
                )
                self._caches.control_planes.observe(answer)


def _cluster_of(control_plane: Obj) -> Key | None:
    """The Cluster that owns a control plane; the core sets the reference."""
    owner = owner_reference(control_plane, CLUSTERS.kind, CLUSTERS.group)
    return Key(key_of(control_plane).namespace, owner["name"]) if owner else None


def registration_addresses(control_plane: Obj, cluster: Obj, machines: Iterable[Obj]) -> list[str]:
    """Hosts where nodes of RKE2 join, by `registrationMethod`; machines count once they are ready."""
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
    found = []
    for machine in machines:
        addresses = (machine.get("status") or {}).get("addresses") or ()
        own = [str(entry["address"]) for entry in addresses if entry["type"] in kinds]
        if condition(machine, "Ready") == "True":
            found += own[:1]
    return found
