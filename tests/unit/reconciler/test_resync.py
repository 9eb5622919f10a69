"""Objects that have not converged are requeued now and then, from caches alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.object import Key, Obj
from reconciler import resync
from reconciler.caches import Caches
from reconciler.queues import Queues
from tests.support.waiting import ended

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


def obj(name: str, ready: str = "", **metadata: Any) -> Obj:
    conditions = [{"type": "Ready", "status": ready}] if ready else []
    return {"metadata": {"namespace": "team", "name": name, **metadata}, "status": {"conditions": conditions}}


def caches(clusters: list[Obj], machines: list[Obj]) -> Caches:
    """Caches of these objects; nothing in them can make a request."""
    found = SimpleNamespace(
        harvester_clusters=SimpleNamespace(store=clusters),
        harvester_machines=SimpleNamespace(store=machines),
        cluster_of=lambda _: None,
    )
    return cast(Caches, found)


async def requeued(queue: Any, seconds: float) -> set[Key]:
    await asyncio.sleep(seconds)
    found = set()
    while len(queue):
        key = await queue.get()
        found.add(key)
        queue.done(key)
    return found


async def test_what_has_not_converged_is_requeued_within_ten_minutes() -> None:
    queues = Queues()
    machines = [
        obj("ready", "True"),
        obj("unknown", "Unknown"),
        obj("new"),
        obj("deleted", "True", deletionTimestamp="2026-01-01T00:00:00Z"),
        obj("paused", "False", annotations={"cluster.x-k8s.io/paused": ""}),
    ]
    task = asyncio.create_task(resync.run(caches([obj("failed", "False")], machines), queues))
    assert {key.name for key in await requeued(queues.machines, 600)} == {"unknown", "new", "deleted"}
    assert {key.name for key in await requeued(queues.clusters, 0)} == {"failed"}
    await ended(task)


async def test_requeues_are_spread_over_the_interval() -> None:
    queues = Queues()
    machines = [obj(f"m{number}") for number in range(200)]
    resync.requeue(caches([], machines), queues, within=300)
    assert 60 <= len(await requeued(queues.machines, 150)) <= 140


def test_cluster_that_is_parked_is_requeued_although_it_is_paused() -> None:
    """A VM of it may have been started meanwhile."""
    cluster: Obj = {"metadata": {"name": "owner"}, "spec": {"paused": True}}
    parked = obj("parked", "True")
    assert resync.has_converged(parked, cluster)
    parked["status"]["conditions"].append({"type": "Parked", "status": "True"})
    assert not resync.has_converged(parked, cluster)
