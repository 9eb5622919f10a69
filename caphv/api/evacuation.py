"""Evacuation of hosts of Harvester: which of these states a host is in.

| State | Function | Meaning for guests |
|---|---|---|
| requested | `is_requested` | the provider moves those that Harvester cannot migrate |
| requested by force | `is_forced` | they move even if their Nodes cannot be drained |
| in maintenance | `is_in_maintenance` | Harvester drains the host, or has drained it |
| draining by force | `is_draining_by_force` | Harvester is halting guests |
| may have halted | `may_have_halted_guests` | Harvester is halting guests, or may have done so |

`must_be_left` is true for a host that is requested or in maintenance. A user requests an evacuation
with an annotation. Harvester marks a host that it drains for maintenance or an upgrade.
"""

from __future__ import annotations

from collections.abc import Iterable

from caphv.api.names import (
    DRAIN_FORCED_ANNOTATION,
    DRAIN_REQUESTED_ANNOTATION,
    DRAIN_TAINT,
    EVACUATE_ANNOTATION,
    MAINTENANCE_ANNOTATION,
)
from caphv.api.object import Obj, annotations_of, list_at

TRUE = "true"
FORCE = "force"
_LEFT = "no machine of this cluster that the provider moves is on "
_DRAIN_ANNOTATIONS = {DRAIN_REQUESTED_ANNOTATION, DRAIN_FORCED_ANNOTATION, MAINTENANCE_ANNOTATION}


def is_requested(host: Obj) -> bool:
    """Return whether the annotation of a host requests its evacuation."""
    return annotations_of(host).get(EVACUATE_ANNOTATION) in (TRUE, FORCE)


def is_forced(host: Obj) -> bool:
    """Return whether guests leave a host even if their Nodes cannot be drained."""
    return annotations_of(host).get(EVACUATE_ANNOTATION) == FORCE


def must_be_left(host: Obj) -> bool:
    """Return whether guests must leave a host, by its annotation or for maintenance."""
    return is_requested(host) or is_in_maintenance(host)


def describe_left(hosts: Iterable[str]) -> str:
    """Return the beginning of the message of condition `HostsEvacuated` while it is true.

    `hosts_left` parses it.

    :param hosts: names of the evacuated hosts
    """
    return f"{_LEFT}{', '.join(hosts)}"


def hosts_left(message: str) -> set[str]:
    """Return the names of the hosts in a message of `describe_left`; empty for other messages."""
    if not message.startswith(_LEFT):
        return set()
    return set(message.removeprefix(_LEFT).partition(";")[0].split(", "))


def invalid_value(host: Obj) -> str:
    """Return the value of the annotation if it is invalid, else an empty text."""
    value = annotations_of(host).get(EVACUATE_ANNOTATION, "false")
    return "" if value in (TRUE, FORCE, "false") else (value or '""')


def is_draining_by_force(host: Obj) -> bool:
    """Return whether Harvester is halting VMs on a host for forced maintenance."""
    return DRAIN_FORCED_ANNOTATION in annotations_of(host)


def may_have_halted_guests(host: Obj) -> bool:
    """Return whether Harvester is halting VMs on a host, or may have done so.

    A drain that is not forced halts only VMs whose label requests it. Once a host is in maintenance
    mode, nothing shows whether its drain was forced.
    """
    if is_draining_by_force(host) or _has_drain_taint(host):
        return True
    annotations = annotations_of(host)
    return MAINTENANCE_ANNOTATION in annotations and DRAIN_REQUESTED_ANNOTATION not in annotations


def is_in_maintenance(host: Obj) -> bool:
    """Return whether Harvester drains a host, or has drained it, for maintenance or an upgrade."""
    return not _DRAIN_ANNOTATIONS.isdisjoint(annotations_of(host)) or _has_drain_taint(host)


def _has_drain_taint(host: Obj) -> bool:
    return any(taint.get("key") == DRAIN_TAINT for taint in list_at(host, "spec", "taints"))
