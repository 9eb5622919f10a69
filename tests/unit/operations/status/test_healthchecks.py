"""When MachineHealthChecks replace machines, as the page says it."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.names import PAUSED_ANNOTATION
from caphv.api.object import Key, Obj
from operations.status.healthchecks import Replacement, replacements_of
from tests.support.clusters import Builder, ago, condition

WORKER = Key("team", "worker-1")
LABELS = {"cluster.x-k8s.io/cluster-name": "shop"}


def check(selector: Obj | None = None, **spec: Any) -> Obj:
    whole = {"clusterName": "shop", "selector": selector or {"matchLabels": LABELS}, **spec}
    return {"metadata": {"name": "check", "namespace": "team"}, "spec": whole}


def of_node(status: str = "Unknown", seconds: int = 300) -> Obj:
    rule = {"type": "Ready", "status": status, "timeoutSeconds": seconds}
    return {"unhealthyNodeConditions": [rule]}


def replacement(*checks: Obj, conditions: list[Obj], change: Any = None) -> Replacement | None:
    builder = Builder()
    builder.machines["worker-1"]["status"]["conditions"] = conditions
    if change:
        change(builder)
    objects = builder.objects()
    objects.machine_health_checks = list(checks)
    found = replacements_of(objects)
    assert found.keys() <= {WORKER}
    return found.get(WORKER)


NOT_READY = [condition("NodeReady", "Unknown", "NodeStatusUnknown", minutes=2)]
IN_THREE_MINUTES = Replacement(at=ago(minutes=-3))


@pytest.mark.parametrize(
    ("spec", "conditions", "expected"),
    [
        ({"checks": of_node()}, NOT_READY, IN_THREE_MINUTES),
        ({"checks": of_node("False")}, NOT_READY, None),
        # Cores before v1beta2.
        (
            {"unhealthyConditions": [{"type": "Ready", "status": "Unknown", "timeout": "5m"}]},
            NOT_READY,
            IN_THREE_MINUTES,
        ),
        (
            {"unhealthyConditions": [{"type": "Ready", "status": "Unknown", "timeout": "1h0m0s"}]},
            NOT_READY,
            Replacement(at=ago(minutes=-58)),
        ),
        (
            {"checks": of_node()},
            [condition("NodeHealthy", "Unknown", "NodeInspectionFailed", minutes=2)],
            IN_THREE_MINUTES,
        ),
        (
            {"checks": {"unhealthyMachineConditions": [{"type": "X", "status": "False", "timeoutSeconds": 60}]}},
            [condition("X", "False", minutes=2)],
            Replacement(at=ago(minutes=1)),
        ),
        (
            {"checks": of_node()},
            [condition("NodeHealthy", "False", "NodeDeleted", minutes=2)],
            Replacement(at=ago(minutes=2)),
        ),
        (
            {"checks": of_node()},
            [condition("HealthCheckSucceeded", "False", "UnhealthyNode"), *NOT_READY],
            Replacement(under_way=True),
        ),
        ({"checks": {"unhealthyNodeConditions": [{"type": "MemoryPressure", "status": "True"}]}}, NOT_READY, None),
    ],
)
def test_a_machine_is_replaced_when_a_rule_has_lasted(
    spec: Obj, conditions: list[Obj], expected: Replacement | None
) -> None:
    assert replacement(check(**spec), conditions=conditions) == expected


def test_the_first_of_several_rules_counts() -> None:
    checks = [check(checks=of_node(seconds=seconds)) for seconds in (900, 300)]
    assert replacement(*checks, conditions=NOT_READY) == IN_THREE_MINUTES


def test_a_check_of_other_machines_says_nothing() -> None:
    others: list[Obj] = [
        {"matchLabels": {"cluster.x-k8s.io/control-plane": ""}},
        {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
    ]
    checks = [check(selector, checks=of_node()) for selector in others]
    checks.append(check(checks=of_node()) | {"metadata": {"name": "check", "namespace": "other"}})
    checks.append(check(clusterName="other", checks=of_node()))
    assert replacement(*checks, conditions=NOT_READY) is None


def test_a_check_that_finds_too_many_unhealthy_refuses() -> None:
    refusing = check(checks=of_node())
    refusing["status"] = {"conditions": [condition("RemediationAllowed", "False", "TooManyUnhealthy")]}
    assert replacement(refusing, conditions=NOT_READY) == Replacement(refused=True)
    assert replacement(refusing, conditions=[condition("NodeReady", "True")]) is None
    unhealthy = [condition("HealthCheckSucceeded", "False", "UnhealthyNode"), *NOT_READY]
    assert replacement(refusing, conditions=unhealthy) == Replacement(refused=True)
    marked = [condition("OwnerRemediated", "False", "WaitingForRemediation"), *unhealthy]
    assert replacement(refusing, conditions=marked) == Replacement(under_way=True)


def test_nothing_is_replaced_while_cluster_or_check_is_paused() -> None:
    def pause(builder: Builder) -> None:
        builder.cluster["spec"]["paused"] = True

    def delete(builder: Builder) -> None:
        builder.machines["worker-1"]["metadata"]["deletionTimestamp"] = ago(minutes=1)

    acting = check(checks=of_node())
    for change in (pause, delete):
        assert replacement(acting, conditions=NOT_READY, change=change) is None
    acting["metadata"]["annotations"] = {PAUSED_ANNOTATION: ""}
    assert replacement(acting, conditions=NOT_READY) is None


@pytest.mark.parametrize("startup", [{"checks": {"nodeStartupTimeoutSeconds": 1200}}, {"nodeStartupTimeout": "20m0s"}])
def test_a_machine_without_a_node_has_time_after_the_control_plane_is_there(startup: Obj) -> None:
    def start(builder: Builder) -> None:
        machine = builder.machines["worker-1"]
        machine["metadata"]["creationTimestamp"] = ago(minutes=9)
        del machine["status"]["nodeRef"]
        builder.cluster["status"]["conditions"].append(condition("ControlPlaneInitialized", "True", minutes=7))

    found = replacement(check(**startup), conditions=[], change=start)
    assert found == Replacement(at=ago(minutes=-13))


@pytest.mark.parametrize("since", ["", "yesterday", None])
def test_a_condition_without_a_time_says_nothing(since: str | None) -> None:
    odd = {**NOT_READY[0], "lastTransitionTime": since}
    assert replacement(check(checks=of_node()), conditions=[odd]) is None
