"""The one way to wait for something in tests."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

# More than anything takes on a machine that runs other tests, too.
PATIENCE = 60.0
# Seconds between two looks: a quarter of what the wait has taken so far. With a tenth, a quarter of all requests in the
# reconciler's tests were looks.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.5


async def until(
    condition: Callable[[], Any | Awaitable[Any]], what: str | Callable[[], str] = "", seconds: float = PATIENCE
) -> Any:
    """Wait until a condition holds and return what it returned; `what` names what did not happen otherwise."""
    started = time.monotonic()
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        waited = time.monotonic() - started
        if waited >= seconds:
            raise AssertionError(f"not within {seconds:.0f} s: {what() if callable(what) else what or condition}")
        await asyncio.sleep(min(max(waited / 4, SHORTEST_PAUSE), LONGEST_PAUSE))


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task of a test. Raises what ended it before: otherwise a failed assertion in it would be no failure."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do work that has no end of its own until the end of the block. Raises what ends it before."""
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done(), task.result()
    finally:
        await ended(task)


async def listens(port: int) -> bool:
    """Whether a server of this machine accepts connections."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
