"""Predict when MachineHealthChecks replace machines.

The core marks a Machine once a condition of its Node, or of the Machine, has lasted as long as the
check says. The Machine repeats the times of its Node's conditions, so that the workload cluster
need not be asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from caphv.api import clusterapi
from caphv.api.object import Key, Obj, at, being_deleted, key_of, labels_of
from operations.read.objects import ManagementObjects, by_key, condition_of, time_of

_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@dataclass(frozen=True, slots=True)
class Replacement:
    """The reaction of a MachineHealthCheck to a machine: at most one field is set."""

    at: str = ""
    """The time at which the check marks the machine."""
    under_way: bool = False
    """Whether the check has marked the machine, so that its owner replaces it."""
    refused: bool = False
    """Whether the check does not mark the machine, because too many are unhealthy."""


def replacements_of(objects: ManagementObjects) -> dict[Key, Replacement]:
    """Return the reactions of health checks to unhealthy Machines."""
    clusters = by_key(objects.clusters)
    checks = [
        check for check in objects.machine_health_checks if not clusterapi.paused(None, check)
    ]

    replacements = {}
    for machine in objects.machines:
        cluster = clusters.get(Key(key_of(machine).namespace, clusterapi.cluster_name(machine)))
        if cluster is None or being_deleted(machine) or clusterapi.paused(cluster, cluster):
            continue
        if replacement := _replacement(machine, cluster, checks):
            replacements[key_of(machine)] = replacement
    return replacements


def is_unhealthy(machine: Obj) -> bool:
    """Whether a MachineHealthCheck reports that a Machine is unhealthy."""
    return condition_of(machine, "HealthCheckSucceeded").get("status") == "False"


def is_marked(machine: Obj) -> bool:
    """Whether a MachineHealthCheck has marked a Machine, so that its owner replaces it.

    An unhealthy Machine is not marked while too many are unhealthy (cluster-api v1.13
    `machinehealthcheck_controller.go`), or if a remediation template replaces it.
    """
    return condition_of(machine, "OwnerRemediated").get("status") == "False"


def _replacement(machine: Obj, cluster: Obj, checks: Iterable[Obj]) -> Replacement | None:
    """Return the reaction of health checks to a Machine; None if they find it healthy."""
    if is_unhealthy(machine) and is_marked(machine):
        return Replacement(under_way=True)

    due: list[datetime] = []
    refused = False
    for check in checks:
        if not _selects(check, machine, cluster):
            continue
        times = [*_due_times(check, machine, cluster)]
        # A check marks no machine if more machines are unhealthy than it allows.
        if times and condition_of(check, "RemediationAllowed").get("status") == "False":
            refused = True
        else:
            due += times

    if refused and not due:
        return Replacement(refused=True)
    if is_unhealthy(machine):
        return Replacement(under_way=True)
    return Replacement(at=min(due).isoformat().replace("+00:00", "Z")) if due else None


def _selects(check: Obj, machine: Obj, cluster: Obj) -> bool:
    """Whether a check selects a machine; one with `matchExpressions` counts as selecting none."""
    spec = check.get("spec") or {}
    selector = spec.get("selector") or {}
    if key_of(check).namespace != key_of(machine).namespace:
        return False
    if spec.get("clusterName") != key_of(cluster).name or selector.get("matchExpressions"):
        return False
    required = selector.get("matchLabels") or {}
    return bool(required.items() <= labels_of(machine).items())


def _due_times(check: Obj, machine: Obj, cluster: Obj) -> Iterator[datetime]:
    """Yield for each matching rule the time at which the check finds the machine unhealthy."""
    spec = check.get("spec") or {}
    rules = spec.get("checks") or {}

    # v1beta2 has the rules in `checks`, v1beta1 in the spec itself.
    node_rules = [
        *(rules.get("unhealthyNodeConditions") or ()),
        *(spec.get("unhealthyConditions") or ()),
    ]
    # Cores before v1beta2 report only the second condition.
    node_ready = condition_of(machine, "NodeReady") or condition_of(machine, "NodeHealthy")
    for rule in node_rules:
        if rule.get("type") == "Ready":
            yield from _expiry_times(rule, node_ready)
    for rule in rules.get("unhealthyMachineConditions") or ():
        yield from _expiry_times(rule, condition_of(machine, str(rule.get("type"))))

    # A Node that was deleted makes the machine unhealthy at once, without a rule.
    healthy = condition_of(machine, "NodeHealthy")
    if healthy.get("status") == "False" and healthy.get("reason") == "NodeDeleted":
        yield from _times_after(healthy, timedelta(0))

    # The time for a Node to appear begins once the control plane works and the Machine exists.
    startup = _parse_timeout(rules.get("nodeStartupTimeoutSeconds", spec.get("nodeStartupTimeout")))
    initialized = condition_of(cluster, "ControlPlaneInitialized")
    has_node = at(machine, "status", "nodeRef", "name")
    if startup and not has_node and initialized.get("status") == "True":
        created = {"lastTransitionTime": machine["metadata"].get("creationTimestamp")}
        times = [*_times_after(initialized, startup), *_times_after(created, startup)]
        yield max(times, default=datetime.max)


def _expiry_times(rule: Obj, condition: Obj) -> Iterator[datetime]:
    """Yield the time at which a condition will have lasted longer than a rule allows."""
    if condition.get("status") == rule.get("status"):
        timeout = _parse_timeout(rule.get("timeoutSeconds", rule.get("timeout")))
        yield from _times_after(condition, timeout)


def _times_after(condition: Obj, delay: timedelta) -> Iterator[datetime]:
    """Yield the begin of a condition plus a delay, if the begin is known."""
    if since := time_of(condition.get("lastTransitionTime")):
        yield since + delay


def _parse_timeout(value: Any) -> timedelta:
    """Parse a number of seconds (v1beta2), or a duration of Go such as `5m30s` (v1beta1)."""
    if isinstance(value, int):
        return timedelta(seconds=value)
    parts = re.findall(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|h|m|s)", str(value or "")[:40])
    return timedelta(seconds=sum(float(number) * _SECONDS[unit] for number, unit in parts))
