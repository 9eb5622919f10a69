"""How long nothing answers at the endpoint of a control plane."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

PAUSE_SECONDS = 0.1


@asynccontextmanager
async def running(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something for as long as the block lasts."""
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Watch:
    """How long nothing answered at an address at the longest, in seconds."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self.answers = 0
        self.longest = 0.0
        self._answered = time.monotonic()

    def restart(self) -> None:
        """Forget how long nothing answered before."""
        self.longest = 0.0

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            if await self._asks():
                self.answers += 1
                self._answered = time.monotonic()
            self.longest = max(self.longest, time.monotonic() - self._answered)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _asks(self) -> bool:
        """Whether an API server completes a TLS handshake: the load balancer accepts connections on its own."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            async with asyncio.timeout(1.0):
                _, writer = await asyncio.open_connection(self._address.hostname, self._address.port, ssl=context)
        except (OSError, TimeoutError):
            return False

        writer.transport.abort()
        return True


@asynccontextmanager
async def watched(url: str) -> AsyncIterator[Watch]:
    watch = Watch(url)
    async with running(watch.run()):
        yield watch
