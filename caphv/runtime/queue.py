"""Queue keys for workers: each key is queued at most once, and at most one worker processes it.

Why groups: one slow or dead server must not occupy all workers. Keys whose groups have the same
`limited` (a server) take at most `group_limit` workers; groups (accounts) take turns.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from caphv.runtime import metrics

K = TypeVar("K", bound=Hashable)


class Group(NamedTuple):
    """Keys that take turns with those of other groups.

    All groups with the same `limited` share one limit of workers.
    """

    limited: str = ""
    turn: str = ""


class WorkQueue(Generic[K]):
    """Deduplicating queue with delays and exponential back-off.

    `get` returns a key and keeps it from other workers until `done`. A key that is added meanwhile
    is queued again then. Delays are in seconds.

    :param group_of: returns the group of a key; by default all keys are in one
    :param group_limit: workers that keys with the same `limited` may occupy; 0 for all
    :param base: back-off after the first failure; it doubles with each further one, with jitter of
        a quarter
    :param maximum: longest back-off
    """

    def __init__(
        self,
        name: str,
        *,
        group_of: Callable[[K], Group] | None = None,
        group_limit: int = 0,
        base: float = 0.05,
        maximum: float = 60.0,
    ) -> None:
        # A look-up by label costs more than everything else that the queue does for a key.
        self._adds = metrics.QUEUE_ADDS.labels(name)
        self._depth = metrics.QUEUE_DEPTH.labels(name)
        self._wait_seconds = metrics.QUEUE_SECONDS.labels(name)

        self._group_of = group_of or (lambda _key: Group())
        self._group_limit = group_limit or (1 << 30)
        self._base = base
        self._maximum = maximum

        # Keys that wait for a worker: by group, the order of groups, and since when each waits.
        self._ready: dict[Group, deque[K]] = {}
        self._turns: deque[Group] = deque()
        self._queued: dict[K, float] = {}

        # Keys that workers have: their groups, those added meanwhile, and workers by limit.
        self._working: dict[K, Group] = {}
        self._dirty: set[K] = set()
        self._busy: Counter[str] = Counter()

        # Keys with a delay: when each is due, and a heap of these times with stale entries.
        self._failures: dict[K, int] = {}
        self._delayed: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

        self._changed = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of keys that wait for a worker; delayed ones do not count."""
        return len(self._queued)

    @property
    def idle(self) -> bool:
        """Return whether no key is queued or being processed; some may be delayed."""
        return not self._queued and not self._working

    def is_processing(self, key: K) -> bool:
        """Return whether a worker has the key, and may have read the state before a change."""
        return key in self._working

    def add(self, key: K) -> None:
        """Queue the key now."""
        self._delayed.pop(key, None)
        if self._closed or key in self._queued:
            return
        if key in self._working:
            self._dirty.add(key)
            return

        group = self._group_of(key)
        if group not in self._ready:
            self._ready[group] = deque()
            self._turns.append(group)
        self._ready[group].append(key)
        self._queued[key] = time.monotonic()

        self._adds.inc()
        self._depth.set(len(self._queued))
        self._changed.set()

    def add_after(self, key: K, delay: float) -> None:
        """Queue the key after a delay, or with an earlier `add`; the shortest delay wins."""
        if delay <= 0:
            self.add(key)
            return
        due = time.monotonic() + delay
        if key in self._queued or (key in self._delayed and self._delayed[key] <= due):
            return

        self._delayed[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        # A key that was added sooner leaves its entry behind until the entry is due. Remove stale
        # entries when there are more of them than of others, so that the heap stays small.
        if len(self._heap) > 2 * len(self._delayed) + 64:
            self._heap = [
                (due, order, key) for due, order, key in self._heap if self._delayed.get(key) == due
            ]
            heapq.heapify(self._heap)
        self._set_timer()

    def add_rate_limited(self, key: K, *, at_least: float = 0.0) -> float:
        """Queue the key after its back-off; return the delay."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(self._base * 2.0 ** min(failures - 1, 30), self._maximum)
        delay = max(at_least, delay * random.uniform(0.75, 1.25))
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """Return the number of failures in a row."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Reset the back-off of a key that succeeded."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for a key. Raises `asyncio.CancelledError` once the queue is closed."""
        while True:
            key = self._next()
            if key is not None:
                return key
            if self._closed:
                raise asyncio.CancelledError
            self._changed.clear()
            await self._changed.wait()

    def done(self, key: K) -> None:
        """Release the key after it was processed."""
        limited = self._working.pop(key).limited
        self._busy[limited] -= 1
        if not self._busy[limited]:
            del self._busy[limited]
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)
        self._changed.set()

    def close(self) -> None:
        """Accept no keys and hand none out."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
        self._changed.set()

    def _next(self) -> K | None:
        """Take the next key of a group below its limit; None if there is no such key."""
        if self._closed:
            return None

        for _ in range(len(self._turns)):
            group = self._turns.popleft()
            if self._busy[group.limited] >= self._group_limit:
                self._turns.append(group)
                continue

            ready = self._ready[group]
            key = ready.popleft()
            if ready:
                self._turns.append(group)
            else:
                del self._ready[group]

            self._working[key] = group
            self._busy[group.limited] += 1
            self._wait_seconds.observe(time.monotonic() - self._queued.pop(key))
            self._depth.set(len(self._queued))
            return key
        return None

    def _set_timer(self) -> None:
        """Start the timer for the earliest delayed key in place of the old timer."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._heap and not self._closed:
            delay = max(0.0, self._heap[0][0] - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._release_due)

    def _release_due(self) -> None:
        moment = time.monotonic()
        while self._heap and self._heap[0][0] <= moment:
            due, _, key = heapq.heappop(self._heap)
            if self._delayed.get(key) == due:  # otherwise it was added sooner or got a new delay
                self.add(key)
        self._set_timer()
