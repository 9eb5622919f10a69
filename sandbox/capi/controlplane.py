"""Stand-in for a control plane provider: the Machines of a control plane object, one step at a time.

It is level-based, so it may be stopped anywhere. A machine consists of three objects; if only the first ones exist
after a stop, the next reconcile completes them under the same name.
"""

from __future__ import annotations

import contextlib
import logging
import secrets as random
import string

from caphv.api.object import Key, Obj, annotations_of, being_deleted, key_of, owner_reference, uid_of
from caphv.api.resources import HARVESTER_MACHINE_TEMPLATES
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.errors import AlreadyExists, NotFound
from caphv.runtime.exec import ExecError
from sandbox.capi import secrets, state, v1beta1
from sandbox.capi.bootstrap import endpoint_of, is_provisioned
from sandbox.capi.caches import Caches, cluster_key
from sandbox.capi.plan import Create, Delete, Member, Step, Wait, next_step
from sandbox.capi.resources import (
    CLUSTERS,
    alive,
    merged_conditions,
    now,
    ownership_of,
    paused,
)
from sandbox.capi.status import in_contract_v1beta1, status_of
from sandbox.capi.workload import Connection, Connections

log = logging.getLogger(__name__)

_READY_FOR_HOOK = "WaitingForPreTerminateHook"
_SUFFIX = string.ascii_lowercase + string.digits


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
            await secrets.ensure(self._client, self._caches.secrets, key_of(cluster), endpoint, control_plane)
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
        for machine in machines:
            await self._release(machine, None if being_deleted(cluster) else connection)
            await self._set_up_to_date(machine, next(m for m in members if m.name == machine["metadata"]["name"]))
        joinable = connection is not None and connection.has_control_plane()
        await self._report(control_plane, self._status(control_plane, machines, members, step, joinable=joinable), step)
        await self._execute(control_plane, cluster, step)

    def _members(
        self, control_plane: Obj, cluster: Obj, machines: list[Obj], connection: Connection | None
    ) -> list[Member]:
        namespace = cluster["metadata"]["namespace"]
        return [
            state.member_of(
                machine,
                self._caches.harvester_machines.get(namespace, machine["metadata"]["name"]),
                self._caches.configs.get(namespace, machine["metadata"]["name"]),
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
        name = self._incomplete(control_plane, cluster) or _new_name(control_plane)
        log.info("creating machine %s of control plane %s", name, key_of(control_plane))
        infrastructure = state.new_harvester_machine(control_plane, cluster, name, template)
        config = state.new_config(control_plane, self._distribution, cluster, name)
        core = self._machines.version
        machine = state.new_machine(control_plane, self._distribution, cluster, name, failure_domain, core=core)
        for informer, obj in (
            (self._caches.harvester_machines, infrastructure),
            (self._caches.configs, config),
            (self._caches.machines, machine),
        ):
            with contextlib.suppress(AlreadyExists):
                informer.observe(await self._client.create(informer.resource, obj))

    def _incomplete(self, control_plane: Obj, cluster: Key) -> str:
        """Name of an incomplete machine; empty if none."""
        for obj in alive(self._caches.harvester_machines_of(cluster)):
            key = key_of(obj)
            if ownership_of(obj, control_plane) and self._caches.machines.get(*key) is None:
                return key.name
        return ""

    async def _delete(self, namespace: str, name: str) -> None:
        machine = self._caches.machines.get(namespace, name)
        if machine is not None and not being_deleted(machine):
            log.info("deleting machine %s", name)
            with contextlib.suppress(NotFound):
                answer = await self._client.delete(self._machines, name, namespace, uid=uid_of(machine))
                self._caches.machines.deleted(namespace, name, answer)

    # Deletion

    async def _release(self, machine: Obj, connection: Connection | None) -> None:
        """Remove the pre-terminate hook once the etcd member is removed; without a connection, at once."""
        if not being_deleted(machine) or self._distribution.hook not in annotations_of(machine):
            return
        key = key_of(machine)
        if connection is not None:
            if _deletion_stage(machine) != _READY_FOR_HOOK:
                return
            try:
                await connection.remove_etcd_member(
                    (machine.get("status") or {}).get("nodeRef", {}).get("name", key.name)
                )
            except ExecError as error:
                log.warning("etcd member of %s: %s", key, error)
                raise
        patch = {"metadata": {"annotations": {self._distribution.hook: None}}}
        with contextlib.suppress(NotFound):
            self._caches.machines.observe(await self._client.patch(self._machines, key.name, key.namespace, patch))

    async def _reconcile_deletion(self, control_plane: Obj, cluster: Obj, machines: list[Obj]) -> None:
        """Delete after the workers, which cannot be drained without a control plane."""
        workers = self._caches.machines_of(key_of(cluster), control_plane=False)
        if not workers:
            for machine in machines:
                await self._delete(key_of(machine).namespace, key_of(machine).name)
                await self._release(self._caches.machines.get(*key_of(machine)) or machine, None)
        members = self._members(control_plane, cluster, machines, None)
        step = Wait(f"{len(workers)} workers remain" if workers else f"{len(machines)} machines remain")
        await self._report(control_plane, self._status(control_plane, machines, members, step, joinable=False), step)
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

    async def _set_up_to_date(self, machine: Obj, member: Member) -> None:
        """Set the Machine's condition UpToDate; by contract this is the owner's task."""
        reason = "UpToDate" if member.current else "NotUpToDate"
        conditions = (machine.get("status") or {}).get("conditions") or []
        if member.deleting or any(c["type"] == "UpToDate" and c["reason"] == reason for c in conditions):
            return
        entry = {"type": "UpToDate", "status": str(member.current), "reason": reason, "message": ""}
        others = [condition for condition in conditions if condition["type"] != "UpToDate"]
        # The core writes the other conditions, hence the precondition.
        patch = {
            "metadata": {"resourceVersion": machine["metadata"]["resourceVersion"]},
            "status": v1beta1.conditions([*others, *merged_conditions(machine, [entry])], self._machines.version),
        }
        key = key_of(machine)
        with contextlib.suppress(NotFound):
            answer = await self._client.patch(self._machines, key.name, key.namespace, patch, subresource="status")
            self._caches.machines.observe(answer)

    def _status(
        self, control_plane: Obj, machines: list[Obj], members: list[Member], step: Step, *, joinable: bool
    ) -> Obj:
        found = status_of(control_plane, machines, members, step, joinable)
        return in_contract_v1beta1(found) if self._distribution.contract == "v1beta1" else found

    async def _report(self, control_plane: Obj, status: Obj, step: Step) -> None:
        if isinstance(step, Delete) and step.remediation:
            remediation = {"machine": step.name, "retryCount": 0, self._distribution.remediated_at: now()}
            status["lastRemediation"] = remediation
        if status != control_plane.get("status"):
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


def _new_name(control_plane: Obj) -> str:
    suffix = "".join(random.choice(_SUFFIX) for _ in range(5))
    return f"{key_of(control_plane).name}-{suffix}"


def _deletion_stage(machine: Obj) -> str:
    conditions = (machine.get("status") or {}).get("conditions") or ()
    return next((str(entry.get("reason")) for entry in conditions if entry["type"] == "Deleting"), "")
