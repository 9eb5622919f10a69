"""Decides when to publish, so that changes that arrive together become one commit.

A reconcile that a user requested and a push event do not wait at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from caphv.api.object import Key


class Debouncer:
    """Clusters that changed.

    They are due after `quiet` seconds without another change, at the latest after `longest`.
    """

    def __init__(
        self, quiet: float, longest: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quiet = quiet
        self._longest = longest
        self._clock = clock
        self._waiting: dict[Key, float] = {}
        self._in_progress: dict[Key, float] = {}
        self._last = 0.0
        self._triggered = False
        self._changed = asyncio.Event()

    def touch(self, key: Key, *, now: bool = False) -> None:
        """Note that a cluster changed; `now` makes the change due at once."""
        self._last = self._clock()
        self._waiting.setdefault(key, self._last)
        if now:
            self._triggered = True
        self._changed.set()

    def trigger_now(self) -> None:
        """Make a sync due at once, whether or not a cluster changed."""
        self._triggered = True
        self._changed.set()

    @property
    def lag(self) -> float:
        """Age in seconds of the oldest change that is not in the repository, 0 if all are."""
        times = [*self._waiting.values(), *self._in_progress.values()]
        return self._clock() - min(times) if times else 0.0

    @property
    def pending(self) -> set[Key]:
        """Clusters with changes that are not yet in the repository."""
        return {*self._waiting, *self._in_progress}

    def seconds_until_due(self) -> float:
        """Return the seconds until changes are due; infinite without changes."""
        if self._triggered:
            return 0.0
        if not self._waiting:
            return float("inf")
        # Changes are due after a quiet time since the last one, but never longer than `longest`
        # after the first one.
        first = min(self._waiting.values())
        due_time = min(self._last + self._quiet, first + self._longest)
        return max(0.0, due_time - self._clock())

    async def wait(self, at_most: float) -> None:
        """Wait until changes are due, for at most this many seconds."""
        deadline = self._clock() + at_most
        while (seconds := min(self.seconds_until_due(), deadline - self._clock())) > 0:
            await self._sleep(seconds)

    async def pause(self, seconds: float) -> None:
        """Wait after a failure; only `trigger_now` and urgent changes end it early."""
        deadline = self._clock() + seconds
        while not self._triggered and (remaining := deadline - self._clock()) > 0:
            await self._sleep(remaining)

    def take(self) -> list[Key]:
        """Take all changes; `drop_taken` or `put_back` ends their processing."""
        self._triggered = False
        for key, first_change in self._waiting.items():
            # Keep the time of the first change, because `lag` measures from then.
            self._in_progress.setdefault(key, first_change)
        self._waiting.clear()
        return sorted(self._in_progress)

    def drop_taken(self) -> None:
        """Drop the taken changes, because they are in the repository."""
        self._in_progress.clear()

    def put_back(self) -> None:
        """Put the taken changes back."""
        self._waiting = {**self._waiting, **self._in_progress}
        self._in_progress.clear()

    async def _sleep(self, seconds: float) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
