"""Events help an operator and are never a load: repeated ones are counted, floods cut, failures swallowed."""

import asyncio
import logging
from typing import Any, cast

import pytest

from caphv.api.object import Obj, Resource
from caphv.runtime import metrics
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound
from caphv.runtime.events import EventRecorder
from tests.support import memory
from tests.support.waiting import ended

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


class Written:
    """Takes the requests of a recorder."""

    def __init__(self) -> None:
        self.created: list[Obj] = []
        self.patched: list[tuple[str, Obj]] = []
        self.failures: list[Exception] = []

    async def create(self, _resource: Resource, obj: Obj) -> Obj:
        if self.failures:
            raise self.failures.pop()
        self.created.append(obj)
        return obj

    async def patch(self, _resource: Resource, name: str, _namespace: str, patch: Obj) -> Obj:
        if self.failures:
            raise self.failures.pop()
        self.patched.append((name, patch))
        return {}


def recorder(written: Written) -> EventRecorder:
    return EventRecorder(cast(ApiClient, written), "caphv")


def machine(name: str = "m", uid: str = "u1") -> Obj:
    metadata = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": "7"}
    return {"apiVersion": "example.io/v1", "kind": "Thing", "metadata": metadata}


def dropped() -> float:
    return cast(Any, metrics.EVENTS_DROPPED)._value.get()


async def test_event_says_who_what_and_why() -> None:
    written = Written()
    events = recorder(written)
    events.event(machine(), "Warning", "VMFailed", "no host has room")
    await events.flush()
    event = written.created[0]
    assert event["metadata"]["namespace"] == "ns"
    assert event["involvedObject"] == {
        "apiVersion": "example.io/v1",
        "kind": "Thing",
        "name": "m",
        "namespace": "ns",
        "uid": "u1",
        "resourceVersion": "7",
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "VMFailed", "no host has room")
    assert event["source"] == {"component": "caphv"}
    assert event["count"] == 1


async def test_repeated_event_raises_the_count_of_the_first() -> None:
    written = Written()
    events = recorder(written)
    for _ in range(3):
        events.event(machine(), "Normal", "Waiting", "for an address")
        await asyncio.sleep(100)
        await events.flush()
    assert len(written.created) == 1
    name = written.created[0]["metadata"]["name"]
    assert [(patched, patch["count"]) for patched, patch in written.patched] == [(name, 2), (name, 3)]


@pytest.mark.parametrize("difference", ["object", "reason", "message"])
async def test_events_that_differ_are_not_counted_together(difference: str) -> None:
    written = Written()
    events = recorder(written)
    events.event(machine(), "Normal", "Waiting", "for an address")
    events.event(
        machine(uid="u2" if difference == "object" else "u1"),
        "Normal",
        "Created" if difference == "reason" else "Waiting",
        "for a host" if difference == "message" else "for an address",
    )
    await events.flush()
    names = {event["metadata"]["name"] for event in written.created}
    assert len(names) == 2


async def test_same_event_long_after_is_a_new_one() -> None:
    written = Written()
    events = recorder(written)
    for _ in range(2):
        events.event(machine(), "Normal", "Waiting", "")
        await events.flush()
        await asyncio.sleep(3600)
    assert len(written.created) == 2


async def test_series_that_expired_on_the_server_begins_again() -> None:
    written = Written()
    events = recorder(written)
    events.event(machine(), "Normal", "Waiting", "")
    await events.flush()
    written.failures.append(NotFound(404, "NotFound", ""))
    for _ in range(2):
        events.event(machine(), "Normal", "Waiting", "")
        await events.flush()
    assert len(written.created) == 2


async def test_flood_of_one_object_is_cut_to_a_burst_and_a_trickle_and_leaves_others_alone() -> None:
    written = Written()
    events = recorder(written)
    before = dropped()
    for number in range(100):
        events.event(machine(), "Normal", "Flood", str(number))
    events.event(machine("other", "u2"), "Normal", "Calm", "")
    await events.flush()
    assert len(written.created) == 26
    assert dropped() - before == 75
    assert events.is_limited(machine())
    assert not events.is_limited(machine("other", "u2"))
    await asyncio.sleep(10 * 60)
    assert not events.is_limited(machine())
    for number in range(100, 200):
        events.event(machine(), "Normal", "Flood", str(number))
    await events.flush()
    assert len(written.created) == 36


async def test_full_buffer_drops_and_does_not_wait() -> None:
    written = Written()
    events = recorder(written)
    before = dropped()
    for number in range(1100):
        events.event(machine(uid=str(number)), "Normal", "Many", "")
    assert dropped() - before == 100
    await events.flush()
    assert len(written.created) == 1000


async def test_memory_does_not_grow_with_the_objects_seen() -> None:
    written = Written()
    events = recorder(written)
    sizes = []
    for start in (0, 2500):
        for number in range(start, start + 2500):
            events.event(machine(uid=str(number)), "Normal", "Many", "")
            await events.flush()
            written.created.clear()
        sizes.append(memory.size(events))
    assert sizes[1] <= sizes[0]


async def test_refused_or_impossible_event_stops_no_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        written = Written()
        written.failures.append(Forbidden(403, "Forbidden", "no"))
        events = recorder(written)
        task = asyncio.create_task(events.run())
        events.event(machine(), "Normal", "Refused", "")
        events.event({"metadata": {"name": "no-kind", "uid": "u3"}}, "Normal", "Impossible", "")
        events.event(machine(), "Normal", "Fine", "")
        await asyncio.sleep(1)
        assert [event["reason"] for event in written.created] == ["Fine"]
        assert not task.done()
        await ended(task)
    assert "Impossible" in caplog.text


@pytest.mark.parametrize("name", ["a" * 253, "a" * 199 + "-" + "b" * 40, "a" * 198 + ".-" + "b" * 40, "short"])
async def test_name_of_an_event_is_a_valid_one_whatever_the_object_is_called(name: str) -> None:
    written = Written()
    events = recorder(written)
    events.event(machine(name), "Normal", "Named", "")
    await events.flush()
    event_name = str(written.created[0]["metadata"]["name"])
    assert len(event_name) <= 253
    assert all(part and not part.startswith("-") and not part.endswith("-") for part in event_name.split("."))


async def test_events_of_cluster_scoped_objects_go_to_the_default_namespace() -> None:
    written = Written()
    events = recorder(written)
    obj = machine()
    del obj["metadata"]["namespace"]
    events.event(obj, "Normal", "Named", "")
    await events.flush()
    assert str(written.created[0]["metadata"]["namespace"]) == "default"


async def test_long_message_is_cut_to_what_a_server_takes() -> None:
    written = Written()
    events = recorder(written)
    events.event(machine(), "Normal", "Long", "x" * 5000)
    await events.flush()
    assert len(written.created[0]["message"]) == 1024


async def test_flush_gives_up_after_its_time() -> None:
    written = Written()
    events = recorder(written)

    async def slow(*_: object) -> Obj:
        await asyncio.sleep(1)
        return {}

    written.create = slow  # type: ignore[method-assign]
    for number in range(100):
        events.event(machine(uid=str(number)), "Normal", "Slow", "")
    before = asyncio.get_running_loop().time()
    await events.flush(timeout=3)
    assert asyncio.get_running_loop().time() - before <= 4
