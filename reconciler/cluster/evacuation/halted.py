"""Recognise the VMs that Harvester itself has halted to drain their host."""

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

# A VM with one of these was halted by parking, for lack of quota, or for a maintenance after which
# Harvester starts it again.
_OTHER_CAUSES = {
    PARKED_STRATEGY_ANNOTATION,
    INSUFFICIENT_QUOTA_ANNOTATION,
    MAINTENANCE_HOST_ANNOTATION,
}
# Harvester stops the VMs of a host seconds before it marks the host as draining. Accept VMs that
# stopped before the mark, also for a provider that starts later.
_RECENT_SECONDS = 600.0


def halted_on(scope: ClusterScope, machine: Obj, vm: Obj, instance: Obj | None) -> str:
    """Return the name of the host for whose drain Harvester has halted a VM; empty if it has not.

    Harvester leaves no record on the VM. It counts as halted by Harvester if it is stopping or has
    stopped recently, its last host is being drained by force or may have been, and nothing else
    explains its stop.
    """
    has_other_cause = not _OTHER_CAUSES.isdisjoint(annotations_of(vm))
    is_shut_down = labels_of(vm).get(MAINTENANCE_STRATEGY_LABEL) == "Shutdown"
    if has_other_cause or is_shut_down or run_strategy(vm) != HALTED:
        return ""

    name = text_at(machine, "status", "virtualMachine", "host")
    host = scope.require_session().hosts.get("", name) if name else None
    if host is None or not evacuation.may_have_halted_guests(host):
        return ""
    return name if instance is not None or _has_stopped_recently(vm) else ""


def _has_stopped_recently(vm: Obj) -> bool:
    """Return whether KubeVirt has reported for at most ten minutes that a VM is not ready."""
    condition = get_condition(list_at(vm, "status", "conditions"), "Ready") or {}
    since = str(condition.get("lastTransitionTime") or "")
    is_down = condition.get("status") != "True" and bool(since)
    return is_down and seconds_since(since) < _RECENT_SECONDS
