"""Decide who owns the VM with a machine's name, and adopt it without affecting the guest.

- A VM without a record but with the Go provider's mark is adopted: it gets the record, and nothing
  else changes.
- A VM that a user created by hand is not adopted without annotation `caphv.io/adopt`.
- A VM with the record of another owner is adopted only with proof. After a move or a restored
  backup, the machine's providerID or an annotation carries the VM's uid, or the VM carries the
  record that the machine had before `caphv restore` recreated it. In any other case, the user has
  to set the annotation.
"""

from __future__ import annotations

import contextlib
import random
import time
from enum import Enum

from caphv.api import names, resources
from caphv.api.guestparts import moved_from
from caphv.api.names import ConditionType, Reason
from caphv.api.object import (
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    Obj,
    annotations_of,
    dict_at,
    key_of,
    labels_of,
    text_at,
    uid_of,
)
from caphv.api.ownership import (
    Ownership,
    has_former_owner,
    names_vm,
    ownership_of,
    record,
    wants_adoption,
)
from caphv.api.virtualmachine import cloud_init_secret_name, is_machine_pvc
from caphv.runtime.errors import NotFound
from reconciler.blocked import Blocked
from reconciler.machine.addresses.entries import adopt_addresses
from reconciler.machine.labelling import label_patch
from reconciler.machine.scope import MachineScope, ProvisioningScope
from reconciler.machine.vmclaims import boot_claims
from reconciler.triggers import Watched

# After a migration from the Go provider, annotations are written on machines over so many seconds.
_SPREAD_SECONDS = 600.0


class VmOwner(Enum):
    """The owner of a VM with a machine's name; `owner_of_vm` decides."""

    MACHINE = "the machine"
    TENANT = "an object that exists in another namespace"
    OTHER = "another object"
    USER = "a user, who created it by hand"


def vm_lost(scope: MachineScope) -> Blocked:
    """Return the `Blocked` of a machine whose VM no longer exists."""
    step = "delete the Machine, or have a MachineHealthCheck replace it"
    # Another machine cannot join a control plane whose etcd is lost.
    if scope.control_plane:
        step = f"if other machines have its etcd, {step}; otherwise restore the VM from a backup"
    return Blocked(
        ConditionType.VM_PROVISIONING_READY,
        Reason.MACHINE_NOT_FOUND,
        f"VirtualMachine {scope.target_namespace}/{scope.name} no longer exists and will not be "
        f"recreated; {step}",
        Watched.VM,
        Watched.SELF,
        warn=True,
    )


def _other_vm(vm: Obj, owner: VmOwner) -> Blocked:
    """Return the `Blocked` of a machine whose VM is lost while another VM has its name."""
    deletion = "deletes" if owner is VmOwner.MACHINE else "keeps"
    return Blocked(
        ConditionType.VM_PROVISIONING_READY,
        Reason.MACHINE_NOT_FOUND,
        f"the VirtualMachine of this machine no longer exists, and {key_of(vm)} is another one of "
        f"its name; delete the Machine, which {deletion} that VM, or adopt the VM with annotation"
        f' {names.ADOPT_ANNOTATION}: "true"',
        Watched.VM,
        Watched.SELF,
        warn=True,
    )


def owner_of_vm(scope: MachineScope, vm: Obj) -> VmOwner:
    """Return the owner of the VM. Only a VM of the machine is deleted with it.

    A VM belongs to the machine if it has our record or the proof of a move or restore. Without any
    record, it does if the status or the user's annotation names it, or with the Go provider's mark.
    """
    if scope.context.belongs_to_another_tenant(vm, scope.owner):
        return VmOwner.TENANT

    # The proof of a move counts only before the first adoption. If the VM was ours and now has
    # another record, another management cluster has adopted it, and a machine left behind here must
    # neither take the VM back nor delete it.
    recorded_uid = _recorded_uid(scope)
    was_ours = recorded_uid == uid_of(vm)
    if not was_ours and (
        has_former_owner(vm, scope.obj, scope.owner) or names_vm(scope.obj, vm, scope.owner)
    ):
        return VmOwner.MACHINE

    ownership = ownership_of(vm, scope.owner)
    if ownership is not Ownership.UNRECORDED:
        return VmOwner.MACHINE if ownership is Ownership.OURS else VmOwner.OTHER
    if was_ours or wants_adoption(scope.obj):
        return VmOwner.MACHINE

    # The Go provider's mark proves nothing once the machine had another VM, because a VM that
    # Harvester restored from an old backup has the mark, too.
    return VmOwner.MACHINE if not recorded_uid and _has_go_mark(vm) else VmOwner.USER


