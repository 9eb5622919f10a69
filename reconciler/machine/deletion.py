"""Deletes a machine: VM, disks, cloud-init Secret, address, finalizer, each verified before the next."""

from __future__ import annotations

import time

from caphv.api import names, resources
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SECRETS, Obj, annotations_of, being_deleted, key_of
from caphv.runtime.errors import ApiError, Conflict, Invalid, NotFound, Unreachable
from reconciler import metrics
from reconciler.harvester.ownership import Ownership, ownership_of
from reconciler.harvester.views import TargetNamespace
from reconciler.machine.adoption import complete_vm, owns_vm
from reconciler.machine.cloudinit import secret_name
from reconciler.machine.etcd import ensure_member_removed
from reconciler.machine.ipaddress import release_address
from reconciler.machine.scope import MachineScope
from reconciler.machine.vm import is_machine_pvc
from reconciler.machine.volumes import claims_of, deletion_list, listed_claims, own_claims, without
from reconciler.status import Blocked
from reconciler.triggers import Delay, Trigger, Watched

# Seconds that Harvester gets to delete the disks that it should delete with a VM.
_HARVESTER_DELETES = 5.0
# Seconds that KubeVirt gets to remove its finalizer from a VM that has stopped.
_KUBEVIRT_FINISHES = 2.0
# Seconds after which finalizers of a VM that has stopped are reported.
_FINALIZERS_LAST = 10.0
# Who removes a finalizer, and what runs it.
_FINALIZERS = {
    "kubevirt.io/virtualMachineControllerFinalize": "KubeVirt: check Deployment virt-controller",
    "wrangler.cattle.io/VMController.CleanupPVCAndSnapshot": "Harvester: check Deployment harvester",
    "wrangler.cattle.io/harvester-lb-vm-controller": (
        "Harvester's load balancer controller: check Deployment harvester-load-balancer"
    ),
}


async def delete_machine(scope: MachineScope) -> None:
    """Delete everything on Harvester. Raises `Blocked` while something of the machine exists, or may exist."""
    if _never_provisioned(scope) or _force_delete(scope):
        return
    namespace = scope.current_namespace()
    vm = namespace.vms.get(scope.target_namespace, scope.name)
    if vm is None and scope.memory.vm_deleted_at is None:
        vm = await scope.live_vm()
    ours = vm is None or owns_vm(scope, vm)
    await ensure_member_removed(scope)
    if vm is not None and ours:
        await _delete_vm(scope, namespace, vm)
    if namespace.instances.get(scope.target_namespace, scope.name) and ours:
        raise scope.in_progress(f"waiting for VirtualMachineInstance {scope.name} on Harvester to stop", Watched.VM)
    await _delete_disks(scope, namespace, ours=ours)
    if ours:
        await _delete_secret(scope)
    scope.current_namespace()  # again: Harvester may have become unreachable meanwhile
    await release_address(scope, foreign_vm=not ours)


def _never_provisioned(scope: MachineScope) -> bool:
    """Whether nothing was ever created on Harvester."""
    touched = (names.ConditionType.MACHINE_CREATED, names.ConditionType.VM_IP_ALLOCATED)
    return (
        not scope.spec.get("providerID")
        and not scope.draft.fields.get("allocatedIPAddress")
        and not any(scope.draft.is_true(condition) for condition in touched)
        and scope.harvester_cluster is None
    )


def _force_delete(scope: MachineScope) -> bool:
    """Whether the user force-deletes a machine whose Harvester cannot be read. Raises `Blocked` if not."""
    blocked = _out_of_reach(scope) or scope.refused()
    if blocked is None:
        return False
    why = blocked.message
    if annotations_of(scope.obj).get(names.FORCE_DELETE_ANNOTATION) != "true":
        raise Blocked(
            blocked.condition,
            blocked.reason,
            f"{why}; deletion is blocked. To delete without Harvester, set annotation {names.FORCE_DELETE_ANNOTATION}: "
            '"true"; objects on Harvester are then left behind',
            Watched.SELF,
            *blocked.triggers,
        )
    place = f"{scope.target_namespace}/{scope.name}" if scope.target_namespace else scope.name
    address, pool = (scope.draft.fields.get(name) for name in ("allocatedIPAddress", "allocatedPoolRef"))
    reserved = f", address {address} in IPPool {pool}" if address else ""
    scope.warning_event(
        "ForcedDeletion",
        f"force-deleted because {why}; may remain on Harvester: VirtualMachine {place}, its disks "
        f"{scope.name}-disk-*, Secret {secret_name(scope.name)}{reserved}",
    )
    return True


def _out_of_reach(scope: MachineScope) -> Blocked | None:
    """Why Harvester is unreachable, None if it is reachable or not yet known."""
    why = _failure(scope)
    condition, reason = names.ConditionType.VM_PROVISIONING_READY, names.Reason.HARVESTER_CONNECTION_FAILED
    return Blocked(condition, reason, why, Watched.CONNECTION) if why else None


