"""Bound the memory of large requests, however many connections send one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from bisect import insort
from collections.abc import AsyncIterator


class LargeBodies:
    """Share `capacity` bytes among the bodies being read. The smallest waiting body is next."""

    def __init__(self, capacity: int) -> None:
        self._free = capacity
        self._waiting: list[tuple[int, int, asyncio.Event]] = []
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def room(self, size: int, seconds: float) -> AsyncIterator[None]:
        """Reserve `size` bytes. Raises `TimeoutError` if they are not free within `seconds`."""
        admitted = asyncio.Event()
        # The number keeps bodies of the same size in order.
        ticket = (size, next(self._numbers), admitted)
        insort(self._waiting, ticket)
        self._admit()

        try:
            async with asyncio.timeout(seconds):
                await admitted.wait()
            yield
        finally:
            # The body may have been admitted right when its time ran out.
            if admitted.is_set():
                self._free += size
                self._admit()
            else:
                self._waiting.remove(ticket)

    def _admit(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, _, admitted = self._waiting.pop(0)
            self._free -= size
            admitted.set()
