"""When MachineHealthChecks replace machines: pure, from plain objects.

The core marks a Machine after a condition of its Node, or of itself, has lasted as long as the check says. The Machine
repeats when its Node changed, so that nothing has to be asked of the workload cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from caphv.api import clusterapi
from caphv.api.object import Key, Obj, being_deleted, key_of, labels_of
from overview.objects import ManagementObjects, by_key, condition_of

# What a Machine calls the condition of its Node; cores before v1beta2 have the second one only.
_READY_OF_NODE = ("NodeReady", "NodeHealthy")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@dataclass(frozen=True, slots=True)
class Replacement:
    """What a MachineHealthCheck does about a machine: at most one of these is set."""

    at: str = ""
    """When it marks the machine."""
    under_way: bool = False
    """It has marked the machine, whose owner replaces it."""
    refused: bool = False
    """It does not mark the machine, because too many are unhealthy."""


def replacements_of(objects: ManagementObjects) -> dict[Key, Replacement]:
    """Return what health checks do about the Machines that are unhealthy."""
    clusters = by_key(objects.clusters)
    checks = [check for check in objects.machine_health_checks if not clusterapi.paused(None, check)]
    replacements = {}
    for machine in objects.machines:
        cluster = clusters.get(Key(key_of(machine).namespace, clusterapi.cluster_name(machine)))
        if cluster is None or being_deleted(machine) or clusterapi.paused(cluster, cluster):
            continue
        if replacement := _replacement(machine, cluster, checks):
            replacements[key_of(machine)] = replacement
    return replacements


def _replacement(machine: Obj, cluster: Obj, checks: Iterable[Obj]) -> Replacement | None:
    if condition_of(machine, "HealthCheckSucceeded").get("status") == "False":
        return Replacement(under_way=True)

    due: list[datetime] = []
    refused = False
    for check in checks:
        if not _selects(check, machine, cluster):
            continue
        times = [*_due(check, machine, cluster)]
        if times and condition_of(check, "RemediationAllowed").get("status") == "False":
            refused = True
        else:
            due += times

    if due:
        return Replacement(at=min(due).isoformat().replace("+00:00", "Z"))
    return Replacement(refused=True) if refused else None


def _selects(check: Obj, machine: Obj, cluster: Obj) -> bool:
    """Whether a check is about a machine; one with `matchExpressions` is taken to be about none."""
    spec = check.get("spec") or {}
    selector = spec.get("selector") or {}
    if key_of(check).namespace != key_of(machine).namespace:
        return False
    if spec.get("clusterName") != key_of(cluster).name or selector.get("matchExpressions"):
        return False
    return bool((selector.get("matchLabels") or {}).items() <= labels_of(machine).items())


def _due(check: Obj, machine: Obj, cluster: Obj) -> Iterator[datetime]:
    """Yield when the check finds the machine unhealthy, for each of its rules that begins to apply."""
    spec = check.get("spec") or {}
    rules = spec.get("checks") or {}
    of_node = [*(rules.get("unhealthyNodeConditions") or ()), *(spec.get("unhealthyConditions") or ())]
    for rule in of_node:
        if rule.get("type") == "Ready":
            ready = next(filter(None, (condition_of(machine, kind) for kind in _READY_OF_NODE)), {})
            yield from _expiry(rule, ready)
    for rule in rules.get("unhealthyMachineConditions") or ():
        yield from _expiry(rule, condition_of(machine, str(rule.get("type"))))

    healthy = condition_of(machine, "NodeHealthy")
    if healthy.get("status") == "False" and healthy.get("reason") == "NodeDeleted":
        yield from _after(healthy, timedelta(0))

    startup = _timeout(rules.get("nodeStartupTimeoutSeconds", spec.get("nodeStartupTimeout")))
    initialized = condition_of(cluster, "ControlPlaneInitialized")
    has_node = ((machine.get("status") or {}).get("nodeRef") or {}).get("name")
    if startup and not has_node and initialized.get("status") == "True":
        created = {"lastTransitionTime": machine["metadata"].get("creationTimestamp")}
        yield max((*_after(initialized, startup), *_after(created, startup)), default=datetime.max)


def _expiry(rule: Obj, condition: Obj) -> Iterator[datetime]:
    if condition.get("status") == rule.get("status"):
        yield from _after(condition, _timeout(rule.get("timeoutSeconds", rule.get("timeout"))))


def _after(condition: Obj, delay: timedelta) -> Iterator[datetime]:
    try:
        yield datetime.fromisoformat(str(condition.get("lastTransitionTime"))) + delay
    except ValueError:
        return


def _timeout(value: Any) -> timedelta:
    """A number of seconds (v1beta2), or a duration of Go such as `5m30s` (v1beta1)."""
    if isinstance(value, int):
        return timedelta(seconds=value)
    parts = re.findall(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|h|m|s)", str(value or "")[:40])
    return timedelta(seconds=sum(float(number) * _SECONDS[unit] for number, unit in parts))
