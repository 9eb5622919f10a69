"""Bound memory and time of each connection, so that a hostile server costs the others nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import orjson

from caphv.api.object import Obj
from caphv.runtime.errors import TooLarge

MIB = 1024 * 1024
# Bytes of Python's objects, by what they are in JSON: `{}`, `[]`, each value, each end of a text.
_OBJECT = 160
_LIST = 72
_VALUE = 40
_QUOTE = 20
# Memory for the caches of one connection, and for caches that connections to one server share. Each
# machine that runs there adds to both, because a VM with its disks takes 40 KiB. A VM of another
# owner in a shared namespace takes 8.5 KiB.
OWN_CACHE_BYTES = 16 * MIB
SHARED_CACHE_BYTES = 32 * MIB
_MACHINE_BYTES = 64 * 1024
# A connection may use the event loop for this many seconds at once, and for this share of the time
# on average.
_CREDIT_SECONDS = 5.0
_SHARE = 0.05
# Each machine adds to both. All objects of a machine are read in less time, and 5,000 machines that
# change rarely take 10 % of the time.
_MACHINE_SECONDS = 0.01
_MACHINE_SHARE = 0.00001
# Each other cached object also adds to both, because it has to be read and changes. At most this
# many objects count.
_OBJECT_SECONDS = 0.0005
_OBJECT_SHARE = 0.00001
_MAX_OBJECTS = 10_000
# A connection that uses more, or exceeds a bound, gets a smaller share for this many seconds.
_LIMITED_SHARE = 0.02
_LIMITED_SECONDS = 600.0
# Readers work in pieces of this many seconds of CPU, and other tasks run between them.
PIECE_SECONDS = 0.001
# Sockets and HTTP take this much CPU for each byte of a response, and for each request.
_BYTE_SECONDS = 1e-9
_REQUEST_SECONDS = 0.0005


class MemoryBudget:
    """Count the memory that all caches of one connection take together.

    The function `machines` counts the machines that use the connection. It is called when the
    caches need more than `limit`.
    """

    def __init__(self, limit: int, server: str) -> None:
        self.used = 0
        self.machines: Callable[[], int] = lambda: 0
        self._least = self._limit = limit
        self._server = server

    def charge(self, size: int) -> None:
        """Account for `size` more bytes.

        Raises `TooLarge` and accounts for nothing if they exceed the limit.
        """
        if size > 0 and self.used + size > self._limit:
            self._limit = self._least + self.machines() * _MACHINE_BYTES
            if self.used + size > self._limit:
                raise TooLarge(
                    f"{self._server}: its objects take more than the {self._limit // MIB} MiB they "
                    "may take"
                )
        self.used += size

    def release(self, size: int) -> None:
        """Account for `size` bytes less."""
        self.used -= size


def memory_of(obj: Obj) -> int:
    """Estimate the bytes that an object of JSON values takes, two to twenty times its text."""
    text = orjson.dumps(obj)
    containers = text.count(b"{") * _OBJECT + text.count(b"[") * _LIST
    return len(text) + containers + text.count(b",") * _VALUE + text.count(b'"') * _QUOTE


class TimeBudget:
    """Bound the share of the event loop that one connection uses, measured in seconds of CPU.

    Readers of the connection call `spend` after each piece of work and `rest` before the next one,
    which lets other tasks run. A connection that has used too much time, or whose server exceeded a
    bound (`broken`), rests for longer.

    The functions `machines` and `objects` count the machines that use the connection and the cached
    objects of the server. They are called when the credit is used up. `on_limit` is called when a
    limit begins.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.machines: Callable[[], int] = lambda: 0
        self.objects: Callable[[], int] = lambda: 0
        self.on_limit: Callable[[], None] = lambda: None
        self._clock = clock
        self._most = _CREDIT_SECONDS
        self._share = _SHARE
        self._credit = self._most
        self._credited = clock()
        self._limited_until = self._free_at = -_LIMITED_SECONDS
        self._reason = ""
        self._piece = 0.0
        self._turn = asyncio.Lock()

    @property
    def limited(self) -> str:
        """Return why the connection gets a smaller share now; empty if it does not."""
        return self._reason if self._clock() < self._limited_until else ""

    def record_violation(self, reason: str) -> None:
        """Record that the server exceeded a bound."""
        moment = self._clock()
        # Keep the first reason, because conditions must not change with each attack.
        begins = moment >= self._limited_until
        self._limited_until = moment + _LIMITED_SECONDS
        if begins:
            self._reason = reason
            self._free_at = moment
            self.on_limit()

    def spend_on_bytes(self, size: int) -> None:
        """Record that this many bytes were read."""
        self.spend(size * _BYTE_SECONDS)

    def spend_on_request(self) -> None:
        """Record a request."""
        self.spend(_REQUEST_SECONDS)

    def spend(self, seconds: float) -> None:
        """Record a piece of work."""
        moment = self._clock()
        self._piece += seconds
        if moment < self._limited_until:
            self._free_at = max(moment, self._free_at) + seconds / _LIMITED_SHARE
            return

        earned = (moment - self._credited) * self._share
        self._credit = min(self._most, self._credit + earned) - seconds
        self._credited = moment
        # Count machines and objects only when the credit is used up, because counting takes time.
        if self._credit < 0:
            self._count_load()
        if self._credit < 0:
            self._credit = self._most
            self.record_violation(
                f"its answers take more than {self._share:.0%} of this process's time"
            )

    def _count_load(self) -> None:
        """Let credit and share grow with the number of objects that the connection has to read.

        In a shared namespace, most objects belong to others.
        """
        machines = self.machines()
        objects = min(self.objects(), _MAX_OBJECTS)
        most_before = self._most
        self._most = _CREDIT_SECONDS + machines * _MACHINE_SECONDS + objects * _OBJECT_SECONDS
        self._share = _SHARE + machines * _MACHINE_SHARE + objects * _OBJECT_SHARE
        self._credit += max(0.0, self._most - most_before)

    async def rest(self) -> None:
        """Let other tasks run if there was enough work since the last rest."""
        if self._clock() < self._limited_until:
            async with self._turn:
                await asyncio.sleep(max(0.0, self._free_at - self._clock()))
        elif self._piece >= PIECE_SECONDS:
            await asyncio.sleep(0)
        else:
            return
        self._piece = 0.0
