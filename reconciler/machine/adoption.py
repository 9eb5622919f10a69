"""Decides who owns the VM with a machine's name, and adopts it without affecting the guest.

A VM without a record but with the Go provider's mark is adopted: it gets the record, and nothing else changes. A VM
that a user created by hand is not adopted without annotation `caphv.io/adopt`. A VM with the record of another owner is
adopted only with proof: after a move or a restored backup, the machine's providerID or an annotation carries the VM's
uid, or the record is that of the machine before `caphv restore` created it again; in any other case, the user has to
set the annotation.
"""

from __future__ import annotations

import contextlib
import random
import time

from caphv.api import names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SECRETS, Obj, annotations_of, key_of, labels_of, uid_of
from caphv.runtime.errors import NotFound
from reconciler.harvester.ownership import Ownership, formerly_owned, names_vm, ownership_of, record, wants_adoption
from reconciler.machine.cloudinit import secret_name
from reconciler.machine.disks import is_machine_pvc
from reconciler.machine.ipaddress import adopt_address
from reconciler.machine.labelling import label_patch
from reconciler.machine.scope import MachineScope
from reconciler.machine.volumes import boot_claims
from reconciler.status import Blocked
from reconciler.triggers import Watched

# Seconds over which annotations are written on machines of an earlier version.
_SPREAD = 600.0


def vm_lost(scope: MachineScope) -> Blocked:
    """The VM of the machine no longer exists."""
    return Blocked(
        ConditionType.VM_PROVISIONING_READY,
        Reason.MACHINE_NOT_FOUND,
        f"VirtualMachine {scope.target_namespace}/{scope.name} no longer exists and will not be recreated; "
        "delete the Machine, or have a MachineHealthCheck replace it",
        Watched.VM,
        Watched.SELF,
        warn=True,
    )


def _vm_replaced(scope: MachineScope, vm: Obj) -> Blocked:
    """The VM of the machine no longer exists, and another one has its name."""
    deletion = "deletes" if owns_vm(scope, vm) else "keeps"
    return Blocked(
        ConditionType.VM_PROVISIONING_READY,
        Reason.MACHINE_NOT_FOUND,
        f"the VirtualMachine of this machine no longer exists, and {key_of(vm)} is another one of its name; delete the "
        f'Machine, which {deletion} that VM, or adopt the VM with annotation {names.ADOPT_ANNOTATION}: "true"',
        Watched.VM,
        Watched.SELF,
        warn=True,
    )


def vm_ownership(scope: MachineScope, vm: Obj) -> Ownership:
    """Ownership of the VM. What proves a move proves nothing once the VM was ours and has another record now.

    Otherwise a machine left behind on a former management cluster would take the VM back, or delete it.
    """
    if scope.context.belongs_to_another_tenant(vm, scope.owner):
        return Ownership.FOREIGN
    known = _known_uid(scope) == uid_of(vm)
    if not known and (formerly_owned(vm, scope.obj, scope.owner) or names_vm(scope.obj, vm, scope.owner)):
        return Ownership.OURS
    return ownership_of(vm, scope.owner)


async def adopt_or_refuse(scope: MachineScope, vm: Obj) -> Obj:
    """Return the VM with our record. Raises `Blocked` if it belongs to another owner or is not the previous VM."""
    if scope.context.belongs_to_another_tenant(vm, scope.owner):
        raise scope.failed(
            f"VirtualMachine {key_of(vm)} exists on Harvester and belongs to "
            f"{annotations_of(vm)[names.OWNER_ANNOTATION]}, which exists in another namespace; rename this machine, or "
            "use another targetNamespace for its cluster",
            Watched.VM,
        )
    adopt = wants_adoption(scope.obj)
    if _known_uid(scope) not in ("", uid_of(vm)) and not adopt:
        raise _vm_replaced(scope, vm)
    if vm_ownership(scope, vm) is Ownership.FOREIGN and not adopt:
        owner = annotations_of(vm).get(names.OWNER_ANNOTATION, "another owner")
        raise scope.failed(
            f"VirtualMachine {key_of(vm)} exists on Harvester and belongs to {owner}; rename this machine, use another "
            f'targetNamespace for its cluster, or adopt the VM with annotation {names.ADOPT_ANNOTATION}: "true"',
            Watched.VM,
        )
    if not adopt and not _has_known_origin(scope, vm):
        raise scope.failed(
            f"VirtualMachine {key_of(vm)} exists on Harvester, and this provider did not create it; rename this "
            f'machine, or adopt the VM with annotation {names.ADOPT_ANNOTATION}: "true"',
            Watched.VM,
        )
    wanted = record(scope.owner)
    before = {name: value for name, value in annotations_of(vm).items() if name in wanted}
    if before != wanted:
        if before:
            await _adopt_belongings(scope, await complete_vm(scope, vm), before)
        # Last, because the steps before depend on the VM's old record. Annotations and labels restart nothing.
        patch = label_patch(scope, vm)
        version = vm["metadata"]["resourceVersion"]
        patch["metadata"] = {**patch.get("metadata", {}), "resourceVersion": version, "annotations": wanted}
        client = scope.session().client
        vm = await client.patch(resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace, patch)
        scope.namespace().vms.observe(vm)
        scope.event("VMAdopted", f"adopted VirtualMachine {key_of(vm)}")
    if adopt:
        scope.draft.fields["virtualMachine"] = {"uid": uid_of(vm)}
        await scope.context.write_status(scope.context.caches.harvester_machines, scope.obj, scope.draft)
        # Once: otherwise two management clusters with the annotation would adopt the VM from each other forever.
        annotations = vm_proof(str(scope.spec.get("providerID") or ""), vm)
        await scope.patch({"metadata": {"annotations": {names.ADOPT_ANNOTATION: None, **annotations}}})
    return vm


