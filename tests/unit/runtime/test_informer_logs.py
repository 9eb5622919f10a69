"""What an informer logs: which failures are warnings, and the fields of its lines."""

import asyncio
import logging
from typing import cast

import pytest

from caphv.runtime import logs
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Unreachable, error_from
from tests.support.fake_collection import THINGS, Collection, Watched, watched
from tests.support.virtualtime import settle

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


async def test_informer_logs_without_the_fields_of_anyone_started_it() -> None:
    server, seen = Collection(), list[dict[str, str]]()
    informer = Informer(cast(ApiClient, server), THINGS, on_contact=lambda: seen.append(logs._fields.get()))
    with logs.context(object="ns/innocent"):
        task = informer.start()
    await settle()
    await asyncio.sleep(1)
    task.cancel()
    assert seen == [{}]


async def test_fields_of_an_informer_are_on_its_lines() -> None:
    server, seen = Collection(), list[dict[str, str]]()
    informer = Informer(cast(ApiClient, server), THINGS, on_contact=lambda: seen.append(logs._fields.get()))
    task = informer.start(cluster="team/demo")
    await asyncio.sleep(1)
    task.cancel()
    assert seen == [{"cluster": "team/demo"}]


async def test_server_that_boots_is_no_warning_until_patience_ends(caplog: pytest.LogCaptureFixture) -> None:
    server = Collection()
    server.failures.extend([Unreachable("refused")] * 1000)
    with caplog.at_level(logging.INFO):
        task = Watched(server, patience=60.0, max_backoff=5.0).informer.start()
        await asyncio.sleep(55)
        assert caplog.messages == []
        await asyncio.sleep(15)
        assert set(caplog.messages) == {"watch of things.example.io on fake failed: refused"}
        server.failures.clear()
        await asyncio.sleep(10)
        assert caplog.messages[-1] == "watch of things.example.io on fake resumed"
        task.cancel()


async def test_server_that_booted_and_fails_is_a_warning_at_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Collection()
    with caplog.at_level(logging.INFO):
        async with watched(server, patience=600.0, max_backoff=1.0):
            await asyncio.sleep(5)
            server.failures.extend([Unreachable("refused")] * 1000)
            server.end_watches()
            await asyncio.sleep(5)
    assert "watch of things.example.io on fake failed: refused" in caplog.messages


async def test_warning_of_a_kind_that_is_not_served_says_so(caplog: pytest.LogCaptureFixture) -> None:
    server = Collection()
    server.failures.extend([error_from(404, {"message": "this server does not answer like an API server"})] * 1000)
    with caplog.at_level(logging.WARNING):
        task = Watched(server, max_backoff=1.0).informer.start()
        await asyncio.sleep(5)
        task.cancel()
    assert set(caplog.messages) == {
        "watch of things.example.io on fake failed: the server does not serve this kind (HTTP 404)"
    }


async def test_only_the_probe_warns_of_a_server_that_is_unreachable(caplog: pytest.LogCaptureFixture) -> None:
    probed, server = Collection(), Collection()
    probed.name, server.name = "probe", "other"
    with caplog.at_level(logging.INFO):
        async with watched(probed, max_backoff=1.0) as probe, watched(server, probe=probe.informer):
            await asyncio.sleep(5)
            for collection in (probed, server):
                collection.failures.extend([Unreachable("refused")] * 1000)
                collection.end_watches(Unreachable("reset"))
            await asyncio.sleep(300)
    assert set(caplog.messages) == {"watch of things.example.io on probe failed: refused"}
