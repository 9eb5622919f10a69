"""Simulated guests with kube-vip hand their address over as the real program does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import yaml

from caphv.api.object import LEASES, Key, Obj
from caphv.runtime.election import Timing
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox.guest import kubevip
from sandbox.guest.guest import Guest
from sandbox.harvester.addresses import Addresses
from sandbox.processes.apiserver import ApiServer
from tests.support import observed
from tests.support.observed import Record
from tests.support.waiting import until

pytestmark = pytest.mark.integration

ADDRESS = "127.0.0.211"
SETTINGS = kubevip.KubeVip(ADDRESS, "", "plndr-cp-lock", Timing(5.0, 3.0, 1.0))
RECORDS = {record.name: record for record in observed.records("kube-vip-kube-vip/takeover.yaml")}
_PATIENCE = 20.0
# How much longer than the real program's a takeover may last on a busy machine.
_BUSY_SECONDS = 6.0


class Two:
    """Two guests with kube-vip, and which of them holds the address."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._addresses = Addresses()
        self.holders: set[str] = set()
        self.guests: dict[str, AsyncExitStack] = {}

    async def start(self, name: str) -> None:
        async def report(is_held: bool) -> None:
            (self.holders.add if is_held else self.holders.discard)(name)

        guest = Guest(Key("vms", name), name, name, name, {})
        machine = kubevip.Machine(guest, "127.0.0.212", (), report)
        kubeconfig = parse_kubeconfig(yaml.safe_dump(self._server.kubeconfig()))
        stack = self.guests[name] = AsyncExitStack()
        await stack.enter_async_context(kubevip.running(machine, SETTINGS, kubeconfig, self._addresses))

    async def destroy(self, name: str) -> None:
        await self.guests.pop(name).aclose()

    async def lease(self) -> Obj:
        async with self._server.client() as client:
            return dict((await client.get(LEASES, "plndr-cp-lock", "kube-system"))["spec"])


@asynccontextmanager
async def two(server: ApiServer) -> AsyncIterator[Two]:
    guests = Two(server)
    try:
        await guests.start("node-a")
        await until(lambda: guests.holders == {"node-a"}, "the first has the address", _PATIENCE)
        await guests.start("node-b")
        yield guests
    finally:
        for name in list(guests.guests):
            await guests.destroy(name)


async def test_guest_that_is_destroyed_loses_the_address_to_another(
    new_api_server: Callable[..., Awaitable[ApiServer]],
) -> None:
    record: Record = RECORDS["killed"]
    async with two(await new_api_server()) as guests:
        await asyncio.sleep(2.0)
        assert guests.holders == {"node-a"}
        before = await guests.lease()
        assert before["holderIdentity"] == "node-a"

        destroyed = time.monotonic()
        await guests.destroy("node-a")
        assert guests.holders == set()
        await until(lambda: guests.holders == {"node-b"}, "the other has the address", _PATIENCE)
        took = time.monotonic() - destroyed
        assert SETTINGS.timing.deadline < took < max(record.outcome["seconds"]) + _BUSY_SECONDS

        lease = await guests.lease()
        transitions = lease["leaseTransitions"] - before["leaseTransitions"]
        found = {"leaseDurationSeconds": lease["leaseDurationSeconds"], "transitions": transitions}
        assert (lease["holderIdentity"], found) == ("node-b", record.outcome["lease"])


async def test_guest_without_an_api_server_gives_the_address_up(
    new_api_server: Callable[..., Awaitable[ApiServer]],
) -> None:
    record = RECORDS["api-lost"]
    assert record.outcome["address"] == "removed"
    server = await new_api_server()
    async with two(server) as guests:
        await server.stop()
        stopped = time.monotonic()
        await until(lambda: not guests.holders, "the holder gives the address up", _PATIENCE)
        assert time.monotonic() - stopped < max(record.outcome["seconds"]) + _BUSY_SECONDS
