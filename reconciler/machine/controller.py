"""Reconcile one HarvesterMachine from bootstrap data to an initialized Node, or delete it.

The life of a machine, in this order (modules of this package):

1. Pause: nothing happens, except that a machine whose cluster is parked may adopt its VM.
2. `handover`: the older of two control plane machines waits for the load balancer.
3. The Cluster's infrastructure is provisioned, and the machine gets its finalizer.
4. `ensurevm`: find the VM, adopt it, or create it (`create`): `vminputs`, `quota`, `bootstrap`,
   `addresses`, `vm`.
5. `node`: a Node that exists already is initialized before the VM reports anything.
6. `inplace`: the VM follows an update in place; `report` reports drift. A new machine does this
   after step 8.
7. `running`: the VM runs and has an address.
8. `node`: set the providerID.
9. The machine is ready; `node` sets taint, zone and region of its Node.
10. `deletion`: backup of a replaced VM, etcd member, VM, disks, Secret, addresses; then
    IPAddressClaims and the finalizer.

Each step is idempotent. A step raises `Blocked` to end the reconcile until its trigger requeues the
machine, and `ApiError` or `Unreachable` for a retry with back-off. A failed machine is not
repaired: it reports why, and its owner replaces it. Machines leave hosts in maintenance in the
reconcile of their cluster (`reconciler.cluster.evacuation`).
"""

from __future__ import annotations

import time

from caphv.api import clusterapi, names, parking, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, being_deleted, key_of, owner_reference
from caphv.runtime import logs
from caphv.runtime.controller import Result
from caphv.runtime.errors import Forbidden, Invalid, NotFound, RequestError, lacks_namespace
from reconciler import metrics
from reconciler.blocked import Blocked
from reconciler.context import Context
from reconciler.machine.addresses.ipamclaims import release_address_claims
from reconciler.machine.adoption import adopt_or_refuse, ensure_vm_proof
from reconciler.machine.deletion import delete_machine
from reconciler.machine.ensurevm import ensure_vm
from reconciler.machine.handover import ensure_handover
from reconciler.machine.inplace import follow_update
from reconciler.machine.node import initialize_node, set_provider_id
from reconciler.machine.report import report_drift
from reconciler.machine.running import VmAvailability, ensure_running_vm
from reconciler.machine.scope import MachineScope, ProvisioningScope
from reconciler.memory.periods import GRACE_SECONDS
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Watched

_FINALIZERS = frozenset({names.MACHINE_FINALIZER, names.LEGACY_MACHINE_FINALIZER})
# Seconds that a transient state has to last before it is written.
_DEBOUNCE_SECONDS = 1.0
_NO_WEBHOOK = "failed calling webhook"
# Seconds until a parked machine looks again whether it can adopt its VM.
_ADOPT_SECONDS = 60.0


def _is_provisioned(scope: MachineScope) -> bool:
    """Return whether the machine was ever ready."""
    return bool(scope.draft.fields.get("initialization"))


async def _follow_spec(scope: ProvisioningScope, vm: Obj, vmi: Obj | None) -> Obj:
    """Let the VM follow an update in place, report drift, and return the VM."""
    followed = await follow_update(scope, vm, vmi)
    report_drift(scope, followed.vm, vmi, followed.refusal)
    return followed.vm


