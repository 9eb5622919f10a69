"""A look that is kept up to date by watches."""

from __future__ import annotations

import asyncio

from operations.read.follow import Follower
from operations.read.objects import ManagementObjects
from tests.support.clusters import Builder, condition
from tests.support.overview import KINDS, Management, create

LATER = 15.0


async def _next(management: Management) -> tuple[ManagementObjects, ManagementObjects, ManagementObjects]:
    """What is seen at first, after a change of a machine, and after a cluster more."""
    machine = KINDS["HarvesterMachine"]
    lost = {"status": {"conditions": [condition("Ready", "False", "MachineNotFound", "lost")]}}
    async with management.server.client() as client, Follower(client, "followed") as follower:
        changes = follower.changes()
        before = await anext(changes)
        await client.patch(machine, "f1-worker-1", "followed", lost, subresource="status")
        async with asyncio.timeout(LATER):
            changed = await anext(changes)
        other = Builder("second", prefix="f2-").objects()
        for obj in (*other.clusters, *other.control_planes):
            await create(client, obj, "followed")
        more = changed
        async with asyncio.timeout(LATER):
            while len(more.clusters) < 2 or len(more.control_planes) < 2:
                more = await anext(changes)
        return before, changed, more


def test_changes_arrive_by_themselves(management: Management) -> None:
    management.load("followed", Builder("first", prefix="f1-").objects())
    before, changed, more = asyncio.run(_next(management))
    assert [len(each) for each in (before.clusters, before.machines, before.control_planes)] == [1, 3, 1]
    reasons = {obj["metadata"]["name"]: obj["status"]["conditions"][0]["reason"] for obj in changed.harvester_machines}
    assert reasons["f1-worker-1"] == "MachineNotFound"
    assert {obj["metadata"]["name"] for obj in more.clusters} == {"first", "second"}
