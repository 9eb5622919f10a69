"""Hosts of Harvester, which are Nodes of its cluster: whether they can take VMs."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api import evacuation
from caphv.api.names import CPU_MANAGER_LABEL, MAINTENANCE_ANNOTATION, WITNESS_LABEL
from caphv.api.object import Obj, annotations_of, at, labels_of, list_at

_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
# Taints that follow from condition Ready, which is read itself.
_UNREADY_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def is_ready(host: Obj) -> bool:
    """Return whether the kubelet of a host reports that it is ready.

    Taints are no evidence: a new Node has that of one that is not ready until a controller removes
    it.
    """
    return any(
        (at(condition, "type"), at(condition, "status")) == ("Ready", "True")
        for condition in list_at(host, "status", "conditions")
    )


def is_witness(host: Obj) -> bool:
    """Return whether a host only votes in etcd and runs no VMs."""
    return labels_of(host).get(WITNESS_LABEL) == "true"


def has_cpu_manager(host: Obj) -> bool:
    """Return whether the CPU manager of a host is enabled, so that VMs with pinned CPUs start."""
    return labels_of(host).get(CPU_MANAGER_LABEL) == "true"


def accepts_machines(host: Obj) -> bool:
    """Return whether a host may run new VMs. Whether it is ready is another question."""
    return not why_closed(host)


def why_closed(host: Obj) -> str:
    """Return what keeps new VMs from a host, as a predicate of it; empty if it accepts them."""
    if is_witness(host):
        return "a witness"
    if annotations_of(host).get(MAINTENANCE_ANNOTATION):
        return "in maintenance"
    if evacuation.is_wanted(host):
        return "being evacuated"
    return "cordoned" if at(host, "spec", "unschedulable") else ""


def migrates_guests(host: Obj) -> bool:
    """Return whether Harvester may be migrating VMs from a host: it is drained, and not dead."""
    return evacuation.is_drained(host) and is_ready(host)


def blocking_taints(host: Obj) -> Iterator[Obj]:
    """Yield the taints of a host that keep VMs away, other than those for its readiness."""
    for taint in list_at(host, "spec", "taints"):
        is_blocking = isinstance(taint, dict) and taint.get("effect") in _BLOCKING_EFFECTS
        if is_blocking and taint.get("key") not in _UNREADY_TAINTS:
            yield taint
