"""A process that ends leaves no Lease behind that says it is alive."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from caphv.api.object import LEASES, Obj, Resource, at
from caphv.runtime.client import ApiClient
from caphv.runtime.heartbeat import Heartbeat
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit
IDENTITY = "provider_1"
LEASE: Obj = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": {"name": "beat", "namespace": "caphv"}}


class Slow(MemoryServer):
    """A server whose first answer to a write never arrives, although the write was done."""

    def __init__(self, *objs: Obj) -> None:
        super().__init__(*objs, served=[(LEASES.api_version, LEASES.kind)])
        self.written = asyncio.Event()

    async def create(self, resource: Resource, obj: Obj, **options: Any) -> Obj:
        return await self._answer_once(await super().create(resource, obj, **options))

    async def replace(self, resource: Resource, obj: Obj, **options: Any) -> Obj:
        return await self._answer_once(await super().replace(resource, obj, **options))

    async def _answer_once(self, obj: Obj) -> Obj:
        if not self.written.is_set():
            self.written.set()
            await asyncio.Event().wait()
        return obj


async def end_during_a_write(server: Slow) -> str:
    """Return who holds the Lease after a process has ended."""
    heartbeat = Heartbeat(cast("ApiClient", server), namespace="caphv", name="beat", identity=IDENTITY)
    task = asyncio.create_task(heartbeat.run())
    await server.written.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return str(at(await server.get(LEASES, "beat", "caphv"), "spec", "holderIdentity"))


@pytest.mark.parametrize("objs", [(), (LEASE,)])
async def test_a_process_that_ends_during_a_write_holds_nothing(objs: tuple[Obj, ...]) -> None:
    assert await end_during_a_write(Slow(*objs)) == ""


async def test_a_lease_that_another_process_has_taken_stays_with_it() -> None:
    server = Slow(LEASE)

    async def take() -> None:
        await server.written.wait()
        server.put({**LEASE, "spec": {"holderIdentity": "provider_2"}})

    taking = asyncio.create_task(take())
    assert await end_during_a_write(server) == "provider_2"
    await taking
