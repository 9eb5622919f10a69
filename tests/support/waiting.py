"""The one way to wait for something in tests."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

# More than anything takes on a machine that runs other tests, too.
PATIENCE = 60.0
PAUSE = 0.05


async def until(
    condition: Callable[[], Any | Awaitable[Any]], what: str | Callable[[], str] = "", seconds: float = PATIENCE
) -> Any:
    """Wait until a condition holds and return what it returned; `what` names what did not happen otherwise."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what() if callable(what) else what or condition}")
        await asyncio.sleep(PAUSE)