def _failure(scope: MachineScope) -> str:
    if scope.harvester_cluster is None:
        return "the Cluster or its HarvesterCluster no longer exists"
    session = scope.context.sessions.of(key_of(scope.harvester_cluster))
    if session and session.error:
        how = "rejects the credentials" if session.unauthorized else "does not answer"
        return f"Harvester at {session.server} {how}"
    error = scope.context.memory.cluster(scope.harvester_cluster).connection_error
    return f"the HarvesterCluster cannot connect ({error})" if session is None and error else ""


async def _delete_vm(scope: MachineScope, namespace: TargetNamespace, vm: Obj) -> None:
    """Delete the VM, and wait until it is deleted. Returns if it already is."""
    try:
        vm = await complete_vm(scope, vm)
        if being_deleted(vm):
            await _release_volumes(scope, namespace, vm)
            await _halt_stopped(scope, namespace, vm)
        elif await _ask_deletion(scope, namespace, vm):
            return
    except NotFound:
        namespace.vms.forget(scope.target_namespace, scope.name)
        return
    except (ApiError, Unreachable) as error:
        metrics.MACHINE_DELETE_ERRORS.inc()
        if not isinstance(error, Conflict):
            scope.warning_event("VMDeletionFailed", f"cannot delete VirtualMachine {scope.name}: {error}")
        raise
    raise _leaving(scope, namespace, vm)


async def _ask_deletion(scope: MachineScope, namespace: TargetNamespace, vm: Obj) -> bool:
    """Delete the VM with its disks; whether it is deleted at once."""
    own = _own_claims(scope, namespace, vm)
    metrics.MACHINE_DELETE.inc()
    await _list_for_deletion(scope, vm, own)
    answer = await scope.session().client.delete(
        resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace, uid=vm["metadata"]["uid"]
    )
    scope.memory.vm_deleted_at = time.monotonic()
    if namespace.vms.deleted(scope.target_namespace, scope.name, answer):
        return True
    kept = ", ".join(sorted(claims_of(vm).difference(own)))
    keeps = f"; kept, because not the machine's or in use elsewhere: {kept}" if kept else ""
    scope.event("VMDeletionStarted", f"deleting VirtualMachine {scope.target_namespace}/{scope.name}{keeps}")
    return False


async def _list_for_deletion(scope: MachineScope, vm: Obj, own: list[str]) -> None:
    """Have Harvester delete the machine's disks with the VM. Raises `Invalid` if it would delete other volumes.

    Harvester refuses any update of a VM that shares a volume with another VM, or whose network no longer exists. Such
    a VM is deleted without its disks, which are deleted after it.
    """
    if listed_claims(vm) == set(own):
        return
    try:
        patch = {"metadata": deletion_list(own)}
        await scope.session().client.patch(resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace, patch)
    except Invalid:
        if not listed_claims(vm) <= set(own):
            raise


async def _release_volumes(scope: MachineScope, namespace: TargetNamespace, vm: Obj) -> None:
    """Remove volumes that another VM has, too, from a VM that is being deleted and has stopped.

    Harvester refuses each update of such a VM, also that which removes its finalizers, so it would stay forever
    (harvester#5515). Volumes of a running VM are left alone: the guest writes to them until it has stopped.
    """
    if namespace.instances.get(scope.target_namespace, scope.name):
        return
    shared = _claims_of_others(scope, namespace) & (claims_of(vm) | listed_claims(vm))
    if shared:
        metadata = deletion_list(_own_claims(scope, namespace, vm))
        # The lists replace those on Harvester.
        metadata["resourceVersion"] = vm["metadata"]["resourceVersion"]
        patch = {"metadata": metadata, "spec": without(vm, shared)}
        answer = await scope.session().client.patch(
            resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace, patch
        )
        namespace.vms.observe(answer)


async def _halt_stopped(scope: MachineScope, namespace: TargetNamespace, vm: Obj) -> None:
    """Halt a VM that is being deleted, and stays although its instance has stopped.

    Harvester checks the quota of the namespace at each update of a VM that has no Pod, unless the VM is Halted. Over a
    full quota, it thereby refuses to let KubeVirt remove its finalizer, and the VM would stay until there is room.
    """
    spec = vm["spec"]
    halted = spec.get("runStrategy") == "Halted" or spec.get("running") is False
    if halted or namespace.instances.get(scope.target_namespace, scope.name):
        return

    now = time.monotonic()
    scope.memory.vm_stopped_at = scope.memory.vm_stopped_at or now
    patience = scope.memory.vm_stopped_at + _KUBEVIRT_FINISHES - now
    if patience > 0:
        raise scope.in_progress(_vm_stays(scope), Delay(patience))

    # The two fields exclude each other.
    stop = {"running": False} if "running" in spec else {"runStrategy": "Halted"}
    patch = {"metadata": {"resourceVersion": vm["metadata"]["resourceVersion"]}, "spec": stop}
    answer = await scope.session().client.patch(resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace, patch)
    namespace.vms.observe(answer)


