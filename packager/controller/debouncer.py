"""When to look at the repository: changes that come together make one commit, and none waits too long.

A reconcile asked for by somebody, and a push event, do not wait at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from caphv.api.object import Key


class Trigger:
    """Clusters that changed, and when they are looked at: after `quiet` seconds without another change.

    `longest` is how many seconds the first of several changes waits at most.
    """

    def __init__(self, quiet: float, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet, self._longest, self._clock = quiet, longest, clock
        self._waiting: dict[Key, float] = {}
        self._in_work: dict[Key, float] = {}
        self._last = 0.0
        self._hurried = False
        self._changed = asyncio.Event()

    def touch(self, key: Key, *, now: bool = False) -> None:
        """Note that a cluster changed; `now` has it looked at without delay."""
        self._last = self._clock()
        self._waiting.setdefault(key, self._last)
        if now:
            self._hurried = True
        self._changed.set()

    def hurry(self) -> None:
        """Have everything looked at without delay, whether or not something changed here."""
        self._hurried = True
        self._changed.set()

    @property
    def lag(self) -> float:
        """Age in seconds of the oldest change that is not in the repository, 0 when there is none."""
        times = [*self._waiting.values(), *self._in_work.values()]
        return self._clock() - min(times) if times else 0.0

    @property
    def pending(self) -> set[Key]:
        """Clusters with changes that are not in the repository."""
        return {*self._waiting, *self._in_work}

    def due(self) -> float:
        """Seconds until it is time for what has changed; infinite when nothing has."""
        if self._hurried:
            return 0.0
        if not self._waiting:
            return float("inf")
        first = min(self._waiting.values())
        return max(0.0, min(self._last + self._quiet, first + self._longest) - self._clock())

    async def wait(self, at_most: float) -> None:
        """Wait until changes are due, but not longer than so many seconds."""
        until = self._clock() + at_most
        while (seconds := min(self.due(), until - self._clock())) > 0:
            await self._sleep(seconds)

    async def pause(self, seconds: float) -> None:
        """Wait after a failure: only somebody who asks for it ends it before its time."""
        until = self._clock() + seconds
        while not self._hurried and (left := until - self._clock()) > 0:
            await self._sleep(left)

    def take(self) -> list[Key]:
        """Begin with all that has changed; `done` or `failed` ends it."""
        self._hurried = False
        for key, since in self._waiting.items():
            self._in_work.setdefault(key, since)
        self._waiting.clear()
        return sorted(self._in_work)

    def done(self) -> None:
        """What was taken is in the repository."""
        self._in_work.clear()

    def failed(self) -> None:
        """What was taken still waits."""
        self._waiting = {**self._waiting, **self._in_work}
        self._in_work.clear()

    async def _sleep(self, seconds: float) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
