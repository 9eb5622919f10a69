"""Run the event loop of a process, with uvloop if installed, which halves the cost of TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from caphv.runtime import largebuffers, openfiles
from caphv.runtime.collector import ShortPauses

try:
    import uvloop
except ImportError:
    uvloop = None

_Answer = TypeVar("_Answer")


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to completion on a new event loop."""
    openfiles.raise_limit()
    largebuffers.return_to_system()
    ShortPauses().install()
    (uvloop or asyncio).run(main)


async def run_until_stop(work: Coroutine[Any, Any, _Answer], stop: asyncio.Event) -> _Answer | None:
    """Return the result of a coroutine. If `stop` is set first, cancel it and return None."""
    task = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopped.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
