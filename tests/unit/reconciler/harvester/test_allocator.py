"""Allocators of several identities on one Harvester write its pools in turn, and never give an address out twice."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import pytest

from caphv.api.object import Obj
from caphv.runtime.errors import ApiError, Conflict, Forbidden, Invalid, ServerFault, TooManyRequests, Unreachable
from reconciler.harvester import addressplan
from reconciler.harvester.allocator import AddressAllocator, AllocatorGroup

pytestmark = pytest.mark.unit

ID = "ns/machine-1"


def pool(size: int, name: str = "pool") -> Obj:
    ranges = [{"subnet": "10.0.0.0/16", "rangeStart": "10.0.1.1", "rangeEnd": f"10.0.1.{size}"}]
    status = {"total": size, "available": size, "lastAllocated": "", "allocated": {}}
    return {"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"ranges": ranges}, "status": status}


class Server:
    """One pool behind an API: each write needs the version that is there, and takes a while."""

    def __init__(self, obj: Obj) -> None:
        self.obj = obj
        self.writes = self.conflicts = 0

    async def get(self, *_where: str) -> Obj:
        await asyncio.sleep(0)
        return copy.deepcopy(self.obj)

    async def patch(self, _resource: object, _name: str, _namespace: str, patch: Obj) -> Obj:
        await asyncio.sleep(0.001)
        self.writes += 1
        if patch["metadata"]["resourceVersion"] != self.obj["metadata"]["resourceVersion"]:
            self.conflicts += 1
            raise Conflict(409, "Conflict", "another client was faster")
        status, wanted = self.obj["status"], patch.get("status", {})
        changed = {name: value for name, value in wanted.items() if name != "allocated"}
        held = {**status["allocated"], **wanted.get("allocated", {})}
        allocated = {address: holder for address, holder in held.items() if holder is not None}
        self.obj = copy.deepcopy(self.obj)
        self.obj["status"] = {**status, **changed, "allocated": allocated}
        self.obj["metadata"]["resourceVersion"] = str(int(self.obj["metadata"]["resourceVersion"]) + 1)
        return copy.deepcopy(self.obj)


class Copy:
    """A cache of the pool that no watch keeps true: it knows what it is reported."""

    def __init__(self, obj: Obj) -> None:
        self._obj = copy.deepcopy(obj)

    @property
    def store(self) -> Iterator[Obj]:
        return iter([self._obj])

    def get(self, _namespace: str, name: str) -> Obj | None:
        return self._obj if name == self._obj["metadata"]["name"] else None

    def observe(self, obj: Obj) -> None:
        if int(obj["metadata"]["resourceVersion"]) > int(self._obj["metadata"]["resourceVersion"]):
            self._obj = obj


def allocator(server: Server, cache: Copy | None = None) -> AddressAllocator:
    cache = cache or Copy(server.obj)
    return AddressAllocator(server, lambda: cache, lambda _: False)  # type: ignore[arg-type, return-value]


def request(number: int) -> addressplan.AddressRequest:
    return addressplan.AddressRequest(f"ns/machine-{number}", ("pool",))


async def allocate_all(allocators: list[AddressAllocator], each: int) -> list[str]:
    numbered = enumerate(allocators)
    calls = [one.allocate(request(number * each + n)) for number, one in numbered for n in range(each)]
    answers = await asyncio.gather(*calls)
    return [answer.address for answer in answers if isinstance(answer, addressplan.Grant)]


def test_accounts_that_share_the_cache_of_pools_do_not_conflict() -> None:
    server, group = Server(pool(100)), AllocatorGroup()
    cache = Copy(server.obj)
    allocators = [allocator(server, cache) for _ in range(20)]
    for one in allocators:
        one.join(group)
        one.writes_for_others = True
    addresses = asyncio.run(allocate_all(allocators, 5))
    assert len(set(addresses)) == 100
    assert server.conflicts == 0
    assert server.writes <= 2, "concurrent requests of all accounts share a write"


def test_accounts_with_caches_of_their_own_settle_by_conflicts() -> None:
    server = Server(pool(20))
    addresses = asyncio.run(allocate_all([allocator(server) for _ in range(4)], 5))
    assert len(set(addresses)) == 20
    assert server.conflicts > 0


async def test_address_that_one_account_releases_is_free_for_the_other_at_once() -> None:
    server, group = Server(pool(1)), AllocatorGroup()
    cache = Copy(server.obj)
    one, other = allocator(server, cache), allocator(server, cache)
    one.join(group)
    other.join(group)
    first = await one.allocate(request(1))
    assert isinstance(first, addressplan.Grant)
    assert isinstance(await other.allocate(request(2)), addressplan.Refusal)
    assert await one.release("pool", first.address, "ns/machine-1")
    assert await other.allocate(request(2)) == addressplan.Grant("pool", first.address)
    assert server.conflicts == 0


async def test_lie_of_one_server_decides_nothing_for_another() -> None:
    honest, liar = Server(pool(5)), Server(pool(1))
    group = AllocatorGroup()
    victim, attacker = allocator(honest), allocator(liar)
    victim.join(group)
    attacker.join(group)
    liar.obj["metadata"]["resourceVersion"] = "1000000"
    await attacker.allocate(request(1))
    assert isinstance(await attacker.allocate(request(2)), addressplan.Refusal)
    assert isinstance(await victim.allocate(request(3)), addressplan.Grant), "its own server has free addresses"


async def test_account_without_the_right_to_write_is_neither_served_nor_serves() -> None:
    server, refusing = Server(pool(10)), RefusingServer(pool(10))
    group, cache = AllocatorGroup(), Copy(server.obj)
    allowed, denied = allocator(server, cache), allocator(refusing, cache)
    for one in (allowed, denied):
        one.join(group)
    allowed.writes_for_others = True
    answers = await asyncio.gather(
        denied.allocate(request(1)), allowed.allocate(request(2)), denied.allocate(request(3)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [Forbidden, addressplan.Grant, Forbidden]


async def test_account_that_has_lost_the_right_fails_alone() -> None:
    server, refusing = Server(pool(10)), RefusingServer(pool(10))
    group, cache = AllocatorGroup(), Copy(server.obj)
    allowed, revoked = allocator(server, cache), allocator(refusing, cache)
    for one in (allowed, revoked):
        one.join(group)
        one.writes_for_others = True
    answers = await asyncio.gather(revoked.allocate(request(1)), allowed.allocate(request(2)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Forbidden, addressplan.Grant]


class Harvester:
    """Healthy pool `good`, and pool `bad`, whose writes fail or hang."""

    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure
        self.good = Server(pool(50, "good"))
        self.pools = {"good": self.good.obj, "bad": pool(50, "bad")}

    @property
    def store(self) -> Iterator[Obj]:
        return iter(self.pools.values())

    def observe(self, obj: Obj) -> None:
        self.pools[obj["metadata"]["name"]] = obj

    def record_limit(self, _limit: str) -> None:
        pass

    async def get(self, *where: str) -> Obj:
        return await self.good.get(*where)

    async def patch(self, resource: object, name: str, namespace: str, patch: Obj) -> Obj:
        if name == "good":
            return await self.good.patch(resource, name, namespace, patch)
        await asyncio.sleep(0 if self.failure else 1000)
        raise self.failure or Unreachable("timed out")


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "failure",
    [
        Invalid(422, "Invalid", "pool bad overlaps pool good"),
        ServerFault(500, "InternalError", "failed calling webhook"),
        Unreachable("connection reset"),
        None,
    ],
)
async def test_pool_that_cannot_be_written_fails_only_requests_for_it(failure: Exception | None) -> None:
    it, group = Harvester(failure), AllocatorGroup()
    tenants = [AddressAllocator(it, lambda: it, lambda _: False) for _ in range(2)]  # type: ignore[arg-type, return-value]
    for one in tenants:
        one.join(group)
        one.writes_for_others = True
    wanted = [(number, name) for number in range(4) for name in ("bad", "good")]
    answers = await asyncio.gather(
        *(tenants[n % 2].allocate(addressplan.AddressRequest(f"ns/{name}-{n}", (name,))) for n, name in wanted),
        return_exceptions=True,
    )
    for one in tenants:
        await one.settle({"ns/good-0", "ns/without-a-pool"})  # writes nothing, whatever pool `bad` answers
    expected = type(failure) if failure else Unreachable
    assert [type(answer) for answer in answers] == [
        expected if name == "bad" else addressplan.Grant for _, name in wanted
    ]
    assert group.allocations == []


@pytest.mark.virtual_time
async def test_conflict_about_one_pool_is_settled_while_another_hangs() -> None:
    it = Harvester(None)
    one = AddressAllocator(it, lambda: it, lambda _: False)  # type: ignore[arg-type, return-value]
    it.good.obj = {**it.good.obj, "metadata": {"name": "good", "resourceVersion": "7"}}
    wanted = [addressplan.AddressRequest("ns/bad", ("bad",)), addressplan.AddressRequest("ns/good", ("good",))]
    async with one.group.lock:
        hanging, asked = (asyncio.create_task(one.allocate(each)) for each in wanted)
        await asyncio.sleep(0)
    started = asyncio.get_running_loop().time()
    assert await asked == addressplan.Grant("good", "10.0.1.2"), (
        "the pools overlap, and the other request may get the first one"
    )
    assert asyncio.get_running_loop().time() - started < 1
    assert it.good.conflicts == 1
    with pytest.raises(Unreachable):
        await hanging


class RefusingServer(Server):
    """Answers writes with 403."""

    async def patch(self, *_arguments: object) -> Obj:
        raise Forbidden(403, "Forbidden", "cannot patch ippools")


@pytest.mark.virtual_time
async def test_account_whose_writes_hang_holds_up_the_others_for_a_bounded_time() -> None:
    server, group = Server(pool(5)), AllocatorGroup()
    hanging_server = HangingServer(pool(5))
    hanging, other = allocator(hanging_server), allocator(server)
    hanging.join(group)
    other.join(group)
    loop = asyncio.get_running_loop()
    started = loop.time()
    blocked = asyncio.create_task(hanging.allocate(request(1)))
    await asyncio.sleep(0)
    assert isinstance(await other.allocate(request(2)), addressplan.Grant)
    assert loop.time() - started < 6
    with pytest.raises(Unreachable):
        await blocked
    assert hanging_server.limit == "addresses were not written within 5 s"


async def test_request_that_was_cancelled_while_it_waited_gets_no_address() -> None:
    server, group = Server(pool(5)), AllocatorGroup()
    one = allocator(server)
    one.join(group)
    async with group.lock:
        cancelled = asyncio.create_task(one.allocate(request(1)))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    assert isinstance(await one.allocate(request(2)), addressplan.Grant)
    assert list(server.obj["status"]["allocated"].values()) == ["ns/machine-2"]
    assert group.allocations == []


class LosingServer(Server):
    """Loses its answer to the first write, which takes effect after `delay` seconds, also without a client.

    Then it answers `refusals`, in turn.
    """

    def __init__(self, delay: float, answer: Exception, *refusals: Exception) -> None:
        super().__init__(pool(5))
        self.delay, self.answer = delay, answer
        self.refusals = list(refusals)
        self.lost: asyncio.Task[Obj] | None = None

    def record_limit(self, _limit: str) -> None:
        pass

    async def patch(self, *arguments: Any) -> Obj:
        if self.lost and self.refusals:
            raise self.refusals.pop(0)
        if self.lost:
            return await super().patch(*arguments)
        self.lost = asyncio.create_task(self._late(*arguments))
        await asyncio.sleep(min(self.delay, 15) + 1)
        raise self.answer

    async def _late(self, *arguments: Any) -> Obj:
        await asyncio.sleep(self.delay)
        return await super().patch(*arguments)


@pytest.mark.virtual_time
@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("delay", [0, 60])
@pytest.mark.parametrize("answer", [Unreachable("connection reset"), ServerFault(504, "", "time-out")])
async def test_write_without_an_answer_is_settled(delay: float, answer: Exception, cancelled: bool) -> None:
    server = LosingServer(delay, answer)
    cache = Copy(server.obj)
    one = allocator(server, cache)
    asked = asyncio.create_task(one.allocate(request(1)))
    await asyncio.sleep(0.5)
    if cancelled:
        asked.cancel()
    with pytest.raises((Unreachable, ServerFault, asyncio.CancelledError)):
        await asked
    await one.settle({ID})
    known = cache.get("", "pool")["status"]["allocated"]
    assert server.lost
    await asyncio.gather(server.lost, return_exceptions=True)
    assert server.obj["status"]["allocated"] == known, "nothing is reserved later of which the cache does not know"
    assert bool(known) == (delay == 0)
    settled = server.writes
    await one.settle({ID})
    assert server.writes == settled


@pytest.mark.virtual_time
@pytest.mark.parametrize("status", [401, 403, 422, 429])
async def test_refusal_does_not_end_an_earlier_write_without_an_answer(status: int) -> None:
    kind = {403: Forbidden, 422: Invalid, 429: TooManyRequests}.get(status, ApiError)
    server = LosingServer(60, Unreachable("connection reset"), kind(status, "", "no"))
    one = allocator(server)
    for error in (Unreachable, kind):
        with pytest.raises(error):
            await one.allocate(request(1))
    await one.settle({ID})
    assert server.lost
    with pytest.raises(Conflict):
        await server.lost
    assert server.obj["status"]["allocated"] == {}
    assert one.group.unanswered == {}


@pytest.mark.virtual_time
async def test_write_without_an_answer_is_settled_with_the_credentials_that_come_next() -> None:
    server, group = LosingServer(60, Unreachable("connection reset")), AllocatorGroup()
    old, new = allocator(server), allocator(server)
    for each in (old, new):
        each.join(group)
    with pytest.raises(Unreachable):
        await old.allocate(request(1))
    await new.settle({"ns/machine-2"})
    assert server.writes == 0
    await new.settle({ID})
    assert server.writes == 1
    assert group.unanswered == {}


@pytest.mark.virtual_time
async def test_request_that_is_cancelled_during_the_turn_of_another_is_settled_with_it() -> None:
    server, group = Server(pool(5)), AllocatorGroup()
    cache = Copy(server.obj)
    one, other = allocator(server, cache), allocator(server, cache)
    for each in (one, other):
        each.join(group)
        each.writes_for_others = True
    async with group.lock:
        asked = [asyncio.create_task(each.allocate(request(n))) for n, each in enumerate((one, other))]
        await asyncio.sleep(0)
    await asyncio.sleep(0.0005)  # the first one is writing for both
    asked[1].cancel()
    await other.settle({ID})
    assert set(cache.get("", "pool")["status"]["allocated"].values()) == {"ns/machine-0", "ns/machine-1"}
    assert server.writes == 1


@pytest.mark.parametrize("refusal", [None, Forbidden(403, "Forbidden", "cannot patch ippools")])
async def test_what_was_answered_needs_no_other_write(refusal: Exception | None) -> None:
    server = RefusingServer(pool(5)) if refusal else Server(pool(5))
    one = allocator(server)
    await asyncio.gather(one.allocate(request(1)), return_exceptions=True)
    before = server.writes
    await one.settle({ID})
    assert server.writes == before == (0 if refusal else 1)


class HangingServer(Server):
    """Accepts writes and never responds."""

    limit = ""

    def record_limit(self, limit: str) -> None:
        self.limit = limit

    async def patch(self, *_arguments: object) -> Obj:
        await asyncio.sleep(1000)
        raise Unreachable("timed out")


@pytest.mark.parametrize("kind", [Forbidden, Invalid, TooManyRequests])
async def test_refused_write_has_nothing_to_settle(kind: type[ApiError]) -> None:
    class Refusing(Server):
        async def patch(self, *_: Any) -> Obj:
            self.writes += 1
            raise kind(403, "", "no")

    server = Refusing(pool(3))
    one = allocator(server)
    with pytest.raises(kind):
        await one.allocate(request(1))
    refused = server.writes
    await one.settle({ID})
    assert server.writes == refused