def _leaving(scope: MachineScope, namespace: TargetNamespace, vm: Obj) -> Blocked:
    """Return what the deletion of the VM waits for: some time after its instance has stopped, its finalizers.

    Since Harvester 1.8 every VM has one of the load balancer controller, and stays while that does not run.
    """
    if not being_deleted(vm) or namespace.instances.get(scope.target_namespace, scope.name):
        return scope.in_progress(_vm_stays(scope), Watched.VM)

    now = time.monotonic()
    scope.memory.vm_stopped_at = scope.memory.vm_stopped_at or now
    patience = scope.memory.vm_stopped_at + _FINALIZERS_LAST - now
    if patience > 0:
        return scope.in_progress(_vm_stays(scope), Delay(patience))

    finalizers = vm["metadata"].get("finalizers") or ()
    why = "; ".join(
        f"finalizer {name} is removed by {_FINALIZERS.get(name, 'another controller')}" for name in finalizers
    )
    return scope.in_progress(f"{_vm_stays(scope)}: {why}", Watched.VM)


def _vm_stays(scope: MachineScope) -> str:
    return f"waiting for VirtualMachine {scope.name} on Harvester to be deleted"


def _own_claims(scope: MachineScope, namespace: TargetNamespace, vm: Obj) -> list[str]:
    """The machine's own claims that no other VM has: Harvester deletes none in use, and keeps the VM then."""
    claims = {claim["metadata"]["name"]: claim for claim in namespace.claims.store}
    own = own_claims(vm, claims, scope.owner, _number_of_disks(scope))
    others = _claims_of_others(scope, namespace)
    return [name for name in own if name not in others]


def _claims_of_others(scope: MachineScope, namespace: TargetNamespace, *, ours: bool = True) -> set[str]:
    """Names of the claims that other VMs in the namespace use; the VM of the machine's name is one unless `ours`."""
    return claims_of(*(vm for vm in namespace.vms.store if not ours or vm["metadata"]["name"] != scope.name))


def _number_of_disks(scope: MachineScope) -> int:
    return len(scope.spec.get("volumes") or ())


async def _delete_disks(scope: MachineScope, namespace: TargetNamespace, *, ours: bool) -> None:
    """Delete disks that Harvester left, for example because another client had deleted the VM."""
    left = [claim for claim in namespace.claims.store if _is_disk_left(scope, claim, ours=ours)]
    if left:
        # Harvester refuses to delete what another VM has.
        others = _claims_of_others(scope, namespace, ours=ours)
        left = [claim for claim in left if claim["metadata"]["name"] not in others]
    deleted_at = scope.memory.vm_deleted_at
    if left and deleted_at is not None and time.monotonic() - deleted_at < _HARVESTER_DELETES:
        # Harvester is deleting the disks with the VM.
        raise _disks_left(scope, left, Delay(_HARVESTER_DELETES))
    for claim in left:
        name = claim["metadata"]["name"]
        if being_deleted(claim):
            continue
        try:
            answer = await scope.session().client.delete(
                PERSISTENT_VOLUME_CLAIMS, name, scope.target_namespace, uid=claim["metadata"]["uid"]
            )
            namespace.claims.deleted(scope.target_namespace, name, answer)
        except NotFound:
            namespace.claims.forget(scope.target_namespace, name)
    left = [claim for claim in left if namespace.claims.get(scope.target_namespace, claim["metadata"]["name"])]
    if left:
        raise _disks_left(scope, left, Watched.VM)


def _is_disk_left(scope: MachineScope, claim: Obj, *, ours: bool) -> bool:
    name = claim["metadata"]["name"]
    ownership = ownership_of(claim, scope.owner)
    if ownership is Ownership.UNRECORDED:
        # Created by the Go provider; or a disk of another VM of this name, or one that a user added to the VM.
        return ours and is_machine_pvc(scope.name, name, _number_of_disks(scope))
    return ownership is Ownership.OURS and is_machine_pvc(scope.name, name)


def _disks_left(scope: MachineScope, left: list[Obj], source: Trigger) -> Blocked:
    names_left = ", ".join(claim["metadata"]["name"] for claim in left)
    return scope.in_progress(f"waiting for disks on Harvester to be deleted: {names_left}", source)


async def _delete_secret(scope: MachineScope) -> None:
    client, name = scope.session().client, secret_name(scope.name)
    try:
        if scope.memory.vm_deleted_at is not None:
            # The VM that used it was ours, and so is the Secret.
            await client.delete(SECRETS, name, scope.target_namespace)
            return
        secret = await client.get(SECRETS, name, scope.target_namespace)
        if ownership_of(secret, scope.owner) is not Ownership.FOREIGN:
            await client.delete(SECRETS, name, scope.target_namespace, uid=secret["metadata"]["uid"])
    except NotFound:
        return
