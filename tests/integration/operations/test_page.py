"""The live page: what it serves and to whom, and what a browser shows of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from caphv.api.object import EVENTS
from operations.status.page.content import latest_events
from operations.status.page.livepage import LivePage
from tests.support.browser import PROGRAM, browser
from tests.support.clusters import Builder, condition
from tests.support.overview import KINDS, Management

HOSTILE = "<img src=x onerror=document.title='owned'>"


@asynccontextmanager
async def page(management: Management, namespace: str) -> AsyncIterator[str]:
    """The page of one namespace, at a free port."""
    async with (
        management.server.client() as client,
        LivePage(client, namespace, frozenset(), deep=False).serving("127.0.0.1", 0) as url,
    ):
        yield url


@pytest.fixture(scope="module")
def namespace(management: Management) -> str:
    """A namespace with a cluster whose VM is lost."""
    builder = Builder("live", prefix="l-")
    builder.break_machine("l-worker-1", "MachineNotFound", f"the VirtualMachine does not exist {HOSTILE}", minutes=3)
    management.load("live", builder.objects())
    return "live"


def test_it_is_one_file_that_loads_nothing_from_elsewhere(management: Management, namespace: str) -> None:
    async def read() -> tuple[str, str]:
        async with page(management, namespace) as url, aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.headers["Content-Security-Policy"], await answer.text()

    policy, text = asyncio.run(read())
    assert policy.startswith("default-src 'none'; style-src 'nonce-")
    assert "'unsafe" not in policy
    assert "https://" not in text.replace("/^https:\\/\\//", "")
    assert "@NONCE@" not in text


def test_another_host_name_for_this_address_is_refused(management: Management, namespace: str) -> None:
    async def ask(host: str, method: str = "GET") -> int:
        headers = {"Host": host} if host else {}
        async with (
            page(management, namespace) as url,
            aiohttp.ClientSession(headers=headers) as session,
            session.request(method, url) as answer,
        ):
            return answer.status

    assert asyncio.run(ask("attacker.example")) == 403
    assert asyncio.run(ask("localhost")) == 200
    assert asyncio.run(ask("localhost.")) == 200
    assert asyncio.run(ask("localhost.attacker.example")) == 403
    assert asyncio.run(ask("", "POST")) == 405


def test_the_stream_has_the_whole_state_and_each_change(management: Management, namespace: str) -> None:
    async def follow() -> tuple[dict[str, object], dict[str, object]]:
        event = {
            "metadata": {"name": "event-1", "namespace": namespace},
            "involvedObject": {"kind": "HarvesterMachine", "name": "l-worker-1", "namespace": namespace},
            "type": "Warning",
            "reason": "VMLost",
            "message": HOSTILE,
            "lastTimestamp": "2026-11-22T12:00:00Z",
        }
        async with (
            asyncio.timeout(30),
            page(management, namespace) as url,
            management.server.client() as client,
            aiohttp.ClientSession() as session,
            session.get(f"{url}events") as answer,
        ):
            first = later = await _next(answer)
            await client.create(EVENTS, event)
            while not later["events"]:
                later = await _next(answer)
            return first, later

    first, later = asyncio.run(follow())
    assert [cluster["name"] for cluster in first["clusters"]] == ["live"]  # type: ignore[attr-defined]
    (event,) = later["events"]  # type: ignore[misc]
    assert (event["reason"], event["object"]) == ("VMLost", "HarvesterMachine/l-worker-1")  # type: ignore[index]
    assert event["namespace"] == namespace  # type: ignore[index]


def test_the_page_needs_its_token_and_serves_a_limited_number_of_tabs(management: Management, namespace: str) -> None:
    async def ask() -> tuple[list[int], list[int]]:
        async with page(management, namespace) as url, aiohttp.ClientSession() as session:
            root = url.rsplit("/", 2)[0]
            guesses = [f"{root}/", f"{root}/events", f"{root}/{'x' * 32}/", f"{root}/{'x' * 32}/events", f"{url}x"]
            refused = [(await session.get(guess)).status for guess in guesses]

            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as tabs:
                opened = [(await tabs.get(f"{url}events")).status for _ in range(40)]
            return refused, opened

    refused, opened = asyncio.run(ask())
    assert refused == [404] * 5
    assert opened == [200] * 32 + [503] * 8


async def _next(answer: aiohttp.ClientResponse) -> dict[str, object]:
    while True:
        line = (await answer.content.readline()).decode()
        if line.startswith("data: "):
            return dict(json.loads(line.removeprefix("data: ")))


@pytest.mark.skipif(not PROGRAM, reason="no Chromium here")
def test_a_browser_shows_causes_hosts_and_changes(management: Management, namespace: str, tmp_path: Path) -> None:
    async def look() -> None:
        async with page(management, namespace) as url, browser(tmp_path / "profile") as shown:
            await shown.resize(1400, 1200)
            await shown.open(url)
            await shown.until("document.querySelectorAll('#clusters article').length === 1")
            text = await shown.run("document.body.innerText")
            for part in (
                "live",
                "Degraded",
                "HarvesterMachine/l-worker-1",
                "kubectl delete machine",
                "harvester-1",
                "zone-1",
            ):
                assert part in text
            # What objects contain is text, never markup.
            assert HOSTILE in text
            assert await shown.run("document.title") == "(1) caphv"
            assert await shown.run("document.querySelectorAll('img').length") == 0

            healed = {"status": {"conditions": [condition("Ready", "True")]}}
            async with management.server.client() as client:
                await client.patch(KINDS["HarvesterMachine"], "l-worker-1", namespace, healed, subresource="status")
            await shown.until("document.body.innerText.includes('Available')")
            assert await shown.run("document.title") == "caphv"

            light = await shown.run("getComputedStyle(document.body).backgroundColor")
            await shown.run("document.getElementById('theme').click()")
            assert await shown.run("getComputedStyle(document.body).backgroundColor") != light
            await shown.resize(390, 900, dark=True)
            assert await shown.run("document.documentElement.scrollWidth <= innerWidth")
            await shown.run("document.getElementById('filter').value = 'nothing'; draw()")
            assert "No cluster matches." in await shown.run("document.body.innerText")
            await shown.run("document.getElementById('filter').value = ''; draw()")
            await shown.run("document.querySelector('#counts button').click()")
            assert await shown.run("document.querySelector('#counts button').ariaPressed") == "true"
            assert await shown.run("document.querySelectorAll('#clusters article').length") == 1
            await shown.run("document.querySelector('#hosts button').click()")
            assert "live/live · control plane" in await shown.run("document.getElementById('hosts').innerText")
            assert shown.messages == []

    asyncio.run(look())


@pytest.mark.skipif(not PROGRAM, reason="no Chromium here")
def test_a_page_whose_server_has_ended_says_since_when_and_pools_with_little_left_come_first(
    management: Management, namespace: str, tmp_path: Path
) -> None:
    async def look() -> None:
        async with browser(tmp_path / "profile") as shown:
            async with page(management, namespace) as url:
                await shown.open(url)
                await shown.until("document.querySelectorAll('#clusters article').length === 1")
                pools = [{"harvester": "h", "name": "large", "total": 99, "free": 50}]
                pools += [{"harvester": "h", "name": "small", "total": 9, "free": 1}]
                await shown.run(f"data.pools = {json.dumps(pools)}; draw()")
                names = "[...document.querySelectorAll('#pools .name')].map(each => each.textContent).join()"
                assert await shown.run(names) == "small,large"
                assert await shown.run("document.body.className") == ""
            await shown.until("document.getElementById('live').textContent.startsWith('disconnected since ')")
            assert "stale" in await shown.run("document.body.className")

    asyncio.run(look())


def test_events_are_the_last_ones_newest_first_whatever_form_their_time_has() -> None:
    about = {
        "involvedObject": {"kind": "Cluster", "name": "c"},
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
    }
    events = [
        {**about, "reason": "Old"},
        {**about, "reason": "Series", "series": {"lastObservedTime": "2026-01-03T00:00:00Z", "count": 7}},
        {**about, "reason": "Last", "lastTimestamp": "2026-01-02T00:00:00Z"},
    ]
    found = latest_events(events)
    assert [(each["reason"], each["count"]) for each in found] == [("Series", 7), ("Last", 1), ("Old", 1)]
    assert len(latest_events(events * 20)) == 30
