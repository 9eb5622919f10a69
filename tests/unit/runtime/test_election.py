"""Never two holders: contenders over a lease server that is slow, loses answers and is deleted away."""

import asyncio
import datetime
import re
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caphv.api.object import Obj, Resource
from caphv.runtime import election
from caphv.runtime.client import ApiClient
from caphv.runtime.election import LeaderElection, Timing, share_name
from caphv.runtime.errors import AlreadyExists, Conflict, Fenced, NotFound, Unreachable
from tests.support.virtualtime import settle
from tests.support.waiting import ended

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


class LeaseServer:
    """One Lease with optimistic concurrency."""

    def __init__(self) -> None:
        self.lease: Obj | None = None
        self.version = 0

    def write(self, lease: Obj) -> Obj:
        self.version += 1
        self.lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": str(self.version)}}
        return self.lease

    @property
    def holder(self) -> str:
        return str(self.lease["spec"].get("holderIdentity", "")) if self.lease else ""


class Wire:
    """A contender's way to the lease server: seconds until a request arrives and until its answer does."""

    def __init__(self, server: LeaseServer) -> None:
        self.server = server
        self.there, self.back = 0.01, 0.01
        self.up = True
        self.requests = 0

    def clone(self, *, timeout: float) -> "Wire":
        self.timeout = timeout
        return self

    async def get(self, _resource: Resource, _name: str, _namespace: str) -> Obj:
        def read() -> Obj:
            if self.server.lease is None:
                raise NotFound(404, "NotFound", "")
            return self.server.lease

        return await self._request(read)

    async def create(self, _resource: Resource, obj: Obj) -> Obj:
        def create() -> Obj:
            if self.server.lease is not None:
                raise AlreadyExists(409, "AlreadyExists", "")
            return self.server.write(obj)

        return await self._request(create)

    async def replace(self, _resource: Resource, obj: Obj) -> Obj:
        def replace() -> Obj:
            if obj["metadata"]["resourceVersion"] != str(self.server.version):
                raise Conflict(409, "Conflict", "")
            return self.server.write(obj)

        return await self._request(replace)

    async def _request(self, effect: Callable[[], Obj]) -> Obj:
        self.requests += 1
        try:
            async with asyncio.timeout(self.timeout):
                await asyncio.sleep(self.there if self.up else 1e6)
                try:
                    return effect()
                finally:
                    await asyncio.sleep(self.back if self.up else 1e6)
        except TimeoutError:
            raise Unreachable("timed out") from None


def contender(wire: Wire, identity: str, **options: Any) -> LeaderElection:
    return LeaderElection(cast(ApiClient, wire), namespace="ns", name="lease", identity=identity, **options)


async def lead(elected: LeaderElection, identity: str, holders: list[str]) -> None:
    """Compete again and again; note who believes to hold the lease."""
    while True:
        await elected.acquire()
        holders.append(identity)
        assert len(holders) == 1, f"two holders: {holders}"
        try:
            await elected.hold()
        finally:
            holders.remove(identity)


def foreign_lease(holder: str = "go", renewed: str = "2001-01-01T00:00:00.000000Z") -> Obj:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed, "leaseTransitions": 3}
    return {"metadata": {"name": "lease", "namespace": "ns"}, "spec": spec}


async def test_first_comer_creates_the_lease_as_client_go_would() -> None:
    server = LeaseServer()
    await contender(Wire(server), "a").acquire()
    assert server.lease is not None
    lease = server.lease
    assert lease["spec"]["holderIdentity"] == "a"
    assert lease["spec"]["leaseDurationSeconds"] == 15
    assert lease["spec"]["leaseTransitions"] == 1
    for name in ("acquireTime", "renewTime"):
        assert datetime.datetime.fromisoformat(lease["spec"][name]).tzinfo is not None


async def test_of_two_that_start_together_one_wins_and_keeps_renewing() -> None:
    server, holders = LeaseServer(), list[str]()
    tasks = [asyncio.create_task(lead(contender(Wire(server), name), name, holders)) for name in "ab"]
    await asyncio.sleep(5)
    (winner,) = holders
    await asyncio.sleep(300)
    assert holders == [winner] == [server.holder]
    cancel(tasks)


async def test_renewal_is_one_request() -> None:
    wire = Wire(LeaseServer())
    elected = contender(wire, "a")
    await elected.acquire()
    wire.requests = 0
    holding = asyncio.create_task(elected.hold())
    await asyncio.sleep(2.1 * 10)
    assert wire.requests == 10
    await ended(holding)


