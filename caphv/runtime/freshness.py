"""How current a cache is.

Why: `synced` only says that a list was read once. While its watch is disconnected a cache shows the past, and a
reconciler that takes "not in the cache" for "does not exist" then releases an address or removes a finalizer that
is still needed.

A watch that resumes first delivers what happened in between, in one burst right behind the headers of the answer. The
cache has caught up when that burst has ended, or with the first bookmark. Only time in which the reader waits for the
server ends a burst: a reader that rests, because its connection is limited, leaves events unread. So does a process
that was busy: it waits a second time, but not a third one, so that a cache becomes current in the end. Where events
never pause, because thousands of objects of others change, the server is asked for the version that it has: the cache
has caught up when it has read that one. A connection that breaks without a sign is noticed within
`caphv.runtime.client.DEAD_CONNECTION_SECONDS`; where that is too late, read the object itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

FreshnessHandler = Callable[[bool], None]
_QUIET_SECONDS = 0.5
# Seconds of events without a pause after which the server is asked for its version.
_BUSY_SECONDS = 3.0
# A timer that fires later than this says that the process was busy, and may not have read what has arrived.
_LATE_SECONDS = 0.1


class Freshness:
    """Follows one watch: disconnected, connected, or current (connected and caught up)."""

    def __init__(self) -> None:
        self.connected = False
        self.since: float | None = None
        self.lost: float | None = time.monotonic()
        self._handlers: list[FreshnessHandler] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ask_at = math.inf
        self._expected = math.inf
        self._became_current = asyncio.Event()

    @property
    def current(self) -> bool:
        """Whether the watch is connected and has caught up."""
        return self.since is not None

    @property
    def stale_seconds(self) -> float:
        """Seconds for which the cache has not been current; 0 while it is."""
        return time.monotonic() - self.lost if self.lost is not None else 0.0

    async def wait_current(self) -> None:
        """Wait until the cache is current."""
        await self._became_current.wait()

    def add_handler(self, handler: FreshnessHandler) -> None:
        """Call the handler with True when the cache becomes current, and with False when it no longer is."""
        self._handlers.append(handler)

    def remove_handler(self, handler: FreshnessHandler) -> None:
        """Stop calling the handler; one that is not registered is ignored."""
        if handler in self._handlers:
            self._handlers.remove(handler)

    # Called by the informer

    def opened(self) -> None:
        """Record that the server has accepted the watch."""
        self.connected = True
        self._ask_at, self._expected = time.monotonic() + _BUSY_SECONDS, math.inf
        self._restart_timer()

    @property
    def needs_version(self) -> bool:
        """Whether only the server's version can say that the cache has caught up, because events never pause."""
        return self.connected and not self.current and time.monotonic() >= self._ask_at

    def expect(self, version: int) -> None:
        """Record a version that the server had: who has read it has caught up."""
        self._ask_at, self._expected = math.inf, version

    def waits(self, waiting: bool) -> None:
        """Record that the reader begins or ends to wait for the server."""
        if not waiting:
            self._stop_timer()
        elif self.connected and not self.current:
            self._restart_timer()

    def received(self, kind: str, version: int = 0) -> None:
        """Record an event of the watch, and the version of its object."""
        if self.current:
            return
        if kind == "BOOKMARK" or version >= self._expected:
            self._caught_up()
        elif self._timer:
            self._restart_timer()

    def closed(self) -> None:
        """Record that the watch has ended, for whatever reason."""
        self.connected = False
        self._stop_timer()
        if self.since is not None:
            self.since, self.lost = None, time.monotonic()
            self._became_current.clear()
            self._notify(current=False)

    # Inside

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _restart_timer(self, *, again: bool = False) -> None:
        self._stop_timer()
        loop = asyncio.get_running_loop()
        due = loop.time() + _QUIET_SECONDS
        self._timer = loop.call_at(due, self._quiet, due, again)

    def _quiet(self, due: float, again: bool) -> None:
        if not again and asyncio.get_running_loop().time() - due > _LATE_SECONDS:
            self._restart_timer(again=True)
        else:
            self._caught_up()

    def _caught_up(self) -> None:
        self._stop_timer()
        self.since, self.lost = time.monotonic(), None
        self._became_current.set()
        self._notify(current=True)

    def _notify(self, *, current: bool) -> None:
        for handler in list(self._handlers):
            try:
                handler(current)
            except Exception:
                # A faulty handler must not end the watch that all others depend on.
                log.exception("freshness handler failed")
