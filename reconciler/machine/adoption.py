"""Whose the VM of a machine's name is, and taking it over without touching the guest.

A VM without a record was made by the Go provider, or by hand: it gets one, and nothing else happens. One that is
recorded for somebody else is taken over on proof only: after a move or a restored backup the machine's providerID
carries the VM's uid; in any other case an operator has to say so with annotation `caphv.io/adopt`.
"""

from __future__ import annotations

import contextlib

from caphv.api import names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SECRETS, Obj, annotations_of, key_of, uid_of
from caphv.runtime.errors import NotFound
from reconciler.harvester.ownership import Ownership, ownership_of, record, wants_adoption
from reconciler.machine.cloudinit import secret_name
from reconciler.machine.disks import is_machine_pvc
from reconciler.machine.ipaddress import take_over_address
from reconciler.machine.scope import MachineScope
from reconciler.status import Blocked


def gone(scope: MachineScope) -> Blocked:
    """The machine had a VM and has none any more."""
    return Blocked(
        ConditionType.VM_PROVISIONING_READY,
        Reason.MACHINE_NOT_FOUND,
        f"VirtualMachine {scope.target_namespace}/{scope.name} is gone from Harvester and is not made again under "
        "its old identity; delete the Machine, or let a MachineHealthCheck replace it",
        warn=True,
    )


def judge(scope: MachineScope, vm: Obj) -> Ownership:
    """Whose the VM is. The providerID proves nothing any more once the VM was ours and got another record.

    Otherwise a machine that was left behind on a former management cluster would take the VM back, or delete it.
    """
    known = _known_uid(scope) == uid_of(vm)
    return ownership_of(vm, scope.owner, provider_id="" if known else str(scope.spec.get("providerID") or ""))


async def adopt_or_refuse(scope: MachineScope, vm: Obj) -> Obj:
    """The VM with our record on it. Raises `Blocked` when it belongs to somebody else, or is another than ours was."""
    told = wants_adoption(scope.obj)
    if _known_uid(scope) not in ("", uid_of(vm)) and not told:
        raise gone(scope)
    judged = judge(scope, vm)
    if judged is Ownership.FOREIGN and not told:
        owner = annotations_of(vm).get(names.OWNER_ANNOTATION, "somebody else")
        raise scope.failed(
            f"VirtualMachine {key_of(vm)} exists on Harvester and belongs to {owner}; give this machine "
            "another name or its cluster another targetNamespace, or take the VM over with annotation "
            f'{names.ADOPT_ANNOTATION}: "true"'
        )
    wanted = record(scope.owner)
    before = {name: value for name, value in annotations_of(vm).items() if name in wanted}
    if before != wanted:
        if before:
            await _take_over_belongings(scope, before)
        # Last, because what comes before is found by the VM's old record. Nothing restarts by an annotation.
        patch = {"metadata": {"resourceVersion": vm["metadata"]["resourceVersion"], "annotations": wanted}}
        client = scope.session().client
        vm = await client.patch(resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace, patch)
        scope.namespace().vms.observe(vm)
        scope.event("VMAdopted", f"took over VirtualMachine {key_of(vm)}")
    if told:
        scope.draft.fields["virtualMachine"] = {"uid": uid_of(vm)}
        await scope.context.write_status(scope.context.caches.harvester_machines, scope.obj, scope.draft)
        # Once: with two management clusters told to, they would take the VM from each other for ever.
        await scope.drop_annotation(names.ADOPT_ANNOTATION)
    return vm


def _known_uid(scope: MachineScope) -> str:
    """Uid of the VM that the status remembers, empty for none."""
    return str((scope.draft.fields.get("virtualMachine") or {}).get("uid") or "")


async def _take_over_belongings(scope: MachineScope, before: dict[str, str]) -> None:
    """Disks, cloud-init Secret and address that were recorded for the VM's former owner.

    Raises `Conflict` when somebody writes the Secret meanwhile: the VM still has its old record then, so that all of it
    is done again.
    """
    client, namespace = scope.session().client, scope.namespace()
    patch = {"metadata": {"annotations": record(scope.owner)}}
    for claim in namespace.claims.store:
        name = claim["metadata"]["name"]
        if is_machine_pvc(scope.name, name) and before.items() <= annotations_of(claim).items():
            namespace.claims.observe(await client.patch(PERSISTENT_VOLUME_CLAIMS, name, scope.target_namespace, patch))
    with contextlib.suppress(NotFound):
        secret = await client.get(SECRETS, secret_name(scope.name), scope.target_namespace)
        if before.items() <= annotations_of(secret).items():
            guarded = {"metadata": {**patch["metadata"], "resourceVersion": secret["metadata"]["resourceVersion"]}}
            await client.patch(SECRETS, secret_name(scope.name), scope.target_namespace, guarded)
    await take_over_address(scope, before.get(names.OWNER_CLUSTER_ANNOTATION, ""))
