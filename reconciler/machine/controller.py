"""Reconciles one HarvesterMachine: from the Machine's bootstrap data to an initialized Node, and its deletion."""

from __future__ import annotations

import time

from caphv.api import clusterapi, names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, being_deleted, key_of, owner_reference, uid_of
from caphv.runtime import logs
from caphv.runtime.controller import Result
from caphv.runtime.errors import ApiError, Forbidden, Invalid, NotFound, Unreachable
from reconciler import metrics
from reconciler.context import Context
from reconciler.machine.adoption import ensure_vm_proof, vm_proof
from reconciler.machine.create import ensure_vm
from reconciler.machine.deletion import delete_machine
from reconciler.machine.handover import keep_until_replaced
from reconciler.machine.node import initialize_node, is_guest_of
from reconciler.machine.running import require_running
from reconciler.machine.scope import MachineScope
from reconciler.machine.status import report_drift
from reconciler.memory import GRACE_SECONDS
from reconciler.status import Blocked, StatusDraft
from reconciler.triggers import Watched

_FINALIZERS = frozenset({names.MACHINE_FINALIZER, names.LEGACY_MACHINE_FINALIZER})
# Seconds that a transient state has to last before it is written.
_DEBOUNCE = 1.0


class MachineReconciler:
    """`reconcile` takes the key of a HarvesterMachine."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def reconcile(self, key: Key) -> Result | None:
        """Bring one HarvesterMachine closer to its spec. Raises `ApiError`, `Unreachable` for a retry."""
        obj = self._context.caches.harvester_machines.get(*key)
        if obj is None:
            self._forget(key)
            return None
        operation = "delete" if being_deleted(obj) else "normal"
        started = time.monotonic()
        try:
            with logs.context(cluster=f"{key.namespace}/{clusterapi.cluster_name(obj)}"):
                return await self._reconcile(obj)
        finally:
            metrics.MACHINE_RECONCILE_SECONDS.labels(operation).observe(time.monotonic() - started)

    async def _reconcile(self, obj: Obj) -> Result | None:
        scope = self._scope(obj)
        if clusterapi.paused(scope.cluster, obj):
            scope.draft.set_true(ConditionType.PAUSED)
            await self._write(scope)
            return None
        if not being_deleted(obj) and (scope.machine is None or scope.cluster is None):
            return None  # Cluster API sets owner and label first, and that change requeues it
        scope.draft.set_false(ConditionType.PAUSED, Reason.NOT_PAUSED)
        try:
            await keep_until_replaced(scope)
            if being_deleted(obj):
                await self._delete(scope)
                return None
            await self._normal(scope)
        except Blocked as blocked:
            self._report(scope, blocked)
            debounce = 0.0 if blocked.warn else scope.memory.debounce(GRACE_SECONDS if blocked.unknown else _DEBOUNCE)
            if not debounce:
                await self._write(scope)
            if scope.failure:
                raise scope.failure from None
            delays = (debounce, blocked.requeue_after, scope.requeue_after)
            return Result(requeue_after=min(filter(None, delays), default=None))
        except (ApiError, Unreachable) as error:
            # A refused request needs a user's action. A machine that is ready stays so.
            if isinstance(error, (Forbidden, Invalid)) and (being_deleted(obj) or not scope.draft.fields.get("ready")):
                self._report(scope, scope.failed(f"a request was refused: {error.message}"))
            await self._write(scope)
            raise
        await self._write(scope)
        if scope.failure:
            raise scope.failure
        return Result(requeue_after=scope.requeue_after)

    async def _normal(self, scope: MachineScope) -> None:
        self._require_infrastructure(scope)
        await self._context.ensure_finalizer(
            self._context.caches.harvester_machines, scope.obj, names.MACHINE_FINALIZER, names.LEGACY_MACHINE_FINALIZER
        )
        scope.obj = self._context.caches.harvester_machines.get(*scope.key) or scope.obj
        scope.draft.moved_to(scope.obj)
        vm = await ensure_vm(scope)
        vmi = scope.namespace().instances.get(scope.target_namespace, scope.name)
        scope.draft.set_true(ConditionType.MACHINE_CREATED)
        if vmi is not None and scope.cluster_key and self._context.workloads.node(scope.cluster_key, scope.name):
            # Before the VM reports anything: its guest agent may depend on Pods that wait for the removal of the taint.
            provider_id = await self._ensure_provider_id(scope, vm, vmi)
            try:
                await initialize_node(scope, provider_id)
            except (ApiError, Unreachable) as error:
                scope.failure = error  # what the VM reports does not depend on the workload API
        first = not scope.draft.fields.get("initialization")
        if not first:
            # Before what may end this: an edit may be why the VM does not run.
            report_drift(scope, vm)
        running = await require_running(scope, vm, vmi)
        if running.holds:
            return  # the machine stays ready, with what was true of it before
        was_ready = bool(scope.draft.fields.get("ready"))
        provider_id = await self._ensure_provider_id(scope, vm, vmi or {})
        if first:
            report_drift(scope, vm)
        for condition in (
            ConditionType.VM_PROVISIONING_READY,
            ConditionType.INFRASTRUCTURE_READY,
            ConditionType.READY,
        ):
            scope.draft.set_true(condition)
        scope.draft.provisioned(ready=True)
        scope.memory.settled()
        if first and scope.memory.vm_created_at is not None:
            metrics.MACHINE_CREATION_SECONDS.observe(time.monotonic() - scope.memory.vm_created_at)
        if not was_ready:
            await self._write(scope)
        await ensure_vm_proof(scope, vm)
        if scope.failure is None:
            await initialize_node(scope, provider_id)

    def _require_infrastructure(self, scope: MachineScope) -> None:
        assert scope.cluster is not None  # noqa: S101 - checked by the caller
        if scope.harvester_cluster is None or not clusterapi.infrastructure_provisioned(scope.cluster):
            raise Blocked(
                ConditionType.INFRASTRUCTURE_READY,
                Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
                f"waiting for the infrastructure of Cluster {key_of(scope.cluster)}; see its HarvesterCluster",
                Watched.CLUSTER,
            )

    async def _ensure_provider_id(self, scope: MachineScope, vm: Obj, vmi: Obj) -> str:
        """Contract: the Node's own if it has one (another cloud provider may set it), else that of the VM."""
        assert scope.cluster_key is not None  # noqa: S101 - checked by the caller
        node = self._context.workloads.node(scope.cluster_key, scope.name)
        # The Node of an earlier machine of the same name may still be there.
        former = node is not None and is_guest_of(node, vmi) is False
        own = node["spec"].get("providerID") if node and not former else None
        wanted = str(own or scope.spec.get("providerID") or f"{names.PROVIDER_ID_PREFIX}{uid_of(vm)}")
        if scope.spec.get("providerID") != wanted:
            await scope.patch({"metadata": {"annotations": vm_proof(wanted, vm)}, "spec": {"providerID": wanted}})
        return wanted

    async def _delete(self, scope: MachineScope) -> None:
        if not set(scope.obj["metadata"].get("finalizers") or ()) & _FINALIZERS:
            return  # done; other finalizers keep the object
        await delete_machine(scope)
        try:
            await self._context.remove_finalizer(self._context.caches.harvester_machines, scope.obj, *_FINALIZERS)
        except NotFound:
            self._context.caches.harvester_machines.forget(*scope.key)

    def _scope(self, obj: Obj) -> MachineScope:
        reference = owner_reference(obj, "Machine", resources.CLUSTER_API_GROUP)
        namespace = obj["metadata"]["namespace"]
        machine = self._context.caches.machines.get(namespace, reference["name"]) if reference else None
        cluster = self._context.caches.cluster_of(obj)
        harvester_cluster = self._context.caches.harvester_cluster_of(cluster) if cluster else None
        return MachineScope(self._context, obj, machine, cluster, harvester_cluster, StatusDraft(obj))

    def _report(self, scope: MachineScope, blocked: Blocked) -> None:
        set_condition = scope.draft.set_unknown if blocked.unknown else scope.draft.set_false
        summaries = (ConditionType.INFRASTRUCTURE_READY, ConditionType.READY)
        # A VM runs on while Harvester's API is unreachable: Cluster API must not take the machine for a broken one.
        stays_ready = blocked.outage and scope.draft.fields.get("ready") and not being_deleted(scope.obj)
        for condition in (blocked.condition, *(() if stays_ready else summaries)):
            set_condition(condition, blocked.reason, blocked.message)
        if blocked.reason == Reason.MACHINE_NOT_FOUND and scope.draft.has(ConditionType.VM_UP_TO_DATE):
            # There is nothing to compare any more.
            scope.draft.set_unknown(ConditionType.VM_UP_TO_DATE, blocked.reason, blocked.message)
        if not blocked.unknown:
            scope.draft.provisioned(ready=False)
        if blocked.warn and not scope.draft.has_message(blocked.condition, blocked.message, blocked.reason):
            scope.warning_event(blocked.reason, blocked.message)

    async def _write(self, scope: MachineScope) -> None:
        self._set_metric(scope)
        try:
            await self._context.write_status(self._context.caches.harvester_machines, scope.obj, scope.draft)
        except NotFound:
            self._context.caches.harvester_machines.forget(*scope.key)

    def _set_metric(self, scope: MachineScope) -> None:
        cluster = f"{scope.key.namespace}/{clusterapi.cluster_name(scope.obj)}"
        series = (cluster, str(scope.key))
        paused = scope.draft.is_true(ConditionType.PAUSED)
        known = scope.memory.metric_labels
        if known and (paused or known != series):
            metrics.MACHINE_STATUS.remove(*known)
        # A paused machine is not observed: what was true of it before is nothing to raise an alert about.
        scope.memory.metric_labels = None if paused else series
        if not paused:
            metrics.MACHINE_STATUS.labels(*series).set(int(bool(scope.draft.fields.get("ready"))))

    def _forget(self, key: Key) -> None:
        memory = self._context.memory.forget_machine(key)
        if memory and memory.metric_labels:
            metrics.MACHINE_STATUS.remove(*memory.metric_labels)
