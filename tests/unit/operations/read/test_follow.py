"""What is followed stays true while the server is unreachable, and while nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from caphv.api.object import Obj, Resource
from caphv.runtime.errors import ApiError, Forbidden, NotFound, Unreachable
from operations.read import follow
from operations.read.follow import Follower
from operations.status.page.content import latest_events
from tests.support.clusters import Builder


class Server:
    """A server with one cluster; a watch fails with each of the errors, then it lasts."""

    server = "https://management"
    name = "management"
    budget = time = None

    def __init__(self, *errors: Exception) -> None:
        self._clusters = Builder("shop").objects().clusters
        self._errors = list(errors)

    async def request(self, _method: str, path: str, **_: object) -> Obj:
        if path.endswith("/cluster.x-k8s.io"):
            return {"versions": [{"version": "v1beta2"}], "preferredVersion": {"version": "v1beta2"}}
        raise NotFound(404, "NotFound", "no such group")

    async def list(self, resource: Resource, *_: object, **__: object) -> Obj:
        items = self._clusters if resource.kind == "Cluster" else []
        objs = [{**obj, "metadata": {**obj["metadata"], "resourceVersion": "3"}} for obj in items]
        return {"metadata": {"resourceVersion": "5"}, "items": objs}

    async def watch(self, resource: Resource, *_: object, on_open: Callable[[], None], **__: object) -> Any:
        if resource.kind == "Event":
            raise Forbidden(403, "Forbidden", "events may not be watched")
        if resource.kind == "Cluster" and self._errors:
            raise self._errors.pop(0)
        on_open()
        await asyncio.sleep(60)
        yield


async def _first(changes: AsyncIterator[Any], found: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(10):
        async for objects in changes:
            if found(objects):
                return objects
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "text", "away"),
    [
        (Unreachable("connection refused"), "connection refused", True),
        (ApiError(503, "ServiceUnavailable", "starting"), "starting", True),
        (NotFound(404, "NotFound", "no such kind"), "no such kind", False),
        (KeyError("metadata"), "KeyError: 'metadata'", True),
    ],
)
def test_an_outage_is_named_as_long_as_it_lasts(error: Exception, text: str, away: bool) -> None:
    async def look() -> None:
        client: Any = Server(error)
        clusters = "clusters.cluster.x-k8s.io"
        async with Follower(client) as follower:
            changes = follower.changes()
            seen = await _first(changes, lambda objects: not objects.sees(clusters))
            assert follower.away == away
            assert next(text in each.why for each in seen.unseen if each.what == clusters)
            await _first(changes, lambda objects: objects.sees(clusters))
            assert not follower.away

    asyncio.run(look())


def test_what_is_known_comes_again_without_a_change_and_what_is_absent_or_forbidden_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(follow, "_MAX_DELAY_SECONDS", 0.01)

    async def look() -> None:
        client: Any = Server()
        async with Follower(client, page=True) as follower:
            changes = follower.changes()
            async with asyncio.timeout(5):
                for _ in range(80):  # more than the start and failed watches bring
                    found = await anext(changes)
            assert not found.sees("events")
            assert [obj["metadata"]["name"] for obj in found.clusters] == ["shop"]
            assert not found.sees("RKE2ControlPlane.controlplane.cluster.x-k8s.io")
            assert not follower.away

    asyncio.run(look())


async def test_of_an_event_only_what_the_page_shows_is_kept() -> None:
    text = "x" * 1_000_000
    about = {"kind": "Cluster", "namespace": "team-a", "name": "shop", "fieldPath": text}
    event: Obj = {
        "metadata": {"name": "one", "namespace": "team-a", "resourceVersion": "3", "annotations": {"a": text}},
        "involvedObject": about,
        "reason": text,
        "message": text,
        "lastTimestamp": "2026-11-22T12:00:00Z",
        "related": {"name": text},
    }

    class Eventful(Server):
        async def list(self, resource: Resource, *_: object, **options: Any) -> Obj:
            if options.get("field_selector") == "involvedObject.kind=Cluster":
                return {"metadata": {"resourceVersion": "5"}, "items": [event]}
            return await super().list(resource, **options)

    client: Any = Eventful()
    async with Follower(client, page=True) as follower:
        objects = await _first(follower.changes(), lambda objects: objects.events)
    (kept,) = objects.events
    assert len(str(kept)) < 4000
    (row,) = latest_events([kept])
    (whole,) = latest_events([event])
    assert row["object"] == "Cluster/shop"
    assert row["message"] == text[: len(row["message"])]
    assert {**row, "reason": "", "words": "", "message": ""} == {**whole, "reason": "", "words": "", "message": ""}


def test_an_interrupted_start_leaves_no_watch_behind() -> None:
    class SlowServer(Server):
        async def list(self, resource: Resource, *args: object, **options: object) -> Obj:
            if resource.kind == "Machine":
                await asyncio.sleep(60)
            return await super().list(resource, *args, **options)

    async def interrupt() -> None:
        client: Any = SlowServer()
        start = asyncio.create_task(Follower(client).__aenter__())
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) > 2
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(interrupt())


def test_a_kind_whose_first_list_takes_long_is_not_taken_for_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_FIRST_SECONDS", 0.2)
    machines = "machines.cluster.x-k8s.io"
    answer = asyncio.Event()

    class Slow(Server):
        async def list(self, resource: Resource, *more: object, **options: object) -> Obj:
            if resource.kind == "Machine":
                await answer.wait()
            return await super().list(resource, *more, **options)

    async def look() -> None:
        client: Any = Slow()
        async with Follower(client) as follower:
            changes = follower.changes()
            seen = await _first(changes, lambda _objects: True)
            assert [each.what for each in seen.unseen if each.why == "not read yet"] == [machines]
            answer.set()
            await _first(changes, lambda objects: objects.sees(machines))

    asyncio.run(look())
