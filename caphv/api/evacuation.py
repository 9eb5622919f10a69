"""Evacuation of hosts: what the annotation on a host of Harvester asks for."""

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

TRUE, FORCE = "true", "force"
_LEFT = "no machine of this cluster that the provider moves is on "
_DRAIN_ANNOTATIONS = {DRAIN_REQUESTED_ANNOTATION, DRAIN_FORCED_ANNOTATION, MAINTENANCE_ANNOTATION}


def is_wanted(host: Obj) -> bool:
    """Return whether guests that Harvester cannot migrate are to leave a host."""
    return annotations_of(host).get(EVACUATE_ANNOTATION) in (TRUE, FORCE)


def is_forced(host: Obj) -> bool:
    """Return whether guests are to leave a host although their Nodes cannot be drained."""
    return annotations_of(host).get(EVACUATE_ANNOTATION) == FORCE


def is_emptied(host: Obj) -> bool:
    """Return whether guests are to leave a host, by its annotation or because it is drained."""
    return is_wanted(host) or is_drained(host)


def describe_left(hosts: Iterable[str]) -> str:
    """Return the begin of the message of condition `HostsEvacuated` while it is true.

    :param hosts: names of the Nodes of Harvester that are evacuated
    """
    return f"{_LEFT}{', '.join(hosts)}"


def hosts_left(message: str) -> set[str]:
    """Return the names of the hosts in such a message; empty for any other message."""
    if not message.startswith(_LEFT):
        return set()
    return set(message.removeprefix(_LEFT).partition(";")[0].split(", "))


def invalid_value(host: Obj) -> str:
    """Return a value of the annotation that means nothing; empty for a valid one."""
    value = annotations_of(host).get(EVACUATE_ANNOTATION, "false")
    return "" if value in (TRUE, FORCE, "false") else (value or '""')


def is_drained_by_force(host: Obj) -> bool:
    """Return whether Harvester halts VMs on a host at this moment, for forced maintenance."""
    return DRAIN_FORCED_ANNOTATION in annotations_of(host)


def halts_guests(host: Obj) -> bool:
    """Return whether Harvester halts VMs on a host, or may have done so.

    A drain that is not forced halts only VMs whose label asks for it. Once a host is in maintenance
    mode, nothing says whether its drain was forced.
    """
    if is_drained_by_force(host) or _has_drain_taint(host):
        return True
    annotations = annotations_of(host)
    return MAINTENANCE_ANNOTATION in annotations and DRAIN_REQUESTED_ANNOTATION not in annotations


def is_drained(host: Obj) -> bool:
    """Return whether Harvester drains a host, or has drained it, for maintenance or an upgrade."""
    return not _DRAIN_ANNOTATIONS.isdisjoint(annotations_of(host)) or _has_drain_taint(host)


def _has_drain_taint(host: Obj) -> bool:
    return DRAIN_TAINT in _taints(host)


def _taints(host: Obj) -> list[str]:
    return [str(taint.get("key")) for taint in list_at(host, "spec", "taints")]
