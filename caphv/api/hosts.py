"""Hosts of Harvester, which are Nodes of its cluster, and whether they accept VMs."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api import evacuation
from caphv.api.names import CPU_MANAGER_LABEL, MAINTENANCE_ANNOTATION, WITNESS_LABEL
from caphv.api.object import Obj, annotations_of, at, labels_of, list_at

_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
# Kubernetes derives these taints from condition Ready, which `is_ready` reads instead.
_UNREADY_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def is_ready(host: Obj) -> bool:
    """Return whether the kubelet of a host reports that it is ready.

    Taints are no evidence: a new Node has the taint not-ready until a controller removes it.
    """
    return any(
        (at(condition, "type"), at(condition, "status")) == ("Ready", "True")
        for condition in list_at(host, "status", "conditions")
    )


def is_witness(host: Obj) -> bool:
    """Return whether a host is only a member of etcd and runs no VMs."""
    return labels_of(host).get(WITNESS_LABEL) == "true"


def has_cpu_manager(host: Obj) -> bool:
    """Return whether the CPU manager of a host is enabled, which VMs with pinned CPUs need."""
    return labels_of(host).get(CPU_MANAGER_LABEL) == "true"


def accepts_machines(host: Obj) -> bool:
    """Return whether a host accepts new VMs, no matter whether it is ready."""
    return not why_closed(host)


def why_closed(host: Obj) -> str:
    """Return why a host accepts no new VMs, in words that follow "is"; empty if it does."""
    if is_witness(host):
        return "a witness"
    if annotations_of(host).get(MAINTENANCE_ANNOTATION):
        return "in maintenance"
    if evacuation.is_requested(host):
        return "being evacuated"
    return "cordoned" if at(host, "spec", "unschedulable") else ""


def may_be_migrating_guests(host: Obj) -> bool:
    """Return whether Harvester may be migrating VMs from a host: it is drained, and alive."""
    return evacuation.is_in_maintenance(host) and is_ready(host)


def blocking_taints(host: Obj) -> Iterator[Obj]:
    """Yield the taints of a host that keep VMs away, except those for its readiness."""
    for taint in list_at(host, "spec", "taints"):
        is_blocking = isinstance(taint, dict) and taint.get("effect") in _BLOCKING_EFFECTS
        if is_blocking and taint.get("key") not in _UNREADY_TAINTS:
            yield taint
