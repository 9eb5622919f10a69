"""Limit the requests, and thus the connections, that one client has at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

# A request that waits this many seconds for others is reported, for some minutes.
_LONG_WAIT_SECONDS = 5.0
_REPORTED_SECONDS = 600.0


class RequestSlots:
    """Let at most `limit` requests run.

    `on_limit` is called when a request has waited for long, unless that was reported already.
    """

    def __init__(self, limit: int, *, on_limit: Callable[[], None]) -> None:
        self._limit = limit
        self._on_limit = on_limit
        self._free = asyncio.Semaphore(limit)
        self._full_at = -_REPORTED_SECONDS

    @property
    def exhaustion(self) -> str:
        """A report if requests had to wait for long in the last minutes, else empty."""
        if time.monotonic() - self._full_at >= _REPORTED_SECONDS:
            return ""
        return f"{self._limit} requests were under way at once, and others waited"

    async def __aenter__(self) -> None:
        began = time.monotonic()
        await self._free.acquire()
        if time.monotonic() - began > _LONG_WAIT_SECONDS:
            is_reported = bool(self.exhaustion)
            self._full_at = time.monotonic()
            if not is_reported:
                self._on_limit()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._free.release()
