"""What is reported of an evacuation when servers refuse, fail or say nothing that makes sense."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.evacuation import hosts_left
from caphv.api.names import (
    EVACUATED_STRATEGY_ANNOTATION,
    SKIP_REMEDIATION_ANNOTATION,
)
from caphv.api.object import Obj, annotations_of
from caphv.runtime.errors import ApiError, Conflict, Forbidden, NotFound, ServerFault, Unreachable
from reconciler.cluster.evacuation.plan import Stage
from tests.support.reconciler.evacuation import (
    add_host,
    add_pod,
    cluster,
    drained,
    found,
    later,
    message_of,
    records,
    stop,
    vm_of,
)

pytestmark = pytest.mark.unit


async def test_a_dead_workload_api_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    case.workload.errors = {"get": ServerFault(503, "x", "no leader")}
    await case.reconcile()
    assert "its Node cannot be drained" in message_of(case)
    assert "no leader" in message_of(case)
    later(monkeypatch, Stage.DRAIN)
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"

    add_host(case, "h0")
    await case.reconcile()
    later(monkeypatch, Stage.DRAIN)
    await case.reconcile()
    assert "to uncordon its Node, no leader; repair it" in message_of(case)


async def test_a_value_without_a_meaning_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, evacuate="yes")
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert "of host h0 is yes: write true" in message_of(case)

    add_host(case, "h2", evacuate="true")
    for _ in range(2):
        await case.reconcile()
        assert case.condition("HostsEvacuated") == ("True", "HostsEvacuated")
        assert hosts_left(message_of(case)) == {"h2"}
        assert "of host h0 is yes: write true" in message_of(case)
    assert case.events.count(("Warning", "EvacuationBlocked")) == 2
    add_host(case, "h2")
    drained(case, "h1", "drain-requested")
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    add_host(case, "h1")
    add_host(case, "h0")
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("", "")


@pytest.mark.parametrize("place", ["value", "status"])
async def test_texts_of_harvester_are_cut(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    long = "\x1b[31m" + "x" * 40_000
    case = await cluster(monkeypatch, "w", evacuate=long if place == "value" else "true")
    await case.reconcile()
    if place == "status":
        await stop(case, "w")
        case.harvester.put({**vm_of(case, "w"), "status": {"printableStatus": long}})
        await case.reconcile()
        later(monkeypatch, Stage.START)
    await case.reconcile()
    await case.reconcile()
    assert "xxx" in message_of(case)
    assert len(message_of(case)) < 512
    assert case.events.count(("Warning", "EvacuationBlocked")) == 1


@pytest.mark.parametrize(
    ("server", "where", "part"),
    [
        ("management", "patch Machine", "grant its ServiceAccount patch on machines.cluster.x-k8s.io"),
        ("workload", "patch Node", "Node w cannot be cordoned"),
        ("harvester", "patch VirtualMachine", "a request was refused"),
    ],
)
async def test_what_a_server_refuses_is_reported(
    monkeypatch: pytest.MonkeyPatch, server: str, where: str, part: str
) -> None:
    case = await cluster(monkeypatch, "w")
    resource = "machines.cluster.x-k8s.io" if server == "management" else where
    getattr(case, server).errors[where] = Forbidden(403, "Forbidden", f"{resource} is forbidden")
    getattr(case, server).requests.clear()
    await case.reconcile()
    attempts = [request for request in getattr(case, server).requests if request.startswith(where)]
    # Without the right to hold a Machine, it is tried again whether others can leave.
    assert len(attempts) == (2 if server == "management" else 1), "it is repeated later"
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert part in message_of(case)
    assert case.condition("Ready")[0] == "True"

    getattr(case, server).errors.clear()
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("patch VirtualMachine", ServerFault(500, "x", "no webhook")),
        ("patch VirtualMachine", Unreachable("no webhook")),
        ("list Node", ServerFault(500, "x", "no webhook")),
    ],
    ids=["fault", "unreachable", "read"],
)
async def test_a_request_that_fails_for_long_holds_nothing_else_up(
    monkeypatch: pytest.MonkeyPatch, where: str, error: ApiError | Unreachable
) -> None:
    case = await cluster(monkeypatch, "w")
    case.harvester.errors[where] = error
    result = await case.reconcile()
    assert result is not None, "later phases have run, and it is repeated"
    assert message_of(case) == "a request failed, which is repeated: no webhook"
    assert ("Warning", "EvacuationBlocked") not in case.events
    case.harvester.errors.clear()
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_an_eviction_without_an_answer_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    add_pod(case, "web", "w")

    async def request(*_: Any, **__: Any) -> Any:
        raise Unreachable("no route")

    case.workload.request = request  # type: ignore[method-assign]
    assert await case.reconcile() is not None
    assert "draining its Node, default/web left; no route" in message_of(case)


async def test_an_annotation_that_a_user_sets_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    patch = case.management.patch

    async def after_user(resource: Any, name: str, namespace: str = "", *args: Any, **options: Any) -> Obj:
        if resource.kind == "Machine":
            machine = found(case, "Machine", name)
            machine["metadata"]["annotations"] = {SKIP_REMEDIATION_ANNOTATION: "by a user"}
            case.management.put(machine)
            monkeypatch.setattr(case.management, "patch", patch)
        return await patch(resource, name, namespace, *args, **options)

    monkeypatch.setattr(case.management, "patch", after_user)
    with pytest.raises(Conflict):
        await case.reconcile()
    await case.reconcile()
    assert annotations_of(found(case, "Machine", "m-w")) == {SKIP_REMEDIATION_ANNOTATION: "by a user"}
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_a_node_that_is_deleted_meanwhile_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    case.workload.errors["patch Node"] = NotFound(404, "NotFound", "deleted")
    case.workload.errors["get Node"] = NotFound(404, "NotFound", "deleted")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_hosts_that_were_evacuated_are_unknown_while_harvester_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await cluster(monkeypatch)
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "True"
    monkeypatch.setattr(case.session.hosts, "current", False)
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "Unknown"
    assert hosts_left(message_of(case)) == set()
    monkeypatch.setattr(case.session.hosts, "current", True)
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "True"


@pytest.mark.parametrize("source", ["namespace", "hosts"])
async def test_caches_that_do_not_follow_harvester_are_waited_for(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    case = await cluster(monkeypatch, "w")
    cache = case.namespace if source == "namespace" else case.session.hosts
    monkeypatch.setattr(cache, "current", False)
    await case.reconcile()
    assert records(case, "w") == set()
    assert case.condition("HostsEvacuated") == ("", ""), "nothing was known that is not known any more"
    monkeypatch.setattr(cache, "current", True)
    await case.reconcile()
    assert EVACUATED_STRATEGY_ANNOTATION in records(case, "w")
