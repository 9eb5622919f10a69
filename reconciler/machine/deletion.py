"""Delete the objects of a machine on Harvester: VM, disks, cloud-init Secret and address.

Each deletion is verified before the next object is deleted.
"""

from __future__ import annotations

from caphv.api import clusterapi, remedies
from caphv.api.conditions import seconds_since
from caphv.api.names import FORCE_DELETE_ANNOTATION, OWNER_ANNOTATION, ConditionType, Reason
from caphv.api.object import SECRETS, Obj, annotations_of, being_deleted, key_of, uid_of
from caphv.api.ownership import Ownership, has_former_owner, ownership_of, recorded_owner
from caphv.api.virtualmachine import cloud_init_secret_name
from caphv.runtime.errors import NotFound
from reconciler import triggers
from reconciler.blocked import Blocked
from reconciler.harvester.views import TargetNamespace
from reconciler.machine.addresses.entries import adopt_marked, release_addresses
from reconciler.machine.addresses.ipamclaims import describe_released
from reconciler.machine.adoption import VmOwner, is_another_vm, owner_of_vm
from reconciler.machine.diskdeletion import delete_disks
from reconciler.machine.etcd import remove_etcd_member
from reconciler.machine.guestinterfaces import recorded_addresses
from reconciler.machine.scope import MachineScope, Outage, outage_of
from reconciler.machine.vmbackup import back_up_replaced
from reconciler.machine.vmdeletion import delete_vm, instance_remains
from reconciler.memory.periods import FORCE_DELETE_SECONDS
from reconciler.triggers import Delay, Watched

# Seconds that the cluster gets to record what its guest created.
_RECORD_SECONDS = 90.0


async def delete_machine(scope: MachineScope) -> None:
    """Delete all objects of the machine on Harvester, in steps that can be repeated.

    If a VM with the machine's name belongs to another owner, it stays, with its disks and address.
    If it was the machine's before, its etcd member stays, too: after a move or a restored backup,
    another management cluster has adopted the VM, and this machine is left behind. Raises `Blocked`
    while an object of the machine exists, or may exist.
    """
    if _is_unused_orphan(scope) or _force_delete(scope):
        return

    namespace = scope.require_current_namespace()
    vm = namespace.vms.get(scope.target_namespace, scope.name)
    if vm is None and not scope.memory.deletion.vm_deletion_requested:
        # The cache may lag behind, and a VM that is missed here would stay forever.
        vm = await scope.live_vm()
    is_ours = vm is None or owner_of_vm(scope, vm) is VmOwner.MACHINE
    runs_elsewhere = vm is not None and not is_ours and not is_another_vm(scope, vm)

    if is_ours and vm is not None:
        await _note_former_owner(scope, vm)
        await back_up_replaced(scope, vm)
    # Remove the member before the VM, because a member without a machine counts for the quorum. Do
    # so after the backup: a server of RKE2 or K3s that restarts meanwhile joins again.
    if not runs_elsewhere:
        await remove_etcd_member(scope)
    if is_ours:
        if vm is not None:
            _require_recorded_guest(scope)
            await delete_vm(scope, namespace, vm)
        await _require_stopped_guest(scope, namespace)
    await delete_disks(scope, namespace, is_ours=is_ours)
    if is_ours:
        await _delete_secret(scope)

    # Release the address last, so that no other machine gets it while this guest runs. Check the
    # caches again, because Harvester may have become unreachable meanwhile.
    scope.require_current_namespace()
    await release_addresses(scope, foreign_vm=not is_ours)
    if vm is not None and runs_elsewhere:
        _report_kept_vm(scope, vm)


async def _note_former_owner(scope: MachineScope, vm: Obj) -> None:
    """Note whose Secret and addresses are deleted with a VM that was not adopted yet.

    After a move they carry the record and the mark of another management cluster, and once the VM
    no longer exists, nothing proves that they are the machine's.
    """
    owner = recorded_owner(vm)
    scope.memory.deletion.vm_owner = owner
    if owner and owner.management_cluster != scope.owner.management_cluster:
        await adopt_marked(scope, owner.management_cluster)


