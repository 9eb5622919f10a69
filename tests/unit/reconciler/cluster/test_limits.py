"""A limit that was reached is in a condition, until it no longer is."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import conditions
from caphv.api.names import ConditionType
from caphv.api.object import Obj
from reconciler.cluster.limits import report_limits
from reconciler.cluster.scope import ClusterScope
from reconciler.statusdraft import StatusDraft

pytestmark = pytest.mark.unit


def reported(
    limits: list[str], *, workload: tuple[str, ...] = (), events: bool = False, before: Obj | None = None
) -> Obj:
    """The status after a reconcile."""
    obj: Obj = {"metadata": {"namespace": "ns", "name": "c", "uid": "u"}, "status": before or {}}
    session: Any = SimpleNamespace(client=SimpleNamespace(limits=limits, server="https://harvester"))
    guest = SimpleNamespace(limits=list(workload), server="https://guest")
    context: Any = SimpleNamespace(
        events=SimpleNamespace(is_limited=lambda _obj: events),
        workloads=SimpleNamespace(client=lambda _cluster: guest),
    )
    scope = ClusterScope(context, obj, obj, StatusDraft(obj), cast(Any, session))
    report_limits(scope)
    assert bool(scope.requeue_after) == bool(limits or workload or events), "only time ends a limit"
    return scope.draft.fields


def condition(status: Obj) -> Obj | None:
    return conditions.get_condition(status.get("conditions") or [], ConditionType.WITHIN_LIMITS)


def test_condition_names_the_server_and_each_limit() -> None:
    found = condition(reported(["one", "two"], workload=("three",), events=True))
    assert found
    assert (found["status"], found["reason"]) == ("False", "LimitReached")
    assert found["message"] == (
        "Harvester at https://harvester: one, two; the workload cluster at https://guest: three; "
        "this HarvesterCluster has too many Events; further ones are not written"
    )


def test_condition_is_absent_without_a_limit() -> None:
    assert condition(reported([])) is None
    assert condition(reported([], before=reported(["one"]))) is None