def vm_proof(provider_id: str, vm: Obj) -> dict[str, str]:
    """Annotations by which a machine with this providerID carries the uid of its VM; see `names_vm`."""
    carried = not provider_id or provider_id == f"{names.PROVIDER_ID_PREFIX}{uid_of(vm)}"
    return {} if carried else {names.VM_UID_ANNOTATION: uid_of(vm)}


async def ensure_vm_proof(scope: MachineScope, vm: Obj) -> None:
    """Write the annotation of `vm_proof` on a machine of 0.11. An upgrade spreads these writes over time."""
    if names_vm(scope.obj, vm, scope.owner):
        return
    now = time.monotonic()
    if scope.memory.proof_due is None:
        scope.memory.proof_due = now + random.uniform(0.0, _SPREAD)
    left = scope.memory.proof_due - now
    if left > 0:
        scope.requeue_in(left)
        return
    await scope.patch({"metadata": {"annotations": vm_proof(str(scope.spec["providerID"]), vm)}})


async def complete_vm(scope: MachineScope, vm: Obj) -> Obj:
    """All fields of a VM: of one without this management cluster's record, caches keep few. Raises `NotFound`."""
    if annotations_of(vm).get(names.OWNER_CLUSTER_ANNOTATION) == scope.owner.management_cluster:
        return vm
    complete = await scope.session().client.get(resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace)
    if uid_of(complete) != uid_of(vm):
        raise NotFound(404, "NotFound", f"VirtualMachine {key_of(vm)} was replaced by another one of its name")
    return complete


def owns_vm(scope: MachineScope, vm: Obj) -> bool:
    """Whether the VM is deleted with the machine."""
    return vm_ownership(scope, vm) is not Ownership.FOREIGN and _has_known_origin(scope, vm)


def _has_known_origin(scope: MachineScope, vm: Obj) -> bool:
    """Whether the VM has our record, is known to be the machine's, or has the Go provider's mark.

    A VM that a user created by hand would later be deleted with its disks. The mark proves nothing once the machine had
    another VM: one that Harvester restored from an old backup has it, too.
    """
    if vm_ownership(scope, vm) is Ownership.OURS or _known_uid(scope) == uid_of(vm):
        return True
    if wants_adoption(scope.obj):
        return True
    if _known_uid(scope):
        return False
    template = (vm["spec"].get("template") or {}).get("metadata") or {}
    return names.MACHINE_TYPE_LABEL in (template.get("annotations") or {}) or names.MACHINE_TYPE_LABEL in labels_of(vm)


def _known_uid(scope: MachineScope) -> str:
    """Uid of the VM in the status, empty for none."""
    return str((scope.draft.fields.get("virtualMachine") or {}).get("uid") or "")


async def _adopt_belongings(scope: MachineScope, vm: Obj, before: dict[str, str]) -> None:
    """Adopt disks, cloud-init Secret and address with the record of the VM's former owner.

    A disk of a restored backup has another name than the machine's disks: the VM's annotation lists it.
    Raises `Conflict` if the Secret is modified concurrently: the VM still has its old record, so the retry repeats all
    steps.
    """
    client, namespace = scope.session().client, scope.namespace()
    patch = {"metadata": {"annotations": record(scope.owner)}}
    listed = boot_claims(vm)
    for claim in namespace.claims.store:
        name = claim["metadata"]["name"]
        if (name in listed or is_machine_pvc(scope.name, name)) and before.items() <= annotations_of(claim).items():
            guarded = {"metadata": {**patch["metadata"], "resourceVersion": claim["metadata"]["resourceVersion"]}}
            namespace.claims.observe(
                await client.patch(PERSISTENT_VOLUME_CLAIMS, name, scope.target_namespace, guarded)
            )
    with contextlib.suppress(NotFound):
        secret = await client.get(SECRETS, secret_name(scope.name), scope.target_namespace)
        if before.items() <= annotations_of(secret).items():
            guarded = {"metadata": {**patch["metadata"], "resourceVersion": secret["metadata"]["resourceVersion"]}}
            await client.patch(SECRETS, secret_name(scope.name), scope.target_namespace, guarded)
    await adopt_address(scope, before.get(names.OWNER_CLUSTER_ANNOTATION, ""))