async def test_released_lease_is_taken_at_the_next_look() -> None:
    server = LeaseServer()
    first, second = contender(Wire(server), "a"), contender(Wire(server), "b")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(5)
    await first.release()
    assert server.holder == ""
    await asyncio.wait_for(waiting, 2.5)
    assert server.holder == "b"


async def test_release_works_even_when_the_answer_to_the_last_renewal_was_lost() -> None:
    server = LeaseServer()
    wire = Wire(server)
    elected = contender(wire, "a")
    await elected.acquire()
    wire.back = 5.0
    holding = asyncio.create_task(elected.hold())
    await asyncio.sleep(3)
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    wire.back = 0.01
    await elected.release()
    assert server.holder == ""


async def test_release_is_repeated_when_the_lease_is_written_at_the_same_moment() -> None:
    """A renewal that was cancelled, or a sync request of another process, arrives between its read and its write."""
    server = LeaseServer()
    wire = Wire(server)
    elected = contender(wire, "a")
    await elected.acquire()
    wire.there = 1.0
    releasing = asyncio.create_task(elected.release())
    await asyncio.sleep(1.5)
    assert server.lease
    server.write(server.lease)
    await releasing
    assert server.holder == ""


async def test_release_leaves_the_lease_of_another_alone() -> None:
    server = LeaseServer()
    elected = contender(Wire(server), "a")
    await elected.acquire()
    taken = server.write(foreign_lease())
    await elected.release()
    assert server.lease is taken


async def test_holder_that_is_cut_off_gives_up_before_another_may_begin() -> None:
    server = LeaseServer()
    wire = Wire(server)
    first, second = contender(wire, "a"), contender(Wire(server), "b")
    await first.acquire()
    cut = asyncio.get_running_loop().time()
    wire.up = False
    waiting = asyncio.create_task(second.acquire())
    await first.hold()
    gave_up = asyncio.get_running_loop().time() - cut
    assert not waiting.done()
    await waiting
    taken_over = asyncio.get_running_loop().time() - cut
    assert gave_up <= 10
    assert 15 <= taken_over <= 20


async def test_age_of_a_renewal_counts_from_before_its_request() -> None:
    server = LeaseServer()
    wire = Wire(server)
    elected = contender(wire, "a")
    await elected.acquire()
    wire.back = 8.0
    holding = asyncio.create_task(elected.hold())
    await asyncio.sleep(5)  # the server has the renewal, its answer is on the way
    renewed = 1002.0
    await asyncio.sleep(6)
    wire.up = False
    await holding
    assert asyncio.get_running_loop().time() - renewed <= 10.1


async def test_holder_stops_as_soon_as_it_sees_another() -> None:
    server = LeaseServer()
    elected = contender(Wire(server), "a")
    await elected.acquire()
    server.write(foreign_lease())
    before = asyncio.get_running_loop().time()
    await elected.hold()
    assert asyncio.get_running_loop().time() - before < 2.5


@pytest.mark.parametrize("year", [1970, 2999])
async def test_clocks_of_machines_do_not_matter(year: int) -> None:
    server = LeaseServer()
    server.write(foreign_lease())
    waiting = asyncio.create_task(contender(Wire(server), "a").acquire())
    for number in range(60):
        await asyncio.sleep(2)
        server.write(foreign_lease(renewed=f"{year}-01-01T00:00:00.{number:06}Z"))
    assert not waiting.done(), "a lease that changes is alive, whatever time stands in it"
    before = asyncio.get_running_loop().time()
    await waiting
    assert 15 <= asyncio.get_running_loop().time() - before < 20, "one that does not change is dead"


async def test_a_note_of_who_waits_reaches_the_holder_and_delays_no_one() -> None:
    server, heard, misled = LeaseServer(), list[float](), list[float]()
    clock = asyncio.get_running_loop().time
    holder, waiting = contender(Wire(server), "a"), contender(Wire(server), "b")
    holder.on_sync_request = lambda: heard.append(clock())
    waiting.on_sync_request = lambda: misled.append(clock())
    await holder.acquire()
    held = asyncio.create_task(holder.hold())
    takeover = asyncio.create_task(waiting.acquire())
    for _ in range(3):
        await asyncio.sleep(9.7)
        left = clock()
        await waiting.request_sync()
        await asyncio.sleep(2.5)
        assert len(heard) == 1
        assert heard.pop() - left < 2.5
    assert not held.done()
    # The holder dies; sync requests do not extend its lease.
    await ended(held)
    died = clock()
    while not takeover.done():
        await waiting.request_sync()
        await asyncio.sleep(4)
    seconds = clock() - died
    await takeover
    assert heard == misled == [], "a waiting replica gets no request"
    assert seconds < 24