def is_another_vm(scope: MachineScope, vm: Obj) -> bool:
    """Return whether the status names a VM that no longer exists, because this one has its name."""
    return _recorded_uid(scope) not in ("", uid_of(vm))


def _has_go_mark(vm: Obj) -> bool:
    annotations = dict_at(vm, "spec", "template", "metadata", "annotations")
    return names.MACHINE_TYPE_LABEL in annotations or names.MACHINE_TYPE_LABEL in labels_of(vm)


async def adopt_or_refuse(scope: ProvisioningScope, vm: Obj) -> Obj:
    """Return the VM with our record, after adopting it, its disks, Secret and address if needed.

    Raises `Blocked` if the VM belongs to another owner or is not the previous VM.
    """
    adopts = wants_adoption(scope.obj)
    _require_adoptable(scope, vm, adopts=adopts)
    vm = await _ensure_record(scope, vm)
    if adopts:
        await _complete_adoption(scope, vm)
    return vm


def _require_adoptable(scope: MachineScope, vm: Obj, *, adopts: bool) -> None:
    """Raise `Blocked` unless the VM belongs to the machine.

    :param adopts: whether the user adopts the VM with the annotation
    """
    owner = owner_of_vm(scope, vm)
    if owner is VmOwner.TENANT:
        raise scope.failure(
            f"VirtualMachine {key_of(vm)} exists on Harvester and belongs to "
            f"{annotations_of(vm)[names.OWNER_ANNOTATION]}, which exists in another namespace; "
            "rename this machine, or use another targetNamespace for its cluster",
            Watched.VM,
        )
    if adopts:
        return

    if is_another_vm(scope, vm):
        raise _other_vm(vm, owner)
    if owner is VmOwner.OTHER:
        name = annotations_of(vm).get(names.OWNER_ANNOTATION, "another owner")
        raise scope.failure(
            f"VirtualMachine {key_of(vm)} exists on Harvester and belongs to {name}; rename this "
            "machine, use another targetNamespace for its cluster, or adopt the VM with annotation"
            f' {names.ADOPT_ANNOTATION}: "true"',
            Watched.VM,
        )
    if owner is VmOwner.USER:
        raise scope.failure(
            f"VirtualMachine {key_of(vm)} exists on Harvester, and this provider did not create "
            "it; rename this machine, or adopt the VM with annotation "
            f'{names.ADOPT_ANNOTATION}: "true"',
            Watched.VM,
        )


async def _ensure_record(scope: ProvisioningScope, vm: Obj) -> Obj:
    """Write our record on the VM and its belongings, unless they carry it already."""
    new_record = record(scope.owner)
    old_record = {name: value for name, value in annotations_of(vm).items() if name in new_record}
    if old_record == new_record:
        return vm
    if old_record:
        await _adopt_belongings(scope, await complete_vm(scope, vm), old_record)

    # Patch the VM last, because the steps before depend on its old record. Annotations and labels
    # restart nothing.
    patch = label_patch(scope, vm)
    patch["metadata"] = {
        **patch.get("metadata", {}),
        "resourceVersion": vm["metadata"]["resourceVersion"],
        "annotations": {**new_record, **moved_from(vm, scope.owner, wants_adoption(scope.obj))},
    }
    adopted = await scope.session().client.patch(
        resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace, patch
    )
    scope.namespace().vms.observe(adopted)
    scope.event("VMAdopted", f"adopted VirtualMachine {key_of(adopted)}")
    return adopted


