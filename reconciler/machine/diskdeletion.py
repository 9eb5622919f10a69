"""Decide which disks are deleted with a machine's VM, and delete disks that Harvester leaves."""

from __future__ import annotations

import time

from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, Obj, being_deleted
from caphv.api.ownership import Ownership, ownership_of
from caphv.api.virtualmachine import claims_of, is_machine_pvc
from caphv.runtime.errors import NotFound
from reconciler.blocked import Blocked
from reconciler.harvester.views import TargetNamespace
from reconciler.machine.scope import MachineScope
from reconciler.machine.vmclaims import own_claims
from reconciler.triggers import Delay, Trigger, Watched

# Harvester gets so many seconds after a VM to delete the disks that it should delete with it.
_DELETION_SECONDS = 5.0
# The finalizers of disks are reported so many seconds after the VM was found to be deleted.
_FINALIZER_SECONDS = 15.0
_WAITING = "waiting for disks on Harvester to be deleted"
# The snapshotter keeps a claim until its snapshot is complete or deleted (external-snapshotter
# v8.5.0, `isPVCBeingUsed` in pkg/common-controller/snapshot_controller.go). Harvester deletes the
# snapshot of a backup only after the backup, which needs the backup target.
_SNAPSHOT_FINALIZER = "snapshot.storage.kubernetes.io/pvc-as-source-protection"
_PROTECTION_FINALIZER = "kubernetes.io/pvc-protection"


def claims_to_delete(scope: MachineScope, namespace: TargetNamespace, vm: Obj) -> list[str]:
    """Return the machine's own claims that no other VM uses."""
    # Harvester does not delete a claim that another VM uses, and would keep this VM, too.
    claims = {claim["metadata"]["name"]: claim for claim in namespace.claims.store}
    others = claims_of_others(scope, namespace)
    machine_claims = own_claims(vm, claims, scope.owner, _number_of_disks(scope))
    return [name for name in machine_claims if name not in others]


def claims_of_others(
    scope: MachineScope, namespace: TargetNamespace, *, is_ours: bool = True
) -> set[str]:
    """Return the names of the claims that other VMs in the namespace use.

    :param is_ours: whether the VM with the machine's name belongs to the machine and does not count
    """
    others = [
        vm for vm in namespace.vms.store if not is_ours or vm["metadata"]["name"] != scope.name
    ]
    return claims_of(*others)


def _number_of_disks(scope: MachineScope) -> int:
    return len(scope.spec.get("volumes") or ())


async def delete_disks(scope: MachineScope, namespace: TargetNamespace, *, is_ours: bool) -> None:
    """Delete disks that Harvester left, for example because another client had deleted the VM.

    The machine's VM and its instance must be deleted before. Raises `Blocked` until the disks are
    deleted, or kept by nothing but a snapshot.

    :param is_ours: whether the VM with the machine's name, if it exists, belongs to the machine
    """
    disks = [
        claim for claim in namespace.claims.store if _is_leftover(scope, claim, is_ours=is_ours)
    ]
    if not disks:
        return  # usual case; the check below reads the claims of all VMs in the namespace

    # Harvester refuses to delete disks that another VM uses.
    others = claims_of_others(scope, namespace, is_ours=is_ours)
    disks = [claim for claim in disks if claim["metadata"]["name"] not in others]

    # The guest may have taken minutes to shut down, and Harvester deletes the disks after the VM.
    waited = _seconds_without_vm(scope)
    patience = _DELETION_SECONDS - waited
    if disks and scope.memory.deletion.vm_deletion_requested and patience > 0:
        # Harvester is deleting the disks with the VM, and a second request would gain nothing.
        raise _waiting_for_disks(scope, disks, Watched.VM, Delay(patience))

    for claim in disks:
        if not being_deleted(claim):
            await _delete_disk(scope, namespace, claim)
    cached = (
        namespace.claims.get(scope.target_namespace, claim["metadata"]["name"]) for claim in disks
    )
    remaining = [claim for claim in cached if claim]
    if not remaining:
        return
    patience = _FINALIZER_SECONDS - waited
    if patience > 0:
        raise _waiting_for_disks(scope, remaining, Watched.VM, Delay(patience))
    blocking = [claim for claim in remaining if not is_kept_by_snapshot(claim)]
    if blocking:
        raise _disks_remain(scope, blocking)

    disk_names = ", ".join(claim["metadata"]["name"] for claim in remaining)
    scope.warning_event(
        "DisksKept",
        f"deletion continues without disks {disk_names}: Harvester deletes them when a snapshot of "
        "them is complete or deleted; see VirtualMachineBackups and VolumeSnapshots in namespace "
        f"{scope.target_namespace}",
    )


def _seconds_without_vm(scope: MachineScope) -> float:
    """Return for how many seconds VM and instance are known to be deleted."""
    current_time = time.monotonic()
    if scope.memory.deletion.vm_absent_since is None:
        scope.memory.deletion.vm_absent_since = current_time
    return current_time - scope.memory.deletion.vm_absent_since


def is_kept_by_snapshot(claim: Obj) -> bool:
    """Return whether a claim is being deleted, and remains only until the end of a snapshot.

    Nothing has to be done for it, and the end of the snapshot may depend on a backup target that
    does not answer.
    """
    if not being_deleted(claim):
        return False
    finalizers = set(claim["metadata"].get("finalizers") or ())
    others = finalizers - {_SNAPSHOT_FINALIZER, _PROTECTION_FINALIZER}
    return _SNAPSHOT_FINALIZER in finalizers and not others


async def _delete_disk(scope: MachineScope, namespace: TargetNamespace, claim: Obj) -> None:
    """Delete a claim on Harvester, and remove it from the cache if it is deleted at once."""
    name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
    try:
        answer = await scope.session().client.delete(
            PERSISTENT_VOLUME_CLAIMS, name, scope.target_namespace, uid=uid
        )
        namespace.claims.observe_deletion(scope.target_namespace, name, answer)
    except NotFound:
        namespace.claims.forget(scope.target_namespace, name)


def _is_leftover(scope: MachineScope, claim: Obj, *, is_ours: bool) -> bool:
    """Return whether a claim is a disk of the machine that Harvester did not delete."""
    name = claim["metadata"]["name"]
    ownership = ownership_of(claim, scope.owner)
    if ownership is Ownership.UNRECORDED:
        # The Go provider has created the claim, or it is a disk of another VM with this name, or a
        # user has added it to the VM.
        return is_ours and is_machine_pvc(scope.name, name, _number_of_disks(scope))
    return ownership is Ownership.OURS and is_machine_pvc(scope.name, name)


def _waiting_for_disks(
    scope: MachineScope, disks: list[Obj], source: Trigger, *others: Trigger
) -> Blocked:
    disk_names = ", ".join(claim["metadata"]["name"] for claim in disks)
    return scope.in_progress(f"{_WAITING}: {disk_names}", source, *others)


def _disks_remain(scope: MachineScope, disks: list[Obj]) -> Blocked:
    """Return the `Blocked` of a deletion that waits for what holds disks, by their finalizers."""
    held = {
        claim["metadata"]["name"]: ", ".join(claim["metadata"].get("finalizers") or ())
        for claim in disks
    }
    described = (f"{name} (finalizer {by})" if by else name for name, by in held.items())
    step = "; see on Harvester who uses it" if any(held.values()) else ""
    message = f"{_WAITING}: {', '.join(described)}{step}"
    return scope.in_progress(message, Watched.VM, warn=any(held.values()))