async def test_a_note_without_a_lease_is_for_no_one() -> None:
    server = LeaseServer()
    await contender(Wire(server), "a").request_sync()
    assert server.lease is None


async def test_lease_without_a_spec_is_free() -> None:
    server = LeaseServer()
    server.write({"metadata": {"name": "lease", "namespace": "ns"}})
    await asyncio.wait_for(contender(Wire(server), "a").acquire(), 1)
    assert server.holder == "a"


async def test_lease_that_a_user_deleted_is_recreated_by_its_holder() -> None:
    server = LeaseServer()
    elected = contender(Wire(server), "a")
    await elected.acquire()
    holding = asyncio.create_task(elected.hold())
    server.lease = None
    await asyncio.sleep(10)
    assert not holding.done()
    assert server.holder == "a"
    await ended(holding)


async def test_gauge_says_whether_this_process_leads() -> None:
    def gauge() -> float:
        return election.metrics.LEADER._value.get()

    server = LeaseServer()
    elected = contender(Wire(server), "a")
    election.metrics.LEADER.set(0)
    await elected.acquire()
    assert gauge() == 1
    await elected.release()
    assert gauge() == 0


LATENCY = st.sampled_from([0.01, 1.0, 4.0, 9.0, 14.0])
FAULT = st.tuples(
    st.integers(0, 2), st.sampled_from(["up", "down", "restart", "release"]), LATENCY, LATENCY, st.integers(1, 30)
)


@settings(max_examples=40)
@given(st.lists(FAULT, max_size=25))
async def test_there_are_never_two_holders(faults: list[tuple[int, str, float, float, int]]) -> None:
    server, holders = LeaseServer(), list[str]()
    wires = [Wire(server) for _ in range(3)]
    elections = [contender(wire, str(number)) for number, wire in enumerate(wires)]
    tasks = [asyncio.create_task(lead(e, str(number), holders)) for number, e in enumerate(elections)]
    for number, what, there, back, seconds in faults:
        wires[number].there, wires[number].back, wires[number].up = there, back, what != "down"
        if what in ("restart", "release"):
            tasks[number].cancel()
            await settle()
            if what == "release":
                await elections[number].release()
            elections[number] = contender(wires[number], f"{number}'")
            tasks[number] = asyncio.create_task(lead(elections[number], f"{number}'", holders))
        await asyncio.sleep(seconds)
        for task in tasks:
            assert not task.done(), task.exception()
    for wire in wires:
        wire.there, wire.back, wire.up = 0.01, 0.01, True
    await asyncio.sleep(60)
    assert len(holders) == 1, "without faults exactly one holds the lease"
    cancel(tasks)


async def test_timing_can_be_chosen() -> None:
    server = LeaseServer()
    wire = Wire(server)
    first = contender(wire, "a", timing=Timing(duration=3, deadline=2, retry=0.5))
    await first.acquire()
    wire.up = False
    await asyncio.wait_for(first.hold(), 2.1)
    assert server.lease is not None
    assert server.lease["spec"]["leaseDurationSeconds"] == 3


def cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


async def test_writes_are_fenced_off_as_soon_as_the_lease_may_have_expired() -> None:
    wire = Wire(LeaseServer())
    elected = contender(wire, "a")
    elected.fence()  # a standby may authorize scrapes
    await elected.acquire()
    await asyncio.sleep(9)
    elected.fence()
    await asyncio.sleep(2)  # as a process does that was suspended: nothing renews, no one has noticed
    with pytest.raises(Fenced):
        elected.fence()


async def test_hanging_renewal_leaves_time_for_another_one() -> None:
    wire = Wire(LeaseServer())
    elected = contender(wire, "a")
    await elected.acquire()
    holding = asyncio.create_task(elected.hold())
    await asyncio.sleep(0.5)
    wire.up = False
    await asyncio.sleep(2.5)  # one renewal hangs now
    wire.up = True
    await asyncio.sleep(60)
    assert not holding.done()
    await ended(holding)


def test_shares_that_differ_have_different_names() -> None:
    shares = [
        ("", ""),
        ("a", ""),
        ("", "a"),
        ("a", "a"),
        ("b", "a"),
        ("", "a-b"),
        ("", "a.b"),
        ("", "a_b"),
        ("", "A-b"),
    ]
    names = [share_name(*share) for share in shares]
    assert len({*names}) == len(names)
    assert names[:2] == ["", "a"]
    assert all(re.fullmatch("a-(a-|b-)?[0-9a-f]{8}", name) for name in names[2:])
