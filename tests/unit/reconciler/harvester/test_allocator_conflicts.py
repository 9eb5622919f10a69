"""Addresses while others write the pools, delete them, or leave: on a Harvester in memory, with a cache that lags."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from caphv.api import resources
from caphv.api.object import Obj, Resource
from caphv.runtime.errors import Conflict, Unreachable
from reconciler.harvester import addressplan, addressuse
from reconciler.harvester.allocator import AddressAllocator
from tests.support.ippools import pool
from tests.support.memoryserver import MemoryServer

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]

ADDRESS, ID = "10.0.0.10", "team/machine"
REQUEST = addressplan.AddressRequest(ID, ("machines",))


class Pools:
    """A cache of pools that only knows what it is given."""

    def __init__(self, server: MemoryServer) -> None:
        self.objs = {obj["metadata"]["name"]: obj for obj in server.stored(resources.IP_POOLS)}

    @property
    def store(self) -> list[Obj]:
        return list(self.objs.values())

    def get(self, _namespace: str, name: str) -> Obj | None:
        return self.objs.get(name)

    def observe(self, obj: Obj) -> None:
        self.objs[obj["metadata"]["name"]] = obj

    def forget(self, _namespace: str, name: str) -> None:
        self.objs.pop(name, None)


def existing(**allocated: str) -> Obj:
    entries = {address.replace("_", ".").removeprefix("a"): holder for address, holder in allocated.items()}
    version = "loadbalancer.harvesterhci.io/v1beta1"
    return {"apiVersion": version, "kind": "IPPool", **pool("machines", allocated=entries)}


def started(*objs: Obj) -> tuple[MemoryServer, Pools, AddressAllocator]:
    server = MemoryServer(*objs)
    pools = Pools(server)
    return server, pools, AddressAllocator(cast("Any", server), lambda: cast("Any", pools), lambda _: False)


def allocated(server: MemoryServer) -> dict[str, str]:
    (found,) = server.stored(resources.IP_POOLS)
    return dict(found["status"]["allocated"])


async def test_a_release_that_meets_another_write_is_planned_again() -> None:
    server, _, allocator = started(existing(a10_0_0_10=ID))
    server.put(existing(a10_0_0_10=ID, a10_0_0_11="team/other"))
    assert await allocator.release("machines", ADDRESS, ID)
    assert allocated(server) == {"10.0.0.11": "team/other"}


async def test_an_address_that_another_has_got_meanwhile_is_not_released() -> None:
    server, _, allocator = started(existing(a10_0_0_10=ID))
    server.put(existing(a10_0_0_10="team/other"))
    assert not await allocator.release("machines", ADDRESS, ID)
    assert allocated(server) == {ADDRESS: "team/other"}


async def test_an_allocation_that_meets_another_write_is_planned_again() -> None:
    server, _, allocator = started(existing())
    server.put(existing(a10_0_0_10="team/other"))
    assert await allocator.allocate(REQUEST) == addressplan.Grant("machines", "10.0.0.11")
    assert allocated(server) == {ADDRESS: "team/other", "10.0.0.11": ID}


async def test_a_pool_that_others_write_all_the_time_is_given_up_after_some_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "uniform", lambda *_: 0.0)
    server, _, allocator = started(existing(a10_0_0_11="team/held"))
    server.errors["patch IPPool"] = Conflict(409, "Conflict", "modified")
    with pytest.raises(Conflict, match="IPPool machines: modified concurrently"):
        await allocator.allocate(REQUEST)
    with pytest.raises(Conflict, match="IPPool machines: modified concurrently"):
        await allocator.release("machines", "10.0.0.11", "team/held")
    assert len(server.requests) == 40
    server.errors.clear()
    assert await allocator.allocate(REQUEST) == addressplan.Grant("machines", ADDRESS)


async def test_a_pool_that_was_deleted_holds_nothing() -> None:
    server, pools, allocator = started(existing(a10_0_0_10=ID))
    await server.delete(resources.IP_POOLS, "machines")
    assert not await allocator.release("machines", ADDRESS, "team/other")
    assert await allocator.release("machines", ADDRESS, ID), "it had it until then"
    assert pools.objs == {}
    assert not await allocator.release("machines", ADDRESS, ID)
    answer = await allocator.allocate(REQUEST)
    assert isinstance(answer, addressplan.Refusal)
    assert answer.reason is addressplan.RefusalReason.MISSING_POOL


async def test_a_pool_that_is_deleted_while_it_is_written_is_missing() -> None:
    server, pools, allocator = started(existing())
    await server.delete(resources.IP_POOLS, "machines")
    answer = await allocator.allocate(REQUEST)
    assert isinstance(answer, addressplan.Refusal)
    assert pools.objs == {}
    assert allocator.group.unanswered == {}


async def test_a_write_without_an_answer_to_a_pool_that_is_deleted_is_settled() -> None:
    server, pools, allocator = started(existing())
    server.errors["patch IPPool"] = Unreachable("no answer")
    with pytest.raises(Unreachable):
        await allocator.allocate(REQUEST)
    assert list(allocator.group.unanswered) == [("machines", ID)]
    pools.objs.clear()
    await allocator.settle({ID})
    assert allocator.group.unanswered == {}


async def test_a_newer_pool_shows_what_became_of_a_write_without_an_answer() -> None:
    server, pools, allocator = started(existing())
    server.errors["patch IPPool"] = Unreachable("no answer")
    with pytest.raises(Unreachable):
        await allocator.allocate(REQUEST)
    server.errors.clear()
    before = list(server.requests)
    pools.observe(server.put(existing()))
    await allocator.settle({"team/other"})
    assert list(allocator.group.unanswered) == [("machines", ID)]
    await allocator.settle({ID})
    assert allocator.group.unanswered == {}
    assert server.requests == before, "nothing has to be written"


async def test_a_mark_names_the_management_cluster_of_an_address() -> None:
    server, _, allocator = started(existing(a10_0_0_10=ID))
    await allocator.mark("machines", ADDRESS, "cluster-1")
    (found,) = server.stored(resources.IP_POOLS)
    assert found["metadata"]["annotations"] == {f"addresses.caphv.io/{ADDRESS}": "cluster-1"}
    await allocator.mark("gone", ADDRESS, "cluster-1")
    assert server.requests == ["patch IPPool machines"]


class Slow(MemoryServer):
    """Takes a second for each write."""

    async def patch(self, resource: Resource, name: str, namespace: str, patch: Any, **options: Any) -> Obj:
        await asyncio.sleep(1)
        return await super().patch(resource, name, namespace, patch, **options)


async def test_a_release_that_is_cancelled_while_it_is_written_harms_no_other() -> None:
    server = Slow(existing(a10_0_0_10=ID, a10_0_0_11="team/other"))
    pools = Pools(server)
    allocator = AddressAllocator(cast("Any", server), lambda: cast("Any", pools), lambda _: False)
    async with allocator.group.lock:
        first = asyncio.create_task(allocator.release("machines", ADDRESS, ID))
        second = asyncio.create_task(allocator.release("machines", "10.0.0.11", "team/other"))
        await asyncio.sleep(0)
    await asyncio.sleep(0.5)
    second.cancel()
    assert await first
    assert await asyncio.gather(second, return_exceptions=True)
    assert ADDRESS not in allocated(server)
    assert not allocator.group.lock.locked()


async def test_an_address_that_is_in_use_without_an_entry_is_not_given_out() -> None:
    server = MemoryServer(existing())
    pools = Pools(server)
    used = {ADDRESS, "10.0.0.11"}
    allocator = AddressAllocator(cast("Any", server), lambda: cast("Any", pools), used.__contains__)
    assert await allocator.allocate(REQUEST) == addressplan.Grant("machines", "10.0.0.12")


# What objects say about addresses


@pytest.mark.parametrize(
    ("machine", "addresses"),
    [
        (None, set()),
        ({"metadata": {}}, set()),
        ({"metadata": {}, "spec": {"networkConfig": {"address": "10.0.0.1"}}}, {"10.0.0.1"}),
        ({"metadata": {}, "spec": {"networkConfig": {}}, "status": {"allocatedIPAddress": "10.0.0.2"}}, {"10.0.0.2"}),
        ({"metadata": {"deletionTimestamp": "x"}, "status": {"allocatedIPAddress": "10.0.0.2"}}, set()),
    ],
)
async def test_a_machine_has_its_addresses_until_it_is_deleted(machine: Obj | None, addresses: set[str]) -> None:
    assert addressuse.machine_addresses(machine) == addresses


@pytest.mark.parametrize(
    ("obj", "addresses"),
    [
        (None, set()),
        ({"metadata": {}}, set()),
        ({"spec": {"loadBalancerIP": "0.0.0.0"}}, set()),
        ({"spec": {"loadBalancerIP": "10.0.0.1"}, "status": {"address": "10.0.0.2"}}, {"10.0.0.1", "10.0.0.2"}),
        ({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.3"}, {"hostname": "x"}]}}}, {"10.0.0.3"}),
    ],
)
async def test_a_load_balancer_has_the_addresses_that_it_has_or_asks_for(obj: Obj | None, addresses: set[str]) -> None:
    assert addressuse.balancer_addresses(obj) == addresses


async def test_who_holds_an_address_is_named() -> None:
    held = existing(a10_0_0_10="team/other")
    held["metadata"]["annotations"] = {f"addresses.caphv.io/{ADDRESS}": "cluster-2"}
    plan = addressplan.plan_allocations(
        {"machines": held}, [addressplan.AddressRequest(ID, ("machines",), ADDRESS, cluster="cluster-1")]
    )
    assert plan.refusals[ID].reason is addressplan.RefusalReason.TAKEN
    assert "held by team/other in IPPool machines" in plan.refusals[ID].message
    same = addressplan.AddressRequest("team/other", ("machines",), ADDRESS, cluster="cluster-1")
    refusal = addressplan.plan_allocations({"machines": held}, [same]).refusals["team/other"]
    assert "held by team/other of management cluster cluster-2 in IPPool machines" in refusal.message
