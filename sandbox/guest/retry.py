"""Retries of a guest's requests to Harvester."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from caphv.runtime.errors import ServerFault, TooManyRequests, Unreachable

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
_T = TypeVar("_T")


async def retry_until_available(call: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat a request while the API server is unavailable. Raises `ApiError` if it is refused."""
    while True:
        try:
            return await call()
        except (Unreachable, ServerFault, TooManyRequests) as error:
            log.info("retrying: %s", error)
        await asyncio.sleep(RETRY_SECONDS)
