"""A cache is current only while its watch is connected and has delivered what happened in between."""

import asyncio
from typing import cast

import pytest

from caphv.runtime.errors import Gone, Unreachable
from caphv.runtime.freshness import Freshness
from tests.support.fake_collection import Collection, Watched, watched
from tests.support.virtualtime import VirtualLoop, settle

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


async def test_cache_is_not_current_before_its_first_watch_is_accepted() -> None:
    server = Collection()
    it = Watched(server)
    assert not it.informer.current
    async with watched(server) as it:
        assert it.informer.synced
        assert it.informer.freshness.connected
        assert not it.informer.current, "what happened between list and watch may still be on its way"
        await it.informer.freshness.wait_current()
        assert it.informer.freshness.stale_seconds == 0


async def test_cache_whose_server_is_unreachable_is_synced_but_not_current() -> None:
    server = Collection()
    async with watched(server) as it:
        await it.informer.freshness.wait_current()
        server.failures.extend([Unreachable("connection refused")] * 1000)
        server.end_watches(Unreachable("connection reset"))
        await asyncio.sleep(10)
        assert it.informer.synced
        assert not it.informer.current
        assert not it.informer.freshness.connected
        assert 9 < it.informer.freshness.stale_seconds <= 10
        server.failures.clear()
        it.informer.retry_now()
        await it.informer.freshness.wait_current()


async def test_cache_with_an_expired_watch_becomes_current_after_the_next_list() -> None:
    server = Collection()
    async with watched(server) as it:
        await it.informer.freshness.wait_current()
        server.end_watches(Gone(410, "Expired", "too old resource version"))
        await settle()
        assert not it.informer.current
        await it.informer.freshness.wait_current()


async def test_cache_has_caught_up_when_the_burst_of_missed_events_has_ended() -> None:
    freshness = Freshness()
    freshness.opened()
    for _ in range(20):
        await asyncio.sleep(0.3)
        freshness.received("MODIFIED")
        assert not freshness.current
    await asyncio.sleep(1)
    assert freshness.current


async def test_cache_whose_objects_change_all_the_time_asks_the_server_for_its_version() -> None:
    server = Collection()
    async with watched(server) as it:
        for _ in range(40):
            server.write("busy")
            await asyncio.sleep(0.1)
        assert it.informer.current, "no event had to fail to come for half a second"
        assert server.lists == 2, "it asked once, after the first list"


async def test_reader_that_is_limited_does_not_take_its_own_rest_for_the_end_of_the_burst() -> None:
    server = Collection()
    async with watched(server) as it:
        await it.informer.freshness.wait_current()
        server.failures.append(Unreachable("connection refused"))
        server.end_watches(Unreachable("connection reset"))
        await settle()
        for number in range(5):
            server.write(f"missed-{number}")
        server.rests = 2.0
        await it.informer.freshness.wait_current()
        assert it.versions() == server.versions()


async def test_time_in_which_the_process_was_busy_ends_no_burst() -> None:
    """What has arrived meanwhile is read after the timers that are due."""
    loop, freshness = cast(VirtualLoop, asyncio.get_running_loop()), Freshness()
    freshness.opened()
    for current in (False, True):
        loop.now += 1
        await settle()
        assert freshness.current is current, "it becomes current, however busy the process is"


async def test_bookmark_ends_the_burst_at_once() -> None:
    freshness = Freshness()
    freshness.opened()
    freshness.received("BOOKMARK")
    assert freshness.current


async def test_watch_that_closes_within_its_burst_was_never_current() -> None:
    freshness = Freshness()
    freshness.opened()
    freshness.closed()
    await asyncio.sleep(5)
    assert not freshness.current


async def test_handlers_hear_of_each_change_even_when_one_of_them_fails() -> None:
    heard: list[bool] = []

    def faulty(_current: bool) -> None:
        raise RuntimeError

    server = Collection()
    async with watched(server) as it:
        it.informer.freshness.add_handler(faulty)
        it.informer.freshness.add_handler(heard.append)
        await it.informer.freshness.wait_current()
        server.end_watches(Unreachable("connection reset"))
        await settle()
        await it.informer.freshness.wait_current()
        assert heard == [True, False, True]
        it.informer.freshness.remove_handler(heard.append)
        server.end_watches(Unreachable("connection reset"))
        await asyncio.sleep(5)
        assert heard == [True, False, True]
