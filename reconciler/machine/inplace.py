"""Change a running VM, while Cluster API updates its machine in place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from caphv.api import names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, annotations_of, at, key_of
from caphv.api.release import larger_disks_obstacle, more_disks_obstacle
from caphv.runtime.errors import Forbidden, Invalid, ServerFault
from reconciler.machine.diskgrowth import (
    added_disks,
    classes_of,
    disk_addition_obstacle,
    disk_growth_obstacle,
    larger_disks,
)
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
from reconciler.machine.vmclaims import machine_disks
from reconciler.machine.vminputs import disk_images, inputs_of, offered_modes

_RETRY_SECONDS = 60.0
_AFFINITY = ("spec", "template", "spec", "affinity")
_DISKS_CANNOT_GROW = "disks of the VM cannot grow"
_DISKS_CANNOT_BE_ADDED = "the VM cannot get disks"


def is_update_in_progress(machine: Obj) -> bool:
    """Return whether Cluster API updates a HarvesterMachine in place."""
    return names.UPDATE_IN_PROGRESS_ANNOTATION in annotations_of(machine)


async def update_in_place(scope: MachineScope, vm: Obj, vmi: Obj | None) -> tuple[Obj, str]:
    """Write what a running VM can follow to the VM; return the VM, and why it cannot follow.

    Affinities change, a VM that can grow gets CPU and memory of the spec, and disks become larger
    or are added. Sets condition `VMCanGrow` of a machine with maxima, and the conditions of disks
    where machines are updated in place. Changes nothing unless Cluster API updates the machine.
    Raises `Conflict`, `ApiError` and `Unreachable` for a retry.
    """
    grows = has_maxima(scope.spec)
    obstacle = growth_obstacle(vm, vmi, scope.session().hosts.store) if grows else ""
    disks = await _disk_obstacles(scope, vm, vmi)
    message = f"the VM cannot grow: {obstacle}"

    refusals = []
    if is_update_in_progress(scope.obj) and (expected := await _expected_vm(scope, vm)):
        growth = growth_patch(vm, expected) if grows else {}
        if growth and obstacle:
            growth = {}
            refusals.append(message)
        disk_changes, disk_refusals = _disk_changes(vm, expected, disks)
        refusals += disk_refusals
        if refusals:
            # No watch of this machine reports a host that accepts VMs again.
            scope.requeue_in(_RETRY_SECONDS)
        if patch := _merged(_merge_affinity(growth, vm, expected), disk_changes):
            vm, denial = await _write(scope, vm, patch)
            refusals = [denial] if denial else refusals

    if not grows:
        scope.draft.drop(ConditionType.VM_CAN_GROW)
    elif obstacle:
        scope.draft.set_false(ConditionType.VM_CAN_GROW, Reason.VM_CANNOT_GROW, message)
    else:
        scope.draft.set_true(ConditionType.VM_CAN_GROW)
    _report_disks(scope, disks)
    return vm, "; ".join(refusals)


@dataclass(frozen=True)
class _DiskObstacles:
    """Why disks of a VM cannot grow, and why it cannot get disks; empty if they can."""

    growth: str
    addition: str


async def _disk_obstacles(scope: MachineScope, vm: Obj, vmi: Obj | None) -> _DiskObstacles | None:
    """Return what keeps the disks of a VM from changes; None where nothing updates machines."""
    if not (scope.context.updates_in_place or is_update_in_progress(scope.obj)):
        return None
    session = scope.session()
    growth = larger_disks_obstacle(session.deployment_object)
    if not growth:
        known = scope.context.memory.storage_classes
        classes = {
            name: await known.obstacle_of(session.client, session.fingerprint, name) if name else ""
            for name in classes_of(vm)
        }
        growth = disk_growth_obstacle(vm, vmi, classes)
    addition = more_disks_obstacle(session.deployment_object) or disk_addition_obstacle(vm, vmi)
    return _DiskObstacles(growth, addition)


def _disk_changes(
    vm: Obj, expected: Obj, obstacles: _DiskObstacles | None
) -> tuple[Obj, list[str]]:
    """Return the merge patch of a VM for its disks, and why they cannot change.

    :param expected: the VM of the machine's spec
    """
    if obstacles is None:
        return {}, []
    refusals = []
    patch = larger_disks(vm, expected)
    if patch and obstacles.growth:
        refusals.append(f"{_DISKS_CANNOT_GROW}: {obstacles.growth}")
        patch = {}

    # The annotation of the VM lists larger and additional disks alike.
    if additions := added_disks(_with_annotations(vm, patch), expected):
        if obstacles.addition:
            refusals.append(f"{_DISKS_CANNOT_BE_ADDED}: {obstacles.addition}")
        else:
            patch = additions
    return patch, refusals


def _with_annotations(vm: Obj, patch: Obj) -> Obj:
    """Return a VM with the annotations of a merge patch."""
    annotations = {**annotations_of(vm), **(at(patch, "metadata", "annotations") or {})}
    return {**vm, "metadata": {**vm["metadata"], "annotations": annotations}}


def _report_disks(scope: MachineScope, obstacles: _DiskObstacles | None) -> None:
    """Set the conditions of disks where machines are updated in place."""
    for condition, reason, text, obstacle in (
        (
            ConditionType.DISKS_CAN_GROW,
            Reason.DISKS_CANNOT_GROW,
            _DISKS_CANNOT_GROW,
            obstacles.growth if obstacles else "",
        ),
        (
            ConditionType.DISKS_CAN_BE_ADDED,
            Reason.DISKS_CANNOT_BE_ADDED,
            _DISKS_CANNOT_BE_ADDED,
            obstacles.addition if obstacles else "",
        ),
    ):
        if not scope.context.updates_in_place:
            scope.draft.drop(condition)
        elif obstacle:
            scope.draft.set_false(condition, reason, f"{text}: {obstacle}")
        else:
            scope.draft.set_true(condition)


async def _expected_vm(scope: MachineScope, vm: Obj) -> Obj | None:
    """Return the VM of the spec; None if the spec is invalid, as condition VMUpToDate reports."""
    # The image of a disk may have been deleted since.
    inputs = replace(inputs_of(scope, vm), images=disk_images(scope, vm))
    if len(scope.spec.get("volumes") or ()) > len(machine_disks(vm)):
        inputs = replace(inputs, offered=await offered_modes(scope, inputs))
    try:
        return virtual_machine(inputs)
    except InvalidSpecError:
        return None


def _merged(patch: Obj, disks: Obj) -> Obj:
    """Return a merge patch for CPU, memory and affinity together with one for disks."""
    if not disks:
        return patch
    spec = dict(at(patch, "spec", "template", "spec") or {})
    added = at(disks, "spec", "template", "spec") or {}
    if added:
        domain = {**(spec.get("domain") or {}), **added["domain"]}
        spec |= {"volumes": added["volumes"], "domain": domain}
    changes = {"spec": {"template": {"spec": spec}}} if spec else {}
    return {"metadata": disks["metadata"], **changes}


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
        scope.requeue_in(_RETRY_SECONDS)
        return vm, f"Harvester refuses the change: {error.message}"
    scope.namespace().vms.observe(vm)

    changed = at(patch, "spec", "template", "spec") or {}
    domain = changed.get("domain") or {}
    texts = [describe_size(scope.spec)] if {"cpu", "memory"} & domain.keys() else []
    texts += ["the affinity of its machine"] if "affinity" in changed else []
    texts += ["the disks of its machine"] if "annotations" in patch["metadata"] else []
    scope.event("VMUpdated", f"VirtualMachine {key} gets {' and '.join(texts)}")
    return vm, ""
