"""Recognise the VMs that Harvester itself has halted for the drain of their host."""

from __future__ import annotations

from caphv.api import evacuation
from caphv.api.conditions import get_condition, seconds_since
from caphv.api.names import (
    INSUFFICIENT_QUOTA_ANNOTATION,
    MAINTENANCE_HOST_ANNOTATION,
    MAINTENANCE_STRATEGY_LABEL,
    PARKED_STRATEGY_ANNOTATION,
)
from caphv.api.object import Obj, annotations_of, labels_of, list_at, text_at
from reconciler.cluster.parking.plan import HALTED
from reconciler.cluster.parking.reading import run_strategy
from reconciler.cluster.scope import ClusterScope

_KEPT = {
    PARKED_STRATEGY_ANNOTATION,
    INSUFFICIENT_QUOTA_ANNOTATION,
    MAINTENANCE_HOST_ANNOTATION,
}
# Harvester stops the VMs of a host seconds before it marks the host as being drained. A provider
# that starts meanwhile finds them, too.
_LATELY_SECONDS = 600.0


def halted_on(scope: ClusterScope, machine: Obj, vm: Obj, instance: Obj | None) -> str:
    """Return the host for whose drain Harvester has halted a VM; empty if it has not.

    Harvester leaves no record of that on the VM. So it is one that stopped while its last host was
    drained, unless that was not by force, or shortly before, and that neither its user nor a quota
    keeps stopped.
    """
    annotations = annotations_of(vm)
    is_kept = not _KEPT.isdisjoint(annotations)
    is_shut_down = labels_of(vm).get(MAINTENANCE_STRATEGY_LABEL) == "Shutdown"
    if is_kept or is_shut_down or run_strategy(vm) != HALTED:
        return ""
    name = text_at(machine, "status", "virtualMachine", "host")
    host = scope.require_session().hosts.get("", name) if name else None
    if host is None or not evacuation.halts_guests(host):
        return ""
    return name if instance is not None or _stopped_lately(vm) else ""


def _stopped_lately(vm: Obj) -> bool:
    """Return whether KubeVirt has reported in the last minutes that a VM is not ready."""
    condition = get_condition(list_at(vm, "status", "conditions"), "Ready") or {}
    since = str(condition.get("lastTransitionTime") or "")
    is_down = condition.get("status") != "True" and bool(since)
    return is_down and seconds_since(since) < _LATELY_SECONDS
