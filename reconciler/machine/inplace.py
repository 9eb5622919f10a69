"""Change a running VM, while Cluster API updates its machine in place.

Whether Cluster API updates a machine or replaces it is decided before: `caphv.api.livechanges` has
the rules, and `reconciler.extension.hooks` answers Cluster API.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from caphv.api import names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, annotations_of, dict_at, key_of
from caphv.runtime.errors import Forbidden, Invalid, RequestError, ServerFault
from reconciler.machine.diskgrowth import added_disks, larger_disks, missing_templates
from reconciler.machine.diskupdate import (
    CANNOT_BE_ADDED,
    CANNOT_GROW,
    DiskObstacles,
    addition_refusals,
    disk_difference,
    disk_obstacles,
    report_disks,
)
from reconciler.machine.growth import describe_size, growth_obstacle, growth_patch, is_growing
from reconciler.machine.placement import (
    affinity_patch,
    avoid,
    avoided_hosts,
    without_dropped_terms,
)
from reconciler.machine.scope import MachineScope, ProvisioningScope
from reconciler.machine.validation import InvalidSpecError
from reconciler.machine.vm import can_grow, has_maxima, virtual_machine
from reconciler.machine.vmclaims import machine_disks
from reconciler.machine.vminputs import inputs_of, offered_modes

_RETRY_SECONDS = 60.0
_AFFINITY = ("spec", "template", "spec", "affinity")
_CANNOT_GROW = "the VM cannot grow"
_DISKS = "the disks of its machine"
_UNKNOWN = "Harvester does not answer what is needed to decide"


def is_update_in_progress(machine: Obj) -> bool:
    """Return whether Cluster API updates a HarvesterMachine in place."""
    return names.UPDATE_IN_PROGRESS_ANNOTATION in annotations_of(machine)


class FollowedVm(NamedTuple):
    """A VM after it was changed, and why it cannot follow its machine; empty if it can."""

    vm: Obj
    refusal: str


async def follow_update(scope: ProvisioningScope, vm: Obj, vmi: Obj | None) -> FollowedVm:
    """Let a running VM follow an update in place.

    Affinities change, a VM that can grow gets CPU and memory of the spec, and disks become larger
    or are added. Nothing is written unless Cluster API updates the machine. Sets the conditions of
    what the VM could follow. Raises `Conflict`, `ApiError` and `Unreachable` for a retry.
    """
    obstacle = ""
    if has_maxima(scope.spec):
        obstacle = growth_obstacle(vm, vmi, scope.session().hosts.store)
    is_updating = is_update_in_progress(scope.obj)
    disks: DiskObstacles | None = None
    if scope.context.updates_in_place or is_updating:
        disks = await disk_obstacles(scope, vm, vmi)

    refusals: list[str] = []
    if disks and is_updating and (expected := await _expected_vm(scope, vm)):
        # Harvester may refuse one change, for example because of a quota, and accept another.
        vm = await _change_size(scope, vm, expected, refusals, obstacle=obstacle)
        waits = has_maxima(scope.spec) and _lacks_size(vm, vmi, expected)
        vm = await _change_disks(scope, vm, expected, disks, refusals, waits=waits)
        if refusals:
            # No watch of this machine reports a host that accepts VMs again, a larger quota or a
            # StorageClass.
            scope.requeue_in(_RETRY_SECONDS)

    _report_growth(scope, obstacle)
    report_disks(scope, disks)
    return FollowedVm(vm, "; ".join(refusals))


def _report_growth(scope: MachineScope, obstacle: str) -> None:
    """Set condition `VMCanGrow` of a machine with maxima.

    :param obstacle: why the VM cannot grow, empty if it can
    """
    if not has_maxima(scope.spec):
        scope.draft.drop(ConditionType.VM_CAN_GROW)
    elif obstacle:
        message = f"{_CANNOT_GROW}: {obstacle}"
        scope.draft.set_false(ConditionType.VM_CAN_GROW, Reason.VM_CANNOT_GROW, message)
    else:
        scope.draft.set_true(ConditionType.VM_CAN_GROW)


async def _change_size(
    scope: MachineScope, vm: Obj, expected: Obj, refusals: list[str], *, obstacle: str
) -> Obj:
    """Give a VM the affinity, and with maxima also CPU and memory, of its spec; return the VM.

    :param expected: the VM of the machine's spec
    :param refusals: gets why the VM cannot change
    :param obstacle: why the VM cannot grow, empty if it can
    """
    growth = growth_patch(vm, expected) if has_maxima(scope.spec) else {}
    if growth and obstacle:
        growth = {}
        refusals.append(f"{_CANNOT_GROW}: {obstacle}")

    changes: Obj = dict(dict_at(growth, "spec", "template", "spec"))
    texts = [describe_size(scope.spec)] if growth else []
    if affinity := _affinity_change(vm, expected):
        changes["affinity"] = affinity
        texts.append("the affinity of its machine")
    patch = {"spec": {"template": {"spec": changes}}} if changes else {}
    return await _write(scope, vm, patch, " and ".join(texts), refusals)


def _lacks_size(vm: Obj, vmi: Obj | None, expected: Obj) -> bool:
    """Return whether a VM with maxima has less CPU or memory than its machine."""
    return bool(growth_patch(vm, expected)) or (can_grow(vm) and is_growing(vm, vmi))


async def _change_disks(
    scope: MachineScope,
    vm: Obj,
    expected: Obj,
    obstacles: DiskObstacles,
    refusals: list[str],
    *,
    waits: bool,
) -> Obj:
    """Enlarge the disks of a VM and give it those that it lacks; return the VM.

    :param expected: the VM of the machine's spec
    :param refusals: gets why disks cannot change
    :param waits: whether the VM still has to migrate, so that it gets no disk yet
    """
    larger = larger_disks(vm, expected)
    lacks = bool(missing_templates(vm, expected))
    if not (larger or lacks):
        return vm
    if difference := disk_difference(vm, expected):
        # A change that cannot be completed is not begun.
        obstacles = DiskObstacles(obstacles.growth or difference, obstacles.addition or difference)

    if larger and obstacles.growth != "":
        refusals.append(f"{CANNOT_GROW}: {obstacles.growth or _UNKNOWN}")
    else:
        vm = await _write(scope, vm, larger, _DISKS, refusals)

    if not lacks:
        return vm
    if obstacles.addition != "":
        refusals.append(f"{CANNOT_BE_ADDED}: {obstacles.addition or _UNKNOWN}")
        return vm
    try:
        reasons = [reason async for reason in addition_refusals(scope, vm, expected)]
    except RequestError:
        reasons = [_UNKNOWN]
    if reasons:
        refusals.append(f"{CANNOT_BE_ADDED}: {'; '.join(reasons)}")
    elif waits:
        # A migration and a disk that is being attached keep each other waiting.
        refusals.append(f"{CANNOT_BE_ADDED}: it gets {describe_size(scope.spec)} first")
    else:
        vm = await _write(scope, vm, added_disks(vm, expected), _DISKS, refusals)
    return vm


async def _expected_vm(scope: ProvisioningScope, vm: Obj) -> Obj | None:
    """Return the VM of the spec; None if the spec is invalid, as condition VMUpToDate reports."""
    inputs = inputs_of(scope, vm)
    if len(scope.spec.get("volumes") or ()) > len(machine_disks(vm)):
        inputs = replace(inputs, offered=await offered_modes(scope, inputs))
    try:
        return virtual_machine(inputs)
    except InvalidSpecError:
        return None


def _affinity_change(vm: Obj, expected: Obj) -> Obj:
    """Return the merge patch of the VM's affinity; empty without a change."""
    affinity = dict_at(expected, *_AFFINITY)
    if hosts := avoided_hosts(vm):
        # An alternative that Harvester would drop must not survive by the rule that is added to it.
        node_affinity = without_dropped_terms(affinity.get("nodeAffinity") or {})
        node_affinity = avoid(node_affinity, [], hosts)
        affinity = {**affinity, "nodeAffinity": node_affinity}
    return affinity_patch(dict_at(vm, *_AFFINITY), affinity)


async def _write(scope: MachineScope, vm: Obj, patch: Obj, text: str, refusals: list[str]) -> Obj:
    """Return the VM after a patch, or as it is if the patch is empty or Harvester refuses it.

    :param text: what the VM gets, for the Event
    :param refusals: gets why Harvester refuses the patch
    """
    if not patch:
        return vm

    # The version keeps a change that was made for an older spec from undoing a newer one.
    version = {"resourceVersion": vm["metadata"]["resourceVersion"]}
    patch = {**patch, "metadata": {**(patch.get("metadata") or {}), **version}}
    key = key_of(vm)
    try:
        vm = await scope.session().client.patch(
            resources.VIRTUAL_MACHINES, key.name, key.namespace, patch
        )
    except (Forbidden, Invalid, ServerFault) as error:
        # For example a quota, which no watch reports when it is raised. Harvester's admission
        # denies some changes with code 500.
        refusals.append(f"Harvester refuses {text}: {error.message}")
        return vm
    scope.namespace().vms.observe(vm)
    scope.event("VMUpdated", f"VirtualMachine {key} gets {text}")
    return vm
