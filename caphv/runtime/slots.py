"""Limits the requests of one client at a time, and with that its connections.

A new connection takes two or three round trips and, for TLS, a millisecond of CPU on both sides: more than a small
request. So a request first waits as long as that would take for another one to release its connection. Without this,
each of sixty accounts would open a connection for each of its machines, and again after each pause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

# A request waits for at most as long as this many recent requests took, and at most this many seconds.
_REQUESTS = 3.0
_MOST_SECONDS = 0.5
_FIRST_GUESS = 0.02
# Requests that wait for this many seconds, because all others run, are reported for some minutes.
_LONG_WAIT, _REPORTED_SECONDS = 5.0, 600.0


class RequestSlots:
    """Lets at most `limit` requests run. Connections are taken to be closed after `idle_seconds` without a request.

    `on_limit` is called when a request has waited for long, unless that is reported already.
    """

    def __init__(self, limit: int, *, idle_seconds: float, on_limit: Callable[[], None] = lambda: None) -> None:
        self._limit = limit
        self._on_limit = on_limit
        self._idle_seconds = idle_seconds
        self._connections = 1
        self._free = asyncio.Semaphore(1)
        self._running = 0
        self._used = time.monotonic()
        self._usual = _FIRST_GUESS
        self._full_at = -_REPORTED_SECONDS

    @property
    def exhausted(self) -> str:
        """What to report if requests had to wait for long in the last minutes; empty if they had not."""
        if time.monotonic() - self._full_at >= _REPORTED_SECONDS:
            return ""
        return f"{self._limit} requests were under way at once, and others waited"

    def answered(self, seconds: float) -> None:
        """Record how long a request took."""
        self._usual += (seconds - self._usual) / 8

    async def __aenter__(self) -> None:
        if not self._running and time.monotonic() - self._used > self._idle_seconds:
            self._connections, self._free = 1, asyncio.Semaphore(1)
        if self._free.locked() and self._connections < self._limit:
            await self._wait()
        else:
            await self._wait_for_others()
        self._running += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running -= 1
        self._used = time.monotonic()
        self._free.release()

    async def _wait(self) -> None:
        """Wait for a connection to be released, for as long as a new one would take."""
        try:
            async with asyncio.timeout(min(self._usual * _REQUESTS, _MOST_SECONDS)):
                await self._free.acquire()
        except TimeoutError:
            if self._connections < self._limit:
                self._connections += 1
            else:
                await self._wait_for_others()

    async def _wait_for_others(self) -> None:
        began = time.monotonic()
        await self._free.acquire()
        if time.monotonic() - began > _LONG_WAIT:
            known, self._full_at = self.exhausted, time.monotonic()
            if not known:
                self._on_limit()