async def _complete_adoption(scope: MachineScope, vm: Obj) -> None:
    """Write the VM's uid to the status, then remove the user's annotation."""
    # If the annotation stayed on machines of two management clusters, they would adopt the VM from
    # each other forever.
    scope.draft.fields["virtualMachine"] = {"uid": uid_of(vm)}
    informer = scope.context.caches.harvester_machines
    await scope.context.write_status(informer, scope.obj, scope.draft)

    proof = vm_proof(str(scope.spec.get("providerID") or ""), vm)
    await scope.patch({"metadata": {"annotations": {names.ADOPT_ANNOTATION: None, **proof}}})


def vm_proof(provider_id: str, vm: Obj) -> dict[str, str]:
    """Return annotations by which a machine carries the uid of its VM; see `names_vm`.

    :param provider_id: the machine's providerID. If it carries the uid, no annotation is needed
    """
    if not provider_id or provider_id == f"{names.PROVIDER_ID_PREFIX}{uid_of(vm)}":
        return {}
    return {names.VM_UID_ANNOTATION: uid_of(vm)}


async def ensure_vm_proof(scope: MachineScope, vm: Obj) -> None:
    """Write the annotation of `vm_proof` on a machine of the Go provider.

    Such a machine may keep the providerID of a lost VM.
    """
    if names_vm(scope.obj, vm, scope.owner):
        return

    current_time = time.monotonic()
    # After a migration all machines need the annotation, so the writes are spread over time.
    if scope.memory.proof_due is None:
        scope.memory.proof_due = current_time + random.uniform(0.0, _SPREAD_SECONDS)
    delay = scope.memory.proof_due - current_time
    if delay > 0:
        scope.requeue_in(delay)
        return
    await scope.patch({"metadata": {"annotations": vm_proof(str(scope.spec["providerID"]), vm)}})


async def complete_vm(scope: MachineScope, vm: Obj) -> Obj:
    """Return all fields of a VM. Raises `NotFound` if another VM replaced it meanwhile."""
    # Caches keep few fields of a VM without this management cluster's record.
    if annotations_of(vm).get(names.OWNER_CLUSTER_ANNOTATION) == scope.owner.management_cluster:
        return vm

    complete = await scope.session().client.get(
        resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace
    )
    if uid_of(complete) != uid_of(vm):
        message = f"VirtualMachine {key_of(vm)} was replaced by another one of its name"
        raise NotFound(404, "NotFound", message)
    return complete


def _recorded_uid(scope: MachineScope) -> str:
    """Return the uid of the VM in the status, empty for none."""
    return text_at(scope.draft.fields, "virtualMachine", "uid")


async def _adopt_belongings(scope: MachineScope, vm: Obj, old_record: dict[str, str]) -> None:
    """Adopt disks, cloud-init Secret and address with the record of the VM's former owner.

    Raises `Conflict` if the Secret is modified concurrently. The VM still has its old record then,
    so the retry repeats all steps.
    """
    client = scope.session().client
    namespace = scope.namespace()
    # A disk of a restored backup does not have the name of a machine's disk, but the VM lists it.
    listed = boot_claims(vm)
    for claim in namespace.claims.store:
        name = claim["metadata"]["name"]
        is_disk = name in listed or is_machine_pvc(scope.name, name)
        if is_disk and old_record.items() <= annotations_of(claim).items():
            patch = _record_patch(scope, claim)
            namespace.claims.observe(
                await client.patch(PERSISTENT_VOLUME_CLAIMS, name, scope.target_namespace, patch)
            )

    with contextlib.suppress(NotFound):
        name = cloud_init_secret_name(scope.name)
        secret = await client.get(SECRETS, name, scope.target_namespace)
        if old_record.items() <= annotations_of(secret).items():
            patch = _record_patch(scope, secret)
            await client.patch(SECRETS, name, scope.target_namespace, patch)
    await adopt_addresses(scope, old_record.get(names.OWNER_CLUSTER_ANNOTATION, ""))


def _record_patch(scope: MachineScope, obj: Obj) -> Obj:
    """Return the patch that writes our record on an object that has not changed meanwhile."""
    version = obj["metadata"]["resourceVersion"]
    return {"metadata": {"annotations": record(scope.owner), "resourceVersion": version}}
