"""The event loop of all processes: uvloop where there is one, because it halves the price of TLS and sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

try:
    import uvloop
except ImportError:
    uvloop = None


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, on a loop of its own."""
    (uvloop or asyncio).run(main)
