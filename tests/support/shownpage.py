"""The live page in a browser, which shows one state after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from operations.status.page.server import Feed, PageServer
from tests.support.browser import Browser, browser
from tests.support.clusters import NOW
from tests.support.pagestates import STATES, PageState


def show(tmp_path: Path, look: Callable[[Browser, Feed], Awaitable[None]]) -> None:
    """Open the page of a feed, and check it."""

    async def run() -> None:
        feed = Feed()
        async with PageServer(feed).serving("127.0.0.1", 0) as url, browser(tmp_path / "profile") as shown:
            await shown.stop_clock(NOW)
            await shown.open(url)
            await shown.until("typeof draw === 'function'")
            await look(shown, feed)
            assert shown.messages == []

    asyncio.run(run())


async def draw(shown: Browser, feed: Feed, state: PageState) -> None:
    """Let the page show a state."""
    feed.publish(state.make().content())
    await shown.until(f"data !== null && document.body.innerText.includes({state.texts[0]!r})")


def named(name: str) -> PageState:
    """One of the states of the page."""
    return next(state for state in STATES if state.name == name)
