"""Bounds the memory of large requests: any number of clients may send one on each of their connections."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from bisect import insort
from collections.abc import AsyncIterator


class LargeBodies:
    """Lets bodies of at most `capacity` bytes in all be read at a time; of those that wait, the smallest is next."""

    def __init__(self, capacity: int) -> None:
        self._free = capacity
        self._waiting: list[tuple[int, int, asyncio.Event]] = []
        self._order = itertools.count()

    @contextlib.asynccontextmanager
    async def room(self, size: int, seconds: float) -> AsyncIterator[None]:
        """Hold `size` bytes of the capacity. Raises `TimeoutError` when they are not free within `seconds`."""
        waiting = (size, next(self._order), asyncio.Event())
        insort(self._waiting, waiting)
        self._admit()
        try:
            async with asyncio.timeout(seconds):
                await waiting[2].wait()
            yield
        finally:
            if waiting[2].is_set():
                self._free += size
                self._admit()
            else:
                self._waiting.remove(waiting)

    def _admit(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, _, admitted = self._waiting.pop(0)
            self._free -= size
            admitted.set()
