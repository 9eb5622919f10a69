"""Reviews of rights in virtual time: when a session asks, and which caches it shares with other accounts then."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from caphv.runtime.errors import Forbidden
from tests.support.reconciler.memoryharvester import MemoryHarvester, sessions_on
from tests.support.virtualtime import settle

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


async def seconds(number: float) -> None:
    await asyncio.sleep(number)
    await settle()


async def test_rights_are_reviewed_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        await it.open(server, "a")
        await it.open(server, "b")
        await seconds(5)
        server.requests.clear()
        await seconds(5000)
        for token in "ab":
            times = server.asked("review patch", "ippools", token)
            assert len(times) >= 6
            assert all(480 <= wait <= 720 for wait in gaps(times)), gaps(times)
        # Who reads sees by the answers what it may; the other one has to ask.
        assert server.asked("review list", token="a") == []
        assert len(server.asked("review list", "nodes", "b")) >= 6


async def test_a_refusal_leads_to_a_review_but_not_to_many(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        await it.open(server, "a")
        session = await it.open(server, "b")
        await seconds(100)
        server.requests.clear()

        def refuse() -> None:
            session.client._on_response(403, 0.1)

        now = asyncio.get_running_loop().time
        first = now()
        refuse()
        await seconds(1)
        assert server.asked("review list", "nodes", "b") == [first], "the last review is long ago"
        for _ in range(5):
            refuse()
            await seconds(1)
        assert len(server.asked("review list", "nodes", "b")) == 1
        await seconds(60)
        assert server.asked("review list", "nodes", "b") == [first, first + 30]


async def test_a_review_that_is_not_answered_changes_nothing_for_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await it.open(server, "a")
        await seconds(5)
        server.away = True
        await seconds(2000)
        server.away = False
        await seconds(10)
        assert session.synced
        assert session.error is None
        assert server.readers("ippools") == ["a"]


async def test_a_right_that_ends_takes_the_shared_cache_away(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        first, second = await it.open(server, "a"), await it.open(server, "b")
        await seconds(5)
        assert second.hosts is first.hosts
        server.denied = {("b", "nodes")}
        await seconds(800)
        assert second.hosts is not first.hosts
        assert isinstance(second.hosts.last_error, Forbidden)
        assert (len(first.hosts.store), len(second.hosts.store)) == (1, 0)
        assert second.hosts in second.own_informers()
        assert first.own_informers() == []
        assert second.pools is first.pools

        it.filled.clear()
        server.denied = set()
        await seconds(800)
        assert second.hosts is first.hosts
        assert second.own_informers() == []
        assert ("b", "") in it.filled, "what waits for these objects hears of it"
        assert server.readers("nodes") == ["a"]


async def test_a_right_that_comes_back_is_found_soon_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    server.denied = {("b", "nodes")}
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        first, second = await it.open(server, "a"), await it.open(server, "b")
        await seconds(100)
        server.denied = set()
        await seconds(61)  # its own attempts succeed at the latest after a minute
        await seconds(31)
        await seconds(800)
        assert second.hosts is first.hosts


@pytest.mark.parametrize(
    ("unwritable", "expected"),
    [(set(), [True, True]), ({("b", "ippools")}, [True, False]), ({("a", "ippools")}, [False, True])],
)
async def test_an_account_writes_pools_for_others_only_if_it_may(
    unwritable: set[tuple[str, str]], expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemoryHarvester()
    server.unwritable = unwritable
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        both = [await it.open(server, token) for token in "ab"]
        await seconds(5)
        assert [session.allocator.writes_for_others for session in both] == expected
        server.unwritable = set()
        await seconds(800)
        assert [session.allocator.writes_for_others for session in both] == [True, True]


async def test_an_account_that_may_not_list_pools_does_not_write_them_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        first, second = await it.open(server, "a"), await it.open(server, "b")
        await seconds(5)
        # The reader is refused by an answer, the other one by a review.
        for token, session in (("a", first), ("b", second)):
            server.denied = {(token, "ippools")}
            server.end_watches("ippools")
            await seconds(800)
            assert session.pools.last_error is not None
            assert not session.allocator.writes_for_others
            other = second if session is first else first
            assert other.allocator.writes_for_others
            assert other.pools.last_error is None
            assert (first.hosts is second.hosts, first.pools is second.pools) == (True, False)
            server.denied = set()
            await seconds(1600)
            assert first.pools is second.pools


async def test_an_account_that_is_refused_one_collection_keeps_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        first, second = await it.open(server, "a"), await it.open(server, "b")
        await seconds(5)
        server.denied = {("a", "nodes")}
        server.end_watches("nodes")
        await seconds(2)
        assert first.hosts is not second.hosts
        assert first.own_informers() == [first.hosts]
        assert first.allocator.writes_for_others
        assert server.readers("nodes") == ["b"]


async def test_the_first_account_needs_no_review_and_each_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    server.denied = {("a", "nodes"), ("b", "nodes")}
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        first = await it.open(server, "a")
        await seconds(5)
        assert server.asked("review list", token="a") == []
        assert isinstance(first.hosts.last_error, Forbidden)
        second = await it.open(server, "b")
        await seconds(5)
        assert len(server.asked("review list", "nodes", "b")) >= 1
        assert second.hosts is not first.hosts
        assert "nodes" in second.sync_error
        assert not second.synced
        assert second.is_settled
