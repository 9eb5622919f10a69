"""Measures how long an event loop is held up, and how much memory that takes."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from caphv.runtime import largebuffers

SECONDS, MEMORY = 0.05, 16 * 1024 * 1024
# Processor time of `_compute` on the machine for which SECONDS holds, while nothing else runs there.
_USUAL_SECONDS = 0.01
_PAUSE = 0.001
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# What resets the peak of the memory.
_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Cost:
    """The longest time in seconds without a heartbeat, and the bytes at the peak."""

    seconds: float
    memory: int


async def measure(work: Callable[[], Awaitable[object]]) -> Cost:
    """Return what the running event loop and this process spend on `work`.

    The time is that of the processor in the loop's thread, so that other processes of the machine do not matter. A core
    that they share makes it longer all the same, by what it makes any other work longer.

    The kernel tells the memory, and not `tracemalloc`: that counts 12 bytes for each byte of JSON, which orjson
    reserves and does not touch, and it sees neither libyaml nor zlib.
    """
    longest, last = 0.0, time.thread_time()

    def beat() -> None:
        nonlocal longest, last
        longest, last = max(longest, time.thread_time() - last), time.thread_time()

    async def beats() -> None:
        while True:
            beat()
            await asyncio.sleep(_PAUSE)

    gc.collect()
    largebuffers.trim()
    before = _resident()
    last = time.thread_time()
    heart = asyncio.create_task(beats())
    try:
        await work()
        beat()
        await asyncio.sleep(2 * _PAUSE)
    finally:
        heart.cancel()
        await asyncio.gather(heart, return_exceptions=True)
    memory = _status("VmHWM") - before
    return Cost(longest / slowness() if longest > SECONDS else longest, memory)


def slowness() -> float:
    """How many times longer than usual any work takes now; 1 if it takes less."""
    started = time.thread_time()
    _compute()
    return max(1.0, (time.thread_time() - started) / _USUAL_SECONDS)


def _compute() -> int:
    return sum(number % 7 for number in range(200_000))


async def fault(work: Callable[[], Awaitable[object]]) -> str:
    """Say if the work holds up the loop, or takes too much memory; empty if neither."""
    costs = [await measure(work)]
    while (costs[-1].seconds > SECONDS or costs[-1].memory > MEMORY) and len(costs) < 8:
        # Again: another process may have had the processor's caches, and the first buffer of its size is fresh memory.
        costs.append(await measure(work))
    seconds, memory = min(cost.seconds for cost in costs), min(cost.memory for cost in costs)
    slow = [f"{seconds:.3f} s"] if seconds > SECONDS else []
    large = [f"{memory / 1024 / 1024:.1f} MiB"] if memory > MEMORY else []
    return ", ".join(slow + large)


def _resident() -> int:
    """Return the memory of this process, and let the kernel look for a new peak from now on."""
    _CLEAR.write_text(_PEAK)
    return _status("VmRSS")


def _status(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
