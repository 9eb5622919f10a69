"""Who may read the live page, and how its stream tells of changes."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest

from operations.status.page import server
from operations.status.page.server import Feed, PageServer, page_text

pytestmark = pytest.mark.unit


async def status(url: str, path: str = "", host: str = "") -> int:
    headers = {"Host": host} if host else {}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url + path) as answer:
        return answer.status


async def events(answer: aiohttp.ClientResponse, number: int) -> list[str]:
    found: list[str] = []
    async with asyncio.timeout(20):
        while len(found) < number:
            if line := (await answer.content.readline()).decode().strip():
                found.append(line)
    return found


async def test_the_page_is_served_at_a_secret_address() -> None:
    async with PageServer(Feed()).serving("127.0.0.1", 0) as url:
        root, token, _ = url.rsplit("/", 2)
        assert len(token) >= 32
        assert await status(url) == 200
        for path in ("/", "/events", f"/{token[:-1]}/", f"/{token}x/events"):
            assert await status(root, path) == 404
    async with PageServer(Feed(), "mine").serving("127.0.0.1", 0) as url:
        assert url.endswith("/mine/")


async def test_the_page_allows_only_what_it_brings_itself() -> None:
    async with (
        PageServer(Feed()).serving("127.0.0.1", 0) as url,
        aiohttp.ClientSession() as session,
        session.get(url) as answer,
    ):
        assert answer.content_type == "text/html"
        policy, text = answer.headers["Content-Security-Policy"], await answer.text()
        assert answer.headers["Cache-Control"] == "no-store"
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert policy.startswith("default-src 'none'")
    assert text == page_text(nonce)
    assert text.count(f'nonce="{nonce}"') == 2
    assert not [name for name in ("@page.css@", "@page.js@", "@NONCE@") if name in text]


async def test_on_loopback_only_names_of_loopback_lead_to_the_page() -> None:
    async with PageServer(Feed()).serving("127.0.0.1", 0) as url:
        for host in ("localhost", "localhost.", "LOCALHOST", "127.0.0.1", "127.8.8.8", "[::1]"):
            assert await status(url, host=host) == 200, host
        for host in ("attacker.example", "localhost.attacker.example", "10.0.0.1", socket.gethostname()):
            assert await status(url, host=host) == 403, host


async def test_on_all_addresses_the_names_of_the_machine_lead_to_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Desk")
    monkeypatch.setattr(socket, "getfqdn", lambda: "desk.example.com")
    async with PageServer(Feed()).serving("0.0.0.0", 0) as url:
        local = url.replace("0.0.0.0", "127.0.0.1")
        for host in ("desk", "DESK", "desk.example.com", "desk.example.com.", "10.0.0.1", "localhost"):
            assert await status(local, host=host) == 200, host
        for host in ("attacker.example", "example.com"):
            assert await status(local, host=host) == 403, host


async def test_a_stream_is_kept_open_and_has_each_state_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEARTBEAT_SECONDS", 0.05)
    feed = Feed()
    async with (
        PageServer(feed).serving("127.0.0.1", 0) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}events") as answer,
    ):
        assert answer.content_type == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-store"
        assert await events(answer, 1) == [": still here"]
        feed.publish("1")
        while (await events(answer, 1)) != ["data: 1"]:
            pass
        feed.publish("1")
        assert await events(answer, 3) == [": still here"] * 3


async def test_a_new_tab_gets_the_present_state_at_once() -> None:
    feed = Feed()
    feed.publish("now")
    async with PageServer(feed).serving("127.0.0.1", 0) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}events") as answer:
            assert await events(answer, 1) == ["data: now"]
            feed.publish("later")
            assert await events(answer, 1) == ["data: later"]
        async with session.get(f"{url}events") as answer:
            assert await events(answer, 1) == ["data: later"]


async def test_tabs_are_limited_and_a_closed_one_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_STREAMS", 2)
    monkeypatch.setattr(server, "_HEARTBEAT_SECONDS", 0.02)
    async with PageServer(Feed()).serving("127.0.0.1", 0) as url, aiohttp.ClientSession() as session:
        first, second = [await session.get(f"{url}events") for _ in range(2)]
        third = await session.get(f"{url}events")
        assert (first.status, second.status, third.status) == (200, 200, 503)
        assert third.headers["Retry-After"] == "15"
        first.close()
        async with asyncio.timeout(20):
            while (answer := await session.get(f"{url}events")).status != 200:
                answer.close()
        answer.close()
        second.close()
