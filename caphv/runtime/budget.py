"""What one connection may take of this process, so that a hostile server costs the others nothing: memory and time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import orjson

from caphv.api.object import Obj
from caphv.runtime.errors import TooLarge

MIB = 1024 * 1024
# Of Python's objects, by what they are in JSON: `{}`, `[]`, each value, each end of a text.
_OBJECT, _LIST, _VALUE, _QUOTE = 160, 72, 40, 20
# What a connection's own caches may take, and those that connections to one server share. Each machine that runs there
# adds to both: a VM with its disks takes 40 KiB. Of those of others, which share a namespace, 8.5 KiB are kept.
OWN_CACHE_BYTES, SHARED_CACHE_BYTES = 16 * MIB, 32 * MIB
_MACHINE_BYTES = 64 * 1024
# A connection may use the event loop for this many seconds at once, and for this share of the time on average.
_CREDIT_SECONDS, _SHARE = 5.0, 0.05
# Each machine adds to both: all of its objects are read in less, and 5,000 machines that change rarely in 10 %.
_MACHINE_SECONDS, _MACHINE_SHARE = 0.01, 0.00001
# So does each other object that is cached, because it has to be read and changes: up to so many, whatever a server has.
_OBJECT_SECONDS, _OBJECT_SHARE, _MOST_OBJECTS = 0.0005, 0.00001, 10_000
# One that uses more, or broke a bound, gets a smaller share for so long.
_LIMITED_SHARE, _LIMITED_SECONDS = 0.02, 600.0
# Work is done in pieces of this many seconds of CPU, and others have their turns between them.
PIECE_SECONDS = 0.001
# Sockets and HTTP take this much CPU for each byte of a response, and for each request.
_BYTE_SECONDS, _REQUEST_SECONDS = 1e-9, 0.0005


class MemoryBudget:
    """Memory that all caches of one connection take together.

    `machines` counts those for which the connection is used; it is called when more than `limit` is needed.
    """

    def __init__(self, limit: int, server: str) -> None:
        self.used = 0
        self.machines: Callable[[], int] = lambda: 0
        self._least = self._limit = limit
        self._server = server

    def charge(self, size: int) -> None:
        """Account for `size` more bytes. Raises `TooLarge` and accounts for nothing if they exceed the limit."""
        if size > 0 and self.used + size > self._limit:
            self._limit = self._least + self.machines() * _MACHINE_BYTES
            if self.used + size > self._limit:
                raise TooLarge(f"{self._server}: its objects take more than the {self._limit // MIB} MiB they may take")
        self.used += size

    def release(self, size: int) -> None:
        """Account for `size` bytes less."""
        self.used -= size


def memory_of(obj: Obj) -> int:
    """Estimate the bytes that an object of JSON values takes: two to twenty times its text."""
    text = orjson.dumps(obj)
    containers = text.count(b"{") * _OBJECT + text.count(b"[") * _LIST
    return len(text) + containers + text.count(b",") * _VALUE + text.count(b'"') * _QUOTE


class TimeBudget:
    """Share of the event loop that one connection may use, measured in seconds of CPU.

    Its readers call `spend` after each piece of work and `rest` before the next. In general that lets others have
    their turns. A connection that has used too much, or whose server broke a bound (`broken`), rests for longer.

    `machines` counts those for which the connection is used, `objects` what is cached of the server; they are called
    when the credit is used up. `on_limit` is called when a limit begins.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.machines: Callable[[], int] = lambda: 0
        self.objects: Callable[[], int] = lambda: 0
        self.on_limit: Callable[[], None] = lambda: None
        self._clock = clock
        self._most, self._share = _CREDIT_SECONDS, _SHARE
        self._credit, self._credited = self._most, clock()
        self._limited_until = self._free_at = -_LIMITED_SECONDS
        self._reason = ""
        self._piece = 0.0
        self._turn = asyncio.Lock()

    @property
    def limited(self) -> str:
        """Why the connection gets a smaller share now; empty if it does not."""
        return self._reason if self._clock() < self._limited_until else ""

    def broken(self, reason: str) -> None:
        """Record that the server broke a bound."""
        now = self._clock()
        # The first reason stays: conditions must not change with each attack.
        begins = now >= self._limited_until
        self._limited_until = now + _LIMITED_SECONDS
        if begins:
            self._reason, self._free_at = reason, now
            self.on_limit()

    def received(self, size: int) -> None:
        """Record that this many bytes were read."""
        self.spend(size * _BYTE_SECONDS)

    def requested(self) -> None:
        """Record a request."""
        self.spend(_REQUEST_SECONDS)

    def spend(self, seconds: float) -> None:
        """Record a piece of work."""
        now = self._clock()
        self._piece += seconds
        if now < self._limited_until:
            self._free_at = max(now, self._free_at) + seconds / _LIMITED_SHARE
            return
        self._credit = min(self._most, self._credit + (now - self._credited) * self._share) - seconds
        self._credited = now
        if self._credit < 0:
            self._count_load()
        if self._credit < 0:
            self._credit = self._most
            self.broken(f"its answers take more than {self._share:.0%} of this process's time")

    def _count_load(self) -> None:
        """Grow credit and share with what has to be read: in a shared namespace, most of it belongs to others."""
        machines, objects, before = self.machines(), min(self.objects(), _MOST_OBJECTS), self._most
        self._most = _CREDIT_SECONDS + machines * _MACHINE_SECONDS + objects * _OBJECT_SECONDS
        self._share = _SHARE + machines * _MACHINE_SHARE + objects * _OBJECT_SHARE
        self._credit += max(0.0, self._most - before)

    async def rest(self) -> None:
        """Let others have their turns if there was enough work since the last rest."""
        if self._clock() < self._limited_until:
            async with self._turn:
                await asyncio.sleep(max(0.0, self._free_at - self._clock()))
        elif self._piece >= PIECE_SECONDS:
            await asyncio.sleep(0)
        else:
            return
        self._piece = 0.0
