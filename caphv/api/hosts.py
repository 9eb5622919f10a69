"""Hosts of Harvester, which are Nodes of its cluster: whether they can take VMs."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.names import WITNESS_LABEL
from caphv.api.object import Obj, at, labels_of

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
        for condition in at(host, "status", "conditions") or ()
    )


def is_witness(host: Obj) -> bool:
    """Return whether a host only votes in etcd and runs no VMs."""
    return labels_of(host).get(WITNESS_LABEL) == "true"


def blocking_taints(host: Obj) -> Iterator[Obj]:
    """Yield the taints of a host that keep VMs away, other than those for its readiness."""
    for taint in at(host, "spec", "taints") or ():
        is_blocking = isinstance(taint, dict) and taint.get("effect") in _BLOCKING_EFFECTS
        if is_blocking and taint.get("key") not in _UNREADY_TAINTS:
            yield taint
