"""The event loop of all processes: uvloop where there is one, because it halves the price of TLS and sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

try:
    import uvloop
except ImportError:
    uvloop = None

_Answer = TypeVar("_Answer")


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, on a loop of its own."""
    (uvloop or asyncio).run(main)


async def unless_stopped(work: Coroutine[Any, Any, _Answer], stop: asyncio.Event) -> _Answer | None:
    """Answer what the coroutine does; when `stop` is set before it has ended, cancel it and answer None."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, stopped):
            one.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
