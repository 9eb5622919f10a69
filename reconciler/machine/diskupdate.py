"""Decide whether disks of a running VM can change, and report that in conditions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, at
from caphv.api.plaintext import plain
from caphv.api.release import larger_disks_obstacle, more_disks_obstacle
from caphv.api.virtualmachine import READ_WRITE_MANY
from caphv.runtime.errors import RequestError
from reconciler.harvester.storageclasses import StorageClass
from reconciler.machine.diskgrowth import (
    added_disks,
    classes_of,
    disk_addition_obstacle,
    disk_growth_obstacle,
    identity_obstacle,
    is_shared,
    larger_disks,
    missing_templates,
)
from reconciler.machine.drift import disk_drift
from reconciler.machine.scope import MachineScope
from reconciler.machine.vmclaims import machine_disks

CANNOT_GROW = "disks of the VM cannot grow"
CANNOT_BE_ADDED = "the VM cannot get disks"
# No watch reports a StorageClass that a user corrects, or a right.
_RECHECK_SECONDS = 600.0
_MAX_DIFFERENCE = 512


@dataclass(frozen=True)
class DiskObstacles:
    """Why disks of a VM cannot grow, and why it cannot get disks; empty if they can.

    None for what Harvester does not report just now.
    """

    growth: str | None
    addition: str | None


async def disk_obstacles(scope: MachineScope, vm: Obj, vmi: Obj | None) -> DiskObstacles:
    """Return what keeps the disks of a VM from changes."""
    deployment = scope.session().deployment_object
    volumes = scope.spec.get("volumes") or ()
    claims = {}
    for disk in machine_disks(vm):
        if claim := scope.namespace().claims.get(scope.target_namespace, disk.claim):
            claims[disk.claim] = claim
    identity = identity_obstacle(vm, claims, scope.owner, len(volumes))

    growth: str | None = larger_disks_obstacle(deployment) or identity
    addition: str | None = more_disks_obstacle(deployment) or identity
    if growth and addition:
        return DiskObstacles(growth, addition)

    try:
        classes = {
            name: await _storage_class(scope, name) if name else StorageClass("")
            for name in classes_of(vm)
        }
    except RequestError:
        return DiskObstacles(growth or None, addition or None)
    if any(storage_class.obstacle for storage_class in classes.values()):
        scope.requeue_in(_RECHECK_SECONDS)
    # Whether the StorageClass of an additional disk exists must be known before.
    unknown = [entry.obstacle for entry in classes.values() if entry.exists is None]
    obstacles = {name: storage_class.obstacle for name, storage_class in classes.items()}
    growth = growth or disk_growth_obstacle(vm, vmi, obstacles)
    addition = addition or disk_addition_obstacle(vm, vmi) or "; ".join(unknown)
    return DiskObstacles(growth, addition)


def report_disks(scope: MachineScope, obstacles: DiskObstacles | None) -> None:
    """Set the conditions of disks where machines are updated in place."""
    for condition, reason, text, obstacle in (
        (
            ConditionType.DISKS_CAN_GROW,
            Reason.DISKS_CANNOT_GROW,
            CANNOT_GROW,
            obstacles.growth if obstacles else "",
        ),
        (
            ConditionType.DISKS_CAN_BE_ADDED,
            Reason.DISKS_CANNOT_BE_ADDED,
            CANNOT_BE_ADDED,
            obstacles.addition if obstacles else "",
        ),
    ):
        if not scope.context.updates_in_place:
            scope.draft.drop(condition)
        elif obstacle:
            scope.draft.set_false(condition, reason, f"{text}: {obstacle}")
        elif obstacle is not None:
            scope.draft.set_true(condition)


def disk_difference(vm: Obj, expected: Obj) -> str:
    """Return how the disks of a VM would still differ after a change; empty if they would not.

    :param expected: the VM of the machine's spec
    """
    larger = _patched(vm, larger_disks(vm, expected))
    complete = _patched(larger, added_disks(larger, expected))
    return plain(disk_drift(expected, complete), _MAX_DIFFERENCE)


async def addition_refusals(scope: MachineScope, vm: Obj, expected: Obj) -> AsyncIterator[str]:
    """Yield why the VM cannot get the disks that it lacks, before a change begins.

    Raises `RequestError` if Harvester does not answer.

    :param expected: the VM of the machine's spec
    """
    session = scope.session()
    for template in missing_templates(vm, expected):
        claim = at(template, "metadata", "name")
        name = at(template, "spec", "storageClassName")
        if not name:
            yield f"{claim} has no StorageClass"
            continue
        if (await _storage_class(scope, name)).exists is not True:
            yield f"StorageClass {name} does not exist, or may not be read"

        profiles = scope.context.memory.storage_profiles
        modes = await profiles.modes_of(session.client, session.fingerprint, name)
        provides = not modes or any(mode.access_mode == READ_WRITE_MANY for mode in modes)
        # One such disk would keep the VM from each migration.
        if not is_shared(template) or not provides:
            yield f"{claim} of StorageClass {name} would not be {READ_WRITE_MANY}"


async def _storage_class(scope: MachineScope, name: str) -> StorageClass:
    session = scope.session()
    classes = scope.context.memory.storage_classes
    return await classes.read(session.client, session.fingerprint, name)


def _patched(obj: Obj, patch: Mapping[str, Any]) -> Obj:
    """Return an object with a merge patch that removes nothing."""
    result = dict(obj)
    for name, value in patch.items():
        is_section = isinstance(value, Mapping)
        result[name] = _patched(result.get(name) or {}, value) if is_section else value
    return result
