"""Which changes of a HarvesterMachine a running VM can follow: pure.

A VM grows within the maxima that it was created with, its disks grow, it gets additional empty
disks, and its affinities can change. All other changes need another VM.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from caphv.api.conditions import get_condition
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, list_at
from caphv.api.quantity import quantity
from caphv.api.virtualmachine import READ_WRITE_MANY

_MAXIMA = {"cpu": "cpuMax", "memory": "memoryMax"}
_AFFINITIES = ("nodeAffinity", "workloadAffinity")
_VOLUMES = "volumes"
_SIZE = "volumeSize"
# Type of a volume without content.
_EMPTY = "storageClass"
# Cluster API compares a Machine without these fields. They never need another machine.
_IGNORED = frozenset(
    {
        "bootstrap",
        "clusterName",
        "deletion",
        "infrastructureRef",
        "minReadySeconds",
        "providerID",
        "readinessGates",
        "taints",
    }
)


class Policy(StrEnum):
    """What to do with changes of machines."""

    PREFER = "Prefer"
    """Update machines in place if all changes can be made live, else replace them."""
    ONLY = "Only"
    """Never replace a machine: a change that needs another VM stops the rollout."""
    NEVER = "Never"
    """Replace machines for any change."""


@dataclass(frozen=True)
class Changes:
    """The changes between two specs.

    :param live: fields that a running VM can follow, with their new values; None for removed ones
    :param reasons: why the other changes need another VM, one for each field
    :param grows_disks: whether disks become larger
    :param adds_disks: whether disks are added
    """

    live: Obj
    reasons: tuple[str, ...] = ()
    grows_disks: bool = False
    adds_disks: bool = False

    @property
    def needs_growth(self) -> bool:
        """Whether the VMs have to grow."""
        return bool(self.live.keys() & _MAXIMA.keys())


def live_changes(current: Obj, desired: Obj) -> Changes:
    """Compare two specs of a HarvesterMachine."""
    live: Obj = {}
    reasons = []
    for field in sorted(current.keys() | desired.keys()):
        if current.get(field) == desired.get(field):
            continue
        if reason := _reason(field, current, desired):
            reasons.append(reason)
        else:
            live[field] = desired.get(field)

    before = current.get(_VOLUMES) or []
    after = desired.get(_VOLUMES) or []
    follows = _VOLUMES in live
    return Changes(
        live,
        tuple(reasons),
        grows_disks=follows and before != after[: len(before)],
        adds_disks=follows and len(after) > len(before),
    )


def _reason(field: str, current: Obj, desired: Obj) -> str:
    """Return why a changed field needs another VM; empty if a running VM can follow."""
    if field in _AFFINITIES:
        return ""
    if field == _VOLUMES:
        return next(_volume_reasons(current.get(field) or [], desired.get(field) or []), "")
    if field in _MAXIMA:
        return _size_reason(field, current, desired)
    return f"a change of {field} needs another VM"


def _size_reason(field: str, current: Obj, desired: Obj) -> str:
    """Return why a changed size needs another VM; empty if a running VM can follow."""
    maximum = _MAXIMA[field]
    before = quantity(current.get(field))
    after = quantity(desired.get(field))
    most = quantity(current.get(maximum))
    if before is None or after is None or most is None:
        return f"{field} changes, and the machines have no {maximum}"
    if after < before:
        return f"{field} becomes smaller"
    if after > most:
        return f"{field} becomes larger than {maximum}"
    return ""


def _volume_reasons(current: list[Obj], desired: list[Obj]) -> Iterator[str]:
    """Yield why changed volumes need another VM; nothing if a running VM can follow.

    Volumes have no names, so that those of the same position are compared.
    """
    if len(desired) < len(current):
        yield f"{len(current) - len(desired)} of {len(current)} volumes are removed"

    for index, (before, after) in enumerate(zip(current, desired, strict=False)):
        for field in sorted(before.keys() | after.keys()):
            if field != _SIZE and not _equal(before.get(field), after.get(field)):
                yield f"a change of volumes[{index}].{field} needs another VM"
        old = quantity(before.get(_SIZE))
        new = quantity(after.get(_SIZE))
        if old is None or new is None:
            yield f"volumes[{index}].{_SIZE} is not a quantity"
        elif new < old:
            yield f"volumes[{index}] becomes smaller"

    for index, volume in enumerate(desired[len(current) :], len(current)):
        if volume.get("volumeType") != _EMPTY:
            yield f"volumes[{index}] is added and has an image"
        if volume.get("bootOrder"):
            yield f"volumes[{index}] is added and has a boot order"
        # One disk that is not shared keeps its VM from each migration. What a StorageClass offers
        # is not known here.
        if volume.get("accessMode") != READ_WRITE_MANY:
            yield f"volumes[{index}] is added and its accessMode is not {READ_WRITE_MANY}"
        if not volume.get("storageClass"):
            yield f"volumes[{index}] is added and has no storageClass"


def other_changes(current: Obj, desired: Obj, name: str) -> tuple[str, ...]:
    """Name the fields in which two specs differ, apart from those that never need a machine.

    :param current: spec of a Machine or bootstrap object, or of its template
    :param desired: the spec that Cluster API wants
    :param name: the kind of the objects in words
    """
    fields = sorted((current.keys() | desired.keys()) - _IGNORED)
    return tuple(
        f"a change of {field} of the {name} needs another VM"
        for field in fields
        if not _equal(current.get(field), desired.get(field))
    )


def machine_obstacles(machines: Collection[Obj], changes: Changes) -> tuple[str, ...]:
    """Return why an update in place of HarvesterMachines could not finish.

    Names conditions and numbers only, because anyone may ask.

    :param machines: the HarvesterMachines; the status of one that is not known is empty
    :param changes: the changes that their VMs have to follow
    """
    obstacles = []
    differing = len([machine for machine in machines if not _follows(machine)])
    if differing:
        obstacles.append(
            f"{differing} of {len(machines)} VMs cannot follow their machines: see condition "
            f"{ConditionType.VM_UP_TO_DATE} of each HarvesterMachine"
        )

    for is_needed, condition, ability in (
        (changes.needs_growth, ConditionType.VM_CAN_GROW, "cannot grow"),
        (changes.grows_disks, ConditionType.DISKS_CAN_GROW, "have disks that cannot grow"),
        (changes.adds_disks, ConditionType.DISKS_CAN_BE_ADDED, "cannot get disks"),
    ):
        unable = [m for m in machines if _condition(m, condition).get("status") != "True"]
        if is_needed and unable:
            obstacles.append(
                f"{len(unable)} of {len(machines)} VMs {ability}: see condition {condition} of "
                "each HarvesterMachine"
            )
    return tuple(obstacles)


def _follows(machine: Obj) -> bool:
    """Return whether a VM is as its machine's spec wants it, or on the way."""
    condition = _condition(machine, ConditionType.VM_UP_TO_DATE)
    return condition.get("status") == "True" or condition.get("reason") == Reason.VM_UPDATING


def _condition(machine: Obj, kind: ConditionType) -> Obj:
    return get_condition(list_at(machine, "status", "conditions"), kind) or {}


def _equal(current: Any, desired: Any) -> bool:
    # Missing and empty mean the same.
    return current == desired or (not current and not desired)
