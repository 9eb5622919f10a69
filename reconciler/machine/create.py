"""Create the VM of a machine, after everything that the VM needs."""

from __future__ import annotations

import time
from dataclasses import replace

from caphv.api import resources
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj
from caphv.api.release import hotplug_obstacle
from caphv.api.virtualmachine import READ_WRITE_MANY
from caphv.runtime.errors import AlreadyExists, Conflict, Forbidden, Invalid, RequestError
from reconciler import metrics
from reconciler.machine.addresses.interfaces import ensure_pool_addresses
from reconciler.machine.addresses.ipamclaims import (
    confirm_address_claims,
    ensure_address_claims,
)
from reconciler.machine.addresses.pool import ensure_address
from reconciler.machine.adoption import adopt_or_refuse
from reconciler.machine.bootstrap import bootstrap_data, ensure_secret
from reconciler.machine.network import Dhcp
from reconciler.machine.quota import check_quota, handle_refusal, record_free_quota
from reconciler.machine.scope import MachineScope, ProvisioningScope
from reconciler.machine.validation import InvalidSpecError
from reconciler.machine.vm import VirtualMachineInputs, has_maxima, virtual_machine
from reconciler.machine.vmclaims import claim_templates
from reconciler.machine.vminputs import offered_modes, require_inputs


async def create_vm(scope: ProvisioningScope) -> Obj:
    """Reserve the addresses of a machine, write its cloud-init Secret, and create its VM.

    All steps can be repeated.

    Raises `Blocked` while a step waits, for example for an image, an address or bootstrap data.
    """
    # Reserve the address last, so that a machine that cannot be created yet holds none. Workers may
    # wait a long time for bootstrap data, and the control plane needs addresses of the same pool.
    inputs = require_inputs(scope)
    check_quota(scope)
    bootstrap = await bootstrap_data(scope)
    claimed = await ensure_address_claims(scope)
    network = await ensure_address(scope)
    pooled = await ensure_pool_addresses(scope)
    if claimed or pooled or not isinstance(network, Dhcp):
        scope.draft.set_true(ConditionType.VM_IP_ALLOCATED)
    await ensure_secret(scope, network, bootstrap, [*claimed, *pooled])
    inputs = replace(inputs, offered=await offered_modes(scope, inputs))
    await confirm_address_claims(scope, claimed)
    return await _request_vm(scope, inputs)


def _migration_warning(vm: Obj) -> str:
    """Explain why a new VM cannot migrate; empty if it can."""
    disks = [
        claim.name for claim in claim_templates(vm) if READ_WRITE_MANY not in claim.access_modes
    ]
    if not disks:
        return ""
    return (
        f"; it cannot migrate while it runs, because disks are not {READ_WRITE_MANY}: "
        f"{', '.join(disks)}"
    )


def _growth_warning(scope: MachineScope, inputs: VirtualMachineInputs) -> str:
    """Explain why a new VM with maxima cannot grow; empty if it can, or has none."""
    if inputs.hotplug or not has_maxima(scope.spec):
        return ""
    session = scope.session()
    obstacle = hotplug_obstacle(session.deployment_object, session.hosts.store)
    return f"; cpuMax and memoryMax have no effect: {obstacle}"


async def _request_vm(scope: ProvisioningScope, inputs: VirtualMachineInputs) -> Obj:
    """Have Harvester create the VM, or adopt an existing VM of this name, and return the VM.

    Raises `Blocked` if Harvester refuses the VM, `ApiError` and `Unreachable` for a retry.
    """
    metrics.MACHINE_CREATE.inc()
    namespace = scope.namespace()
    client = scope.session().client
    key = Key(scope.target_namespace, scope.name)
    try:
        vm = await client.create(resources.VIRTUAL_MACHINES, virtual_machine(inputs))
    except AlreadyExists:
        # An earlier attempt has created the VM, but its response was lost. Or another owner has it.
        vm = await client.get(resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace)
        namespace.vms.observe(vm)
        return await adopt_or_refuse(scope, vm)
    except InvalidSpecError as error:
        metrics.MACHINE_CREATE_ERRORS.inc()
        raise scope.failure(str(error)) from None
    except (Forbidden, Invalid) as error:
        # Harvester's admission requires something that may appear later, such as a network or a
        # larger quota.
        metrics.MACHINE_CREATE_ERRORS.inc()
        raise handle_refusal(scope, error) from None
    except RequestError as error:
        metrics.MACHINE_CREATE_ERRORS.inc()
        # The retry resolves a conflict, so a user does not need to know about it.
        if not isinstance(error, Conflict):
            scope.warning_event("VMCreationFailed", f"cannot create VirtualMachine {key}: {error}")
        raise

    scope.memory.vm_created_at = time.monotonic()
    namespace.vms.observe(vm)
    record_free_quota(scope)
    warnings = _migration_warning(vm) + _growth_warning(scope, inputs)
    scope.event("VMCreated", f"created VirtualMachine {key} on Harvester{warnings}")
    return vm
