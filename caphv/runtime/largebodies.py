"""Bound the memory of large requests, however many connections send one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from bisect import insort
from collections.abc import AsyncIterator
from typing import NamedTuple


class _Ticket(NamedTuple):
    """A body that waits for room. Tickets sort by size; the number keeps equal sizes in order."""

    size: int
    number: int
    admitted: asyncio.Event


class LargeBodies:
    """Share `capacity` bytes among the bodies being read. The smallest waiting body is next."""

    def __init__(self, capacity: int) -> None:
        self._free = capacity
        # Sorted, so that the smallest body comes first.
        self._waiting: list[_Ticket] = []
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def room(self, size: int, seconds: float) -> AsyncIterator[None]:
        """Reserve `size` bytes. Raises `TimeoutError` if they are not free within `seconds`."""
        ticket = _Ticket(size, next(self._numbers), asyncio.Event())
        insort(self._waiting, ticket)
        self._admit()

        try:
            async with asyncio.timeout(seconds):
                await ticket.admitted.wait()
            yield
        finally:
            # The body may have been admitted right when its time ran out.
            if ticket.admitted.is_set():
                self._free += size
                self._admit()
            else:
                self._waiting.remove(ticket)

    def _admit(self) -> None:
        """Admit the smallest waiting bodies for which there is room."""
        while self._waiting and self._waiting[0].size <= self._free:
            ticket = self._waiting.pop(0)
            self._free -= ticket.size
            ticket.admitted.set()