def _report_kept_vm(scope: MachineScope, vm: Obj) -> None:
    """Report that the VM of a machine stays, because it belongs to another owner now."""
    if not scope.draft.is_true(ConditionType.MACHINE_CREATED):
        return  # the VM has never been the machine's

    owner = annotations_of(vm).get(OWNER_ANNOTATION, "another owner")
    message = (
        f"VirtualMachine {key_of(vm)} stays, with its disks, cloud-init Secret and etcd member: it "
        f"belongs to {owner}, perhaps of another management cluster"
    )
    released = describe_released(scope)
    if released:
        text = f"{message}; it may still use addresses that others can get from {released}"
        scope.warning_event("VMKept", text)
    else:
        scope.event("VMKept", message)


def _require_recorded_guest(scope: MachineScope) -> None:
    """Raise `Blocked` until the deleted cluster has recorded what its guest created on Harvester.

    Its VMs are the proof of that. A cluster that cannot be reconciled delays them for 90 s.
    """
    cluster, harvester_cluster = scope.cluster, scope.harvester_cluster
    if cluster is None or harvester_cluster is None or not being_deleted(cluster):
        return
    if clusterapi.externally_managed(harvester_cluster) or clusterapi.paused(
        cluster, harvester_cluster
    ):
        return

    patience = _RECORD_SECONDS - seconds_since(cluster["metadata"]["deletionTimestamp"])
    if patience <= 0:
        return
    with scope.subscribe(triggers.guest_parts(key_of(harvester_cluster))) as recorded:
        if not scope.context.memory.cluster(harvester_cluster).volumes.recorded:
            message = "waiting for the cluster to record what its guest created on Harvester"
            raise scope.in_progress(message, recorded, Delay(patience))


async def _require_stopped_guest(scope: MachineScope, namespace: TargetNamespace) -> None:
    """Raise `Blocked` while an instance of a VM that no longer exists still runs."""
    instance = namespace.instances.get(scope.target_namespace, scope.name)
    # KubeVirt keeps a VM until its instance is deleted. If this process has not followed the
    # deletion of the VM, read the instance from Harvester, because the cache may lag behind.
    if instance is None and not scope.memory.deletion.vm_deletion_requested:
        instance = await namespace.instances.read(scope.target_namespace, scope.name)
    if instance:
        message = f"waiting for VirtualMachineInstance {scope.name} on Harvester to stop"
        raise instance_remains(scope, instance, message)


def _is_unused_orphan(scope: MachineScope) -> bool:
    """Return whether a machine without a HarvesterCluster shows no trace of an object."""
    # With a HarvesterCluster, Harvester itself is read, because an object whose creation was not
    # answered leaves no trace in the status.
    traces = (ConditionType.MACHINE_CREATED, ConditionType.VM_IP_ALLOCATED)
    return (
        not scope.spec.get("providerID")
        and not scope.draft.fields.get("allocatedIPAddress")
        and not scope.draft.fields.get("interfaceAddresses")
        and not any(scope.draft.is_true(condition) for condition in traces)
        and scope.harvester_cluster is None
    )


