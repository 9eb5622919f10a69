"""Runtime extensions that update machines in place, as the doctor sees them."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from operations.doctor import extensions
from operations.status.check import Result
from tests.support.clusters import condition

pytestmark = pytest.mark.unit


def extension(name: str, hook: str = "UpdateMachine", **labels: str) -> Obj:
    handlers = [{"name": f"x.{name}", "requestHook": {"apiVersion": "hooks/v1alpha1", "hook": hook}}]
    return {
        "metadata": {"name": name},
        "spec": {"namespaceSelector": {"matchLabels": labels} if labels else {}},
        "status": {"handlers": handlers, "conditions": [condition("Discovered", "True")]},
    }


TEAMS: list[Obj] = [{"metadata": {"name": name, "labels": {"team": name}}} for name in ("a", "b")]
UNDISCOVERED: Obj = {
    "metadata": {"name": "x"},
    "status": {"conditions": [condition("Discovered", "False", "NotDiscovered", "no answer")]},
}


@pytest.mark.parametrize(
    ("configs", "result", "text"),
    [
        ([extension("x")], Result.OK, "ExtensionConfig x updates machines in place"),
        ([UNDISCOVERED], Result.ERROR, "ExtensionConfig x: no answer"),
        (
            [extension("y"), extension("x", team="b")],
            Result.ERROR,
            "ExtensionConfigs x, y all update machines in place in namespace b",
        ),
        ([extension("y", team="a"), extension("x", team="b")], Result.OK, "x, y"),
        ([extension("y", "BeforeClusterCreate"), extension("x")], Result.OK, "ExtensionConfig x updates"),
    ],
)
def test_extensions(configs: list[Obj], result: Result, text: str) -> None:
    (check,) = extensions.checks(configs, TEAMS, "management cluster")
    assert (check.id, check.result, text in check.message) == ("in-place-updates", result, True)
    assert bool(check.remedy) == check.wrong


def test_several_updaters_cannot_be_checked_without_namespaces() -> None:
    (check,) = extensions.checks([extension("y", team="a"), extension("x")], [], "management cluster")
    assert (check.result, check.remedy) == (Result.SKIPPED, "")
    assert [check.result for check in extensions.checks([extension("x")], [], "management cluster")] == [Result.OK]


def test_extension_that_is_not_discovered_says_what_it_stops() -> None:
    (check,) = extensions.checks([UNDISCOVERED], TEAMS, "management cluster")
    assert "stops for all clusters" in check.remedy


def test_other_extensions_are_none_of_our_business() -> None:
    assert list(extensions.checks([extension("y", "BeforeClusterCreate")], TEAMS, "management cluster")) == []
