"""Find the VM of a machine, adopt it if another owner is recorded, or create it.

A lost VM is never recreated. Its disks, etcd member and Node are lost, and a new VM with the old
providerID would look like the old VM. The machine reports the loss, and its owner replaces it.
"""

from __future__ import annotations

from caphv.api.names import ConditionType
from caphv.api.object import Obj
from reconciler.machine.addresses.interfaces import restore_pool_addresses
from reconciler.machine.addresses.ipamclaims import check_address_claims
from reconciler.machine.addresses.pool import restore_address
from reconciler.machine.addresses.state import report_addresses
from reconciler.machine.adoption import adopt_or_refuse, vm_lost
from reconciler.machine.create import create_vm
from reconciler.machine.labelling import ensure_labels
from reconciler.machine.scope import MachineScope, ProvisioningScope


async def ensure_vm(scope: ProvisioningScope) -> Obj:
    """Return the machine's VM, after creating it if it never existed.

    Needs the infrastructure of the cluster. Adopts and labels an existing VM, and reserves its
    address again if needed. Reserves an address before it creates a VM. Raises `Blocked` if the VM
    is lost, belongs to another owner, or cannot be created yet.
    """
    vm = await _find_vm(scope)
    if vm is None:
        return await create_vm(scope)

    vm = await adopt_or_refuse(scope, vm)
    vm = await ensure_labels(scope, vm)
    states = [await restore_address(scope), check_address_claims(scope)]
    report_addresses(scope, [*states, await restore_pool_addresses(scope)])
    return vm


async def _find_vm(scope: MachineScope) -> Obj | None:
    """Return the existing VM, None if it never existed. Raises `Blocked` if it is lost."""
    vm = scope.namespace().vms.get(scope.target_namespace, scope.name)
    had_vm = scope.spec.get("providerID") or scope.draft.is_true(ConditionType.MACHINE_CREATED)
    if vm is not None or not had_vm:
        return vm

    # Ask Harvester before the machine is reported as lost, because the cache may lag behind.
    scope.require_current_namespace()
    vm = await scope.live_vm()
    if vm is None:
        raise vm_lost(scope)
    return vm
