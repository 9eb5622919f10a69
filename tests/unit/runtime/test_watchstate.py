"""A cache is current while its watch is connected; what it may lack then is read from the server."""

import asyncio

import pytest

from caphv.api.object import Key
from caphv.runtime.errors import Gone, Unreachable
from tests.support.fake_collection import Collection, Watched, watched
from tests.support.virtualtime import settle

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


async def test_cache_is_current_once_its_first_watch_is_accepted() -> None:
    server = Collection()
    assert not Watched(server).informer.current
    async with watched(server) as it:
        assert it.informer.current


async def test_cache_whose_server_is_unreachable_is_synced_but_not_current() -> None:
    server = Collection()
    async with watched(server) as it:
        server.failures.extend([Unreachable("connection refused")] * 1000)
        server.end_watches(Unreachable("connection reset"))
        await asyncio.sleep(10)
        assert it.informer.synced
        assert not it.informer.current
        server.failures.clear()
        it.informer.retry_now()
        await settle()
        assert it.informer.current


async def test_cache_with_an_expired_watch_becomes_current_after_the_next_list() -> None:
    server = Collection()
    async with watched(server) as it:
        server.end_watches(Gone(410, "Expired", "too old resource version"))
        await settle()
        assert not it.informer.current
        await asyncio.sleep(1)
        assert it.informer.current


async def test_object_whose_event_is_still_on_its_way_is_read_and_cached() -> None:
    server = Collection()
    async with watched(server) as it:
        server.withheld = True
        server.write("late")
        await settle()
        assert it.informer.current
        assert it.informer.get("ns", "late") is None
        found = await it.informer.read("ns", "late")
        assert found is not None
        assert found["metadata"]["name"] == "late"
        assert it.versions() == server.versions()
        assert it.heard == ["+late"]


async def test_object_that_does_not_exist_is_none() -> None:
    server = Collection()
    server.write("other")
    async with watched(server) as it:
        assert await it.informer.read("ns", "absent") is None
        assert set(it.versions()) == {Key("ns", "other")}


async def test_object_that_cannot_be_read_is_an_error() -> None:
    server = Collection()
    async with watched(server) as it:
        server.failures.append(Unreachable("connection refused"))
        with pytest.raises(Unreachable):
            await it.informer.read("ns", "late")


async def test_handlers_hear_of_each_change_even_when_one_of_them_fails() -> None:
    heard: list[bool] = []

    def faulty(_connected: bool) -> None:
        raise RuntimeError

    server = Collection()
    async with watched(server) as it:
        it.informer.watch_state.add_handler(faulty)
        it.informer.watch_state.add_handler(heard.append)
        server.end_watches(Unreachable("connection reset"))
        await asyncio.sleep(5)
        assert heard == [False, True]