class MachineReconciler:
    """Reconcile HarvesterMachines, one key at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def reconcile(self, key: Key) -> Result | None:
        """Bring one HarvesterMachine closer to its spec.

        Raises `ApiError`, `Unreachable` for a retry.
        """
        self._context.topics.unsubscribe_all(self._context.queues.machines, key)
        obj = self._context.caches.harvester_machines.get(*key)
        if obj is None:
            memory = self._context.memory.forget_machine(key)
            if memory and memory.metric_labels:
                metrics.MACHINE_STATUS.remove(*memory.metric_labels)
            return None

        operation = "delete" if being_deleted(obj) else "normal"
        started = time.monotonic()
        try:
            with logs.context(cluster=f"{key.namespace}/{clusterapi.cluster_name(obj)}"):
                return await self._reconcile(obj)
        finally:
            metrics.MACHINE_RECONCILE_SECONDS.labels(operation).observe(time.monotonic() - started)

    async def _reconcile(self, obj: Obj) -> Result | None:
        """Run the steps (of the deletion, if needed) and write the status that they draft.

        If the early initialization of the Node fails, raises the error only after the status has
        been written.
        """
        scope = self._scope(obj)
        if clusterapi.paused(scope.cluster, obj):
            scope.draft.set_true(ConditionType.PAUSED)
            await self._write(scope)
            return await self._adopt_parked(scope)
        if not being_deleted(obj) and not isinstance(scope, ProvisioningScope):
            return None  # Cluster API sets owner and label first, and that change requeues it

        scope.draft.set_false(ConditionType.PAUSED, Reason.NOT_PAUSED)
        node_error: RequestError | None = None
        try:
            # A machine in deletion needs this, too, because the hook delays the deletion.
            await ensure_handover(scope)
            if not isinstance(scope, ProvisioningScope):
                await self._delete(scope)
                return None
            vm, vmi = await self._provide_vm(scope)
            node_error = await self._initialize_early(scope, vm, vmi)
            await self._complete(scope, vm, vmi, node_failed=node_error is not None)
        except Blocked as blocked:
            result = await self._wait(scope, blocked)
            if node_error:
                raise node_error from None
            return result
        except RequestError as error:
            # A refused request needs an action of the user, as do webhooks that do not answer. A
            # machine that is ready stays ready.
            is_refused = isinstance(error, (Forbidden, Invalid)) or _NO_WEBHOOK in str(error)
            if lacks_namespace(error, scope.target_namespace):
                is_refused = True
                self._request_namespace(scope)
            if is_refused and (being_deleted(obj) or not scope.draft.fields.get("ready")):
                self._report(scope, scope.failure(f"a request was refused: {error}"))
            await self._write(scope)
            raise

        await self._write(scope)
        if node_error:
            raise node_error
        return Result(requeue_after=scope.requeue_after)

    def _request_namespace(self, scope: MachineScope) -> None:
        """Have the cluster create its target namespace again.

        The cluster itself may send no request that shows that it was deleted.
        """
        if scope.harvester_cluster is not None:
            self._context.memory.cluster(scope.harvester_cluster).namespace_lost = True
            self._context.queues.clusters.add(key_of(scope.harvester_cluster))

    async def _adopt_parked(self, scope: MachineScope) -> Result | None:
        """Adopt the VM of a machine that was restored while its cluster was parked.

        Otherwise the cluster could only be resumed without the pause that protects its machines.
        The pause of a user is left alone. Condition `Parked` of the cluster says what is missing.
        """
        cluster = scope.cluster
        if cluster is None or not parking.owns_pause(cluster) or parking.is_moving(cluster):
            return None
        if clusterapi.paused(None, scope.obj) or not isinstance(scope, ProvisioningScope):
            return None

        try:
            vm = scope.namespace().vms.get(scope.target_namespace, scope.name)
            if vm is not None:
                await adopt_or_refuse(scope, vm)

        except Blocked as blocked:
            if blocked.is_outage:
                return Result(requeue_after=blocked.requeue_after)  # the session reports its end
            scope.memory.adoption_refusal = blocked.message
            delays = filter(None, (blocked.requeue_after, _ADOPT_SECONDS))
            return Result(requeue_after=min(delays))

        scope.memory.adoption_refusal = ""
        return None

    async def _wait(self, scope: MachineScope, blocked: Blocked) -> Result:
        """Report why a step waits, at once or after a debounce. Return the next attempt."""
        self._report(scope, blocked)
        # Transient states end within seconds, and writing each of them would cost a request.
        debounce = 0.0
        if not blocked.warn:
            debounce = scope.memory.transient.remaining(
                GRACE_SECONDS if blocked.is_unknown else _DEBOUNCE_SECONDS
            )
        if not debounce:
            await self._write(scope)

        delays = (debounce, blocked.requeue_after, scope.requeue_after)
        return Result(requeue_after=min(filter(None, delays), default=None))

    async def _provide_vm(self, scope: ProvisioningScope) -> tuple[Obj, Obj | None]:
        """Run the steps up to the VM of the machine; return the VM, and its instance or None."""
        self._require_infrastructure(scope)
        # Set the finalizer before the first request to Harvester, because objects there must delay
        # the deletion of the machine.
        await self._ensure_finalizer(scope)
        vm = await ensure_vm(scope)
        vmi = scope.instance()
        scope.draft.set_true(ConditionType.MACHINE_CREATED)
        return vm, vmi

    async def _complete(
        self, scope: ProvisioningScope, vm: Obj, vmi: Obj | None, *, node_failed: bool
    ) -> None:
        """Run the steps from the VM to an initialized Node.

        :param node_failed: whether the early initialization of the Node has failed in this
            reconcile
        """
        was_provisioned = _is_provisioned(scope)
        if was_provisioned:
            # Report drift before a step may end this reconcile, because an edit of the VM may be
            # the reason why it does not run.
            vm = await _follow_spec(scope, vm, vmi)
        if await ensure_running_vm(scope, vm, vmi) is VmAvailability.SHORTLY_DOWN:
            return  # the machine stays ready, and its status stays as it was

        provider_id = await set_provider_id(scope, vm, vmi or {})
        if not was_provisioned:
            vm = await _follow_spec(scope, vm, vmi)
        await self._report_ready(scope)
        await ensure_vm_proof(scope, vm)
        if not node_failed:
            # An initialized Node needs this, too, because its zone follows the VM to another host.
            await initialize_node(scope, provider_id)

    async def _ensure_finalizer(self, scope: MachineScope) -> None:
        """Set our finalizer, which replaces the finalizer of the Go provider.

        The scope continues with the patched object, because later steps patch its version.
        """
        informer = self._context.caches.harvester_machines
        await self._context.ensure_finalizer(
            informer, scope.obj, names.MACHINE_FINALIZER, names.LEGACY_MACHINE_FINALIZER
        )
        scope.obj = informer.get(*scope.key) or scope.obj
        scope.draft.rebase(scope.obj)

    async def _initialize_early(
        self, scope: ProvisioningScope, vm: Obj, vmi: Obj | None
    ) -> RequestError | None:
        """Initialize a Node that exists already, before the VM reports anything.

        The guest agent may depend on Pods that wait for the removal of the taint. Returns an error
        of the workload API instead of raising it, because the following steps do not depend on that
        API.
        """
        if vmi is None:
            return None
        if not self._context.workloads.node(scope.cluster_key, scope.name):
            return None

        provider_id = await set_provider_id(scope, vm, vmi)
        try:
            await initialize_node(scope, provider_id)
        except RequestError as error:
            return error
        return None

    async def _report_ready(self, scope: MachineScope) -> None:
        """Set the conditions of a machine with a running VM. Write them at once if it was unready.

        Needs the providerID, because Cluster API considers no machine provisioned without it.
        """
        was_ready = bool(scope.draft.fields.get("ready"))
        if not _is_provisioned(scope) and scope.memory.vm_created_at is not None:
            seconds = time.monotonic() - scope.memory.vm_created_at
            metrics.MACHINE_CREATION_SECONDS.observe(seconds)

        for condition in (
            ConditionType.VM_PROVISIONING_READY,
            ConditionType.INFRASTRUCTURE_READY,
            ConditionType.READY,
        ):
            scope.draft.set_true(condition)
        scope.draft.set_ready(ready=True)
        scope.memory.transient.end()
        if not was_ready:
            # Cluster API waits for this status, and the following steps use APIs that may be slow.
            await self._write(scope)

    def _require_infrastructure(self, scope: ProvisioningScope) -> None:
        """Raise `Blocked` until the HarvesterCluster is provisioned."""
        if scope.harvester_cluster and clusterapi.infrastructure_provisioned(scope.cluster):
            return

        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
            f"waiting for the infrastructure of Cluster {key_of(scope.cluster)}; see its "
            "HarvesterCluster",
            Watched.CLUSTER,
        )

    async def _delete(self, scope: MachineScope) -> None:
        """Delete the machine's objects on Harvester and its claims, then remove our finalizers."""
        if not set(scope.obj["metadata"].get("finalizers") or ()) & _FINALIZERS:
            return  # our part of the deletion is complete, and other finalizers keep the object

        await delete_machine(scope)
        await release_address_claims(scope)
        try:
            await self._context.remove_finalizer(
                self._context.caches.harvester_machines, scope.obj, *_FINALIZERS
            )
        except NotFound:
            self._context.caches.harvester_machines.forget(*scope.key)

    def _scope(self, obj: Obj) -> MachineScope:
        """Return a `ProvisioningScope` if Machine and Cluster exist, unless it is being deleted."""
        caches = self._context.caches
        reference = owner_reference(obj, "Machine", resources.CLUSTER_API_GROUP)
        machine = None
        if reference:
            machine = caches.machines.get(obj["metadata"]["namespace"], reference["name"])

        cluster = caches.cluster_of(obj)
        harvester_cluster = caches.harvester_cluster_of(cluster) if cluster else None
        draft = StatusDraft(obj)
        if machine is None or cluster is None or being_deleted(obj):
            return MachineScope(self._context, obj, machine, cluster, harvester_cluster, draft)
        return ProvisioningScope(self._context, obj, machine, cluster, harvester_cluster, draft)

    def _report(self, scope: MachineScope, blocked: Blocked) -> None:
        """Set the conditions of a machine that waits, with the Event of `Blocked.warn`."""
        draft = scope.draft
        # A lost VM stays lost during an outage, and explains why its Node does not answer.
        was_lost = draft.has_reason(ConditionType.VM_PROVISIONING_READY, Reason.MACHINE_NOT_FOUND)
        if was_lost and blocked.is_outage and not being_deleted(scope.obj):
            return

        # A VM keeps running while Harvester's API is unreachable, so Cluster API must not consider
        # the machine broken.
        stays_ready = (
            blocked.is_outage and draft.fields.get("ready") and not being_deleted(scope.obj)
        )
        affected = [blocked.condition]
        if not stays_ready:
            affected += [ConditionType.INFRASTRUCTURE_READY, ConditionType.READY]
        set_condition = draft.set_unknown if blocked.is_unknown else draft.set_false
        for condition in affected:
            set_condition(condition, blocked.reason, blocked.message)

        vm_lost = blocked.reason == Reason.MACHINE_NOT_FOUND
        if vm_lost and draft.has(ConditionType.VM_UP_TO_DATE):
            # The VM can no longer be compared with the spec.
            draft.set_unknown(ConditionType.VM_UP_TO_DATE, blocked.reason, blocked.message)
        if not blocked.is_unknown:
            draft.set_ready(ready=False)

        is_known = draft.has_message(blocked.condition, blocked.message, blocked.reason)
        if blocked.warn and not is_known:
            scope.warning_event(blocked.reason, blocked.message)

    async def _write(self, scope: MachineScope) -> None:
        """Write metric and status, and forget a machine that was deleted meanwhile."""
        self._set_metric(scope)
        try:
            await self._context.write_status(
                self._context.caches.harvester_machines, scope.obj, scope.draft
            )
        except NotFound:
            self._context.caches.harvester_machines.forget(*scope.key)

    def _set_metric(self, scope: MachineScope) -> None:
        """Set the metric of readiness, and remove it while the machine is paused."""
        # A paused machine is not reconciled, and its last value must not raise an alert.
        cluster = f"{scope.key.namespace}/{clusterapi.cluster_name(scope.obj)}"
        labels = (cluster, str(scope.key))
        is_paused = scope.draft.is_true(ConditionType.PAUSED)
        old_labels = scope.memory.metric_labels
        if old_labels and (is_paused or old_labels != labels):
            metrics.MACHINE_STATUS.remove(*old_labels)

        scope.memory.metric_labels = None if is_paused else labels
        if not is_paused:
            metrics.MACHINE_STATUS.labels(*labels).set(int(bool(scope.draft.fields.get("ready"))))
