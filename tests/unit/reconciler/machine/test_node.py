"""What happens to a machine's Node, as JSON patches."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key, Obj
from caphv.runtime.errors import ApiError, Conflict, Forbidden, Invalid, Unreachable, error_from
from reconciler.machine import node as node_module
from reconciler.machine.node import (
    UNREACHABLE_SECONDS,
    initialization,
    initialize_node,
    labelling,
    set_provider_id,
    topology,
)
from reconciler.memory.machine import MachineMemory

pytestmark = pytest.mark.unit

UNINITIALIZED = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"}
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"


def applied(obj: Obj, patch: list[dict[str, Any]]) -> Obj:
    """Apply `add`, `remove` and `test` of a JSON patch as an API server does."""
    result = copy.deepcopy(obj)
    for step in patch:
        *parents, last = (part.replace("~1", "/") for part in step["path"].split("/")[1:])
        place: Any = result
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        key = int(last) if isinstance(place, list) else last
        if step["op"] == "test":
            assert place[key] == step["value"]
        elif step["op"] == "remove":
            del place[key]
        else:
            place[key] = step["value"]
    return result


def node(labels: dict[str, str] | None = None, **spec: Any) -> Obj:
    return {"metadata": {"name": "one", **({"labels": labels} if labels is not None else {})}, "spec": spec}


class Workloads:
    """One Node, and an API server that answers every patch with an error."""

    def __init__(self, error: ApiError | Unreachable, node: Obj) -> None:
        self.error: ApiError | Unreachable | None = error
        self.found = node
        self.patches = 0

    async def ensure(self, _key: Key) -> None:
        return

    def node(self, _key: Key, _name: str) -> Obj:
        return self.found

    def client(self, _key: Key) -> Workloads:
        return self

    async def patch(self, *_args: object, **_more: object) -> Obj:
        self.patches += 1
        if self.error:
            raise self.error
        return self.found

    def cache_node(self, _key: Key, _node: Obj) -> None:
        return


DENIED = 'admission webhook "nodes.example.com" denied the request: no'


@pytest.mark.parametrize(
    ("status", "message", "raised", "events"),
    [
        (422, "the test failed", Conflict, []),
        (500, DENIED, Invalid, [f"NodeInitializationFailed: cannot initialize Node one: {DENIED}"]),
    ],
)
async def test_denial_is_reported_and_a_concurrent_change_is_not(
    status: int, message: str, raised: type[ApiError], events: list[str]
) -> None:
    scope, reported = scope_with(error_from(status, {"message": message}), node(taints=[UNINITIALIZED]))
    with pytest.raises(raised, match=message):
        await initialize_node(scope, "harvester://1")
    assert reported == events


async def test_labels_that_cannot_be_written_are_no_failed_initialization() -> None:
    scope, reported = scope_with(error_from(403, {"message": "no"}), node(providerID="harvester://1"))
    with pytest.raises(ApiError):
        await initialize_node(scope, "harvester://1")
    assert reported == ["NodeInitializationFailed: cannot update the zone and region of Node one: no"]


@pytest.mark.parametrize(
    "error", [Unreachable("no route"), error_from(503, {"message": "no endpoints"}), error_from(429, {"message": "no"})]
)
async def test_workload_api_that_does_not_answer_is_reported_once_it_lasts(
    error: ApiError | Unreachable, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(node_module.time, "monotonic", lambda: now)
    scope, reported = scope_with(error, node(providerID="harvester://1"))

    async def attempt(at: float) -> list[str]:
        nonlocal now
        now = at
        with pytest.raises(type(error)):
            await initialize_node(scope, "harvester://1")
        return reported

    assert await attempt(100.0) == []
    assert await attempt(99.9 + UNREACHABLE_SECONDS) == []
    assert len(await attempt(100.0 + UNREACHABLE_SECONDS)) == 1

    # An answer ends the outage: the next one is normal for a while again.
    scope.context.workloads.error = None
    await initialize_node(scope, "harvester://1")
    scope.context.workloads.error = error
    assert len(await attempt(101.0 + UNREACHABLE_SECONDS)) == 1


async def test_node_that_has_all_is_not_patched() -> None:
    scope, reported = scope_with(error_from(500, {}), node({ZONE: "a"}, providerID="harvester://1"))
    await initialize_node(scope, "harvester://1")
    assert (scope.context.workloads.patches, reported) == (0, [])


@pytest.mark.parametrize(("present", "kept"), [("k3s://one", True), ("", False)])
async def test_refused_provider_id_ends_no_reconcile_of_a_machine_that_has_one(present: str, kept: bool) -> None:
    async def refuse(_patch: Obj) -> None:
        raise Forbidden(403, "Forbidden", "spec.providerID is immutable")

    scope, reported = scope_with(error_from(500, {}), node(providerID="rke2://one"))
    delays: list[float] = []
    scope.spec, scope.patch, scope.requeue_in = {"providerID": present}, refuse, delays.append
    vm = {"metadata": {"name": "one", "uid": "vm"}}
    if kept:
        assert await set_provider_id(scope, vm, {}) == present
        message = "cannot write providerID rke2://one of Node one: spec.providerID is immutable"
        assert (reported, len(delays)) == ([f"NodeInitializationFailed: {message}"], 1)
    else:
        with pytest.raises(Forbidden):
            await set_provider_id(scope, vm, {})


def scope_with(error: ApiError | Unreachable, found: Obj) -> tuple[Any, list[str]]:
    """A machine with this Node on a host of zone `a`, and the Events that it reports."""
    reported: list[str] = []
    scope = SimpleNamespace(
        cluster_key=Key("ns", "demo"),
        name="one",
        memory=MachineMemory("u"),
        context=SimpleNamespace(workloads=Workloads(error, found)),
        instance=lambda: {"metadata": {}},
        host_of=lambda _: {"metadata": {"labels": {ZONE: "a"}}},
        warning_event=lambda reason, message: reported.append(f"{reason}: {message}"),
    )
    return scope, reported


def test_topology_is_what_the_host_tells() -> None:
    host = {"metadata": {"labels": {ZONE: "a", REGION: "r", "kubernetes.io/hostname": "h"}}}
    assert topology(host) == {ZONE: "a", REGION: "r"}
    assert topology({"metadata": {}}) == {}


labels = st.dictionaries(st.sampled_from([ZONE, REGION, "x", "y/z"]), st.sampled_from(["a", "b"]))


@given(st.none() | labels, labels)
def test_labelling_gives_the_wanted_and_keeps_the_others(
    present: dict[str, str] | None, wanted: dict[str, str]
) -> None:
    before = node(present)
    after = applied(before, labelling(before, wanted))
    assert after["metadata"].get("labels", {}) == {**(present or {}), **wanted}
    assert labelling(after, wanted) == []


def test_one_patch_initializes_and_labels() -> None:
    taints = [{"key": "a"}, {"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"}]
    before = node({"x": "y"}, taints=taints)
    after = applied(before, initialization(before, "harvester://1") + labelling(before, {ZONE: "a"}))
    assert after["spec"] == {"providerID": "harvester://1", "taints": [{"key": "a"}]}
    assert after["metadata"]["labels"] == {"x": "y", ZONE: "a"}