def _force_delete(scope: MachineScope) -> bool:
    """Abandon the objects on an unreadable Harvester if the user has set the annotation.

    Returns True after an Event that lists the abandoned objects, and False if Harvester can be
    read. Raises `Blocked` if Harvester cannot be read, and the annotation is absent or the outage
    may end soon.
    """
    delay = _outage_remaining(scope)
    blocked = _out_of_reach(scope) or scope.read_refusal()
    if blocked is None:
        return False

    problem = blocked.message
    if annotations_of(scope.obj).get(FORCE_DELETE_ANNOTATION) != "true":
        raise Blocked(
            blocked.condition,
            blocked.reason,
            f"{problem}; deletion is blocked. To delete without Harvester, set annotation"
            f' {FORCE_DELETE_ANNOTATION}: "true"; objects on Harvester are then left behind',
            Watched.SELF,
            *blocked.triggers,
            warn=True,
        )
    if delay:
        raise Blocked(
            blocked.condition,
            blocked.reason,
            f"{problem}; force-deleting the machine if that lasts {FORCE_DELETE_SECONDS:.0f} s",
            Watched.SELF,
            *blocked.triggers,
            Delay(delay),
        )

    vm = f"{scope.target_namespace}/{scope.name}" if scope.target_namespace else scope.name
    address = scope.draft.fields.get("allocatedIPAddress")
    pool = scope.draft.fields.get("allocatedPoolRef")
    reservation = f", address {address} in IPPool {pool}" if address else ""
    for address, (_, pool) in recorded_addresses(scope.draft.fields).items():
        reservation += f", address {address} in IPPool {pool}"
    released = describe_released(scope)
    reuse = f"; the VM may still use addresses that others can get from {released}"
    scope.warning_event(
        "ForcedDeletion",
        f"force-deleted because {problem}; may remain on Harvester: VirtualMachine {vm}, its disks "
        f"{scope.name}-disk-*, Secret {cloud_init_secret_name(scope.name)}{reservation}"
        f"{reuse if released else ''}; find it when Harvester answers again: "
        f"{remedies.LIST_LEFTOVERS}",
    )
    return True


def _outage_remaining(scope: MachineScope) -> float:
    """Return for how many more seconds Harvester must not answer until a deletion is forced."""
    outage = scope.memory.deletion.outage
    if scope.harvester_cluster is None:
        return 0.0  # a lost cluster does not return by itself

    session = scope.context.sessions.of(key_of(scope.harvester_cluster))
    if session and not session.error:
        outage.end()
        return 0.0
    return outage.remaining()


def _out_of_reach(scope: MachineScope) -> Blocked | None:
    """Return why Harvester is unreachable, None if it is reachable or that is not known yet."""
    outage = _connection_problem(scope)
    if outage is None:
        return None
    condition = ConditionType.VM_PROVISIONING_READY
    return Blocked(condition, outage.reason, outage.message, Watched.CONNECTION)


def _connection_problem(scope: MachineScope) -> Outage | None:
    """Explain why there is no connection to Harvester; None if there is one or it is not known."""
    reason = Reason.HARVESTER_CONNECTION_FAILED
    if scope.harvester_cluster is None:
        return Outage(reason, "the Cluster or its HarvesterCluster no longer exists")

    session = scope.context.sessions.of(key_of(scope.harvester_cluster))
    if session:
        return outage_of(session) if session.error else None
    # Without a session, the error of the cluster's attempt to connect is the reason.
    error = scope.context.memory.cluster(scope.harvester_cluster).connection_error
    return Outage(reason, f"the HarvesterCluster cannot connect ({error})") if error else None


async def _delete_secret(scope: MachineScope) -> None:
    """Delete the cloud-init Secret, unless it belongs to another owner."""
    client = scope.session().client
    name = cloud_init_secret_name(scope.name)
    try:
        # Another machine of the name may have its Secret there since this machine's was deleted.
        secret = await client.get(SECRETS, name, scope.target_namespace)
        if _owns_secret(scope, secret):
            await client.delete(SECRETS, name, scope.target_namespace, uid=uid_of(secret))
    except NotFound:
        return


def _owns_secret(scope: MachineScope, secret: Obj) -> bool:
    """Return whether a cloud-init Secret is deleted with the machine."""
    if ownership_of(secret, scope.owner) is not Ownership.FOREIGN:
        return True
    if has_former_owner(secret, scope.obj, scope.owner):
        return True
    # A VM that was deleted before it was adopted has the record of its former owner, and so has
    # its Secret.
    owner = recorded_owner(secret)
    return owner is not None and owner == scope.memory.deletion.vm_owner
