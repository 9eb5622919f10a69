"""Change a running VM, while Cluster API updates its machine in place."""

from __future__ import annotations

from dataclasses import replace

from caphv.api import names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, annotations_of, at, key_of
from caphv.runtime.errors import Forbidden, Invalid, ServerFault
from reconciler.machine.growth import describe_size, growth_obstacle, growth_patch
from reconciler.machine.placement import (
    affinity_patch,
    avoid,
    avoided_hosts,
    without_dropped_terms,
)
from reconciler.machine.scope import MachineScope
from reconciler.machine.validation import InvalidSpecError
from reconciler.machine.vm import has_maxima, virtual_machine
from reconciler.machine.vminputs import disk_images, inputs_of

_RETRY_SECONDS = 60.0
_AFFINITY = ("spec", "template", "spec", "affinity")


def is_update_in_progress(machine: Obj) -> bool:
    """Return whether Cluster API updates a HarvesterMachine in place."""
    return names.UPDATE_IN_PROGRESS_ANNOTATION in annotations_of(machine)


async def update_in_place(scope: MachineScope, vm: Obj, vmi: Obj | None) -> tuple[Obj, str]:
    """Write what a running VM can follow to the VM; return the VM, and why it cannot follow.

    Affinities change, and a VM that can grow gets CPU and memory of the spec. Sets condition
    `VMCanGrow` of a machine with maxima. Changes nothing unless Cluster API updates the machine.
    Raises `Conflict`, `ApiError` and `Unreachable` for a retry.
    """
    grows = has_maxima(scope.spec)
    obstacle = growth_obstacle(vm, vmi, scope.session().hosts.store) if grows else ""
    message = f"the VM cannot grow: {obstacle}"
    refusal = ""
    if is_update_in_progress(scope.obj) and (expected := _expected_vm(scope, vm)):
        growth = growth_patch(vm, expected) if grows else {}
        if growth and obstacle:
            # No watch of this machine reports a host that accepts VMs again.
            scope.requeue_in(_RETRY_SECONDS)
            growth, refusal = {}, message
        if patch := _merge_affinity(growth, vm, expected):
            vm, denial = await _write(scope, vm, patch)
            refusal = denial or refusal

    if not grows:
        scope.draft.drop(ConditionType.VM_CAN_GROW)
    elif obstacle:
        scope.draft.set_false(ConditionType.VM_CAN_GROW, Reason.VM_CANNOT_GROW, message)
    else:
        scope.draft.set_true(ConditionType.VM_CAN_GROW)
    return vm, refusal


def _expected_vm(scope: MachineScope, vm: Obj) -> Obj | None:
    """Return the VM of the spec; None if the spec is invalid, as condition VMUpToDate reports."""
    # The image of a disk may have been deleted since.
    inputs = replace(inputs_of(scope, vm), images=disk_images(scope, vm))
    try:
        return virtual_machine(inputs)
    except InvalidSpecError:
        return None


def _merge_affinity(growth: Obj, vm: Obj, expected: Obj) -> Obj:
    """Return the merge patch of a VM for its growth and its affinity; empty without a change.

    :param growth: merge patch for CPU and memory, empty if they stay
    """
    spec: Obj = dict(at(growth, "spec", "template", "spec") or {})
    affinity = at(expected, *_AFFINITY) or {}
    if hosts := avoided_hosts(vm):
        # An alternative that Harvester would drop must not survive by the rule that is added to it.
        node_affinity = without_dropped_terms(affinity.get("nodeAffinity") or {})
        node_affinity = avoid(node_affinity, [], hosts)
        affinity = {**affinity, "nodeAffinity": node_affinity}
    if patch := affinity_patch(at(vm, *_AFFINITY) or {}, affinity):
        spec["affinity"] = patch
    return {"spec": {"template": {"spec": spec}}} if spec else {}


async def _write(scope: MachineScope, vm: Obj, patch: Obj) -> tuple[Obj, str]:
    """Return the VM after a patch, and why Harvester refuses it."""
    # The version keeps a change that was made for an older spec from undoing a newer one.
    patch = {**patch, "metadata": {"resourceVersion": vm["metadata"]["resourceVersion"]}}
    key = key_of(vm)
    try:
        vm = await scope.session().client.patch(
            resources.VIRTUAL_MACHINES, key.name, key.namespace, patch
        )
    except (Forbidden, Invalid, ServerFault) as error:
        # For example a quota, which no watch reports when it is raised. Harvester's admission
        # denies some changes with code 500.
        scope.requeue_in(_RETRY_SECONDS)
        return vm, f"Harvester refuses the change: {error.message}"
    scope.namespace().vms.observe(vm)

    changed = at(patch, "spec", "template", "spec")
    texts = [describe_size(scope.spec)] if "domain" in changed else []
    texts += ["the affinity of its machine"] if "affinity" in changed else []
    scope.event("VMUpdated", f"VirtualMachine {key} gets {' and '.join(texts)}")
    return vm, ""
