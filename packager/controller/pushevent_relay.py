"""Relays push events to the leader, because a Git host calls any ready replica, and only once.

The leader is this replica, or it gets a request on the Lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from caphv.runtime.election import LeaderElection
from caphv.runtime.errors import RequestError
from caphv.runtime.runnable import Runnable

log = logging.getLogger(__name__)

# Each request costs the leader one renewal. Pushes during the pause share the next request.
_PAUSE_SECONDS = 5.0


class PushRelay(Runnable):
    """Calls `on_push` in the replica that holds the lease, once for pushes that come together."""

    def __init__(self, election: LeaderElection | None, on_push: Callable[[], None]) -> None:
        self._election = election
        self._on_push = on_push
        self._pending = asyncio.Event()
        if election:
            election.on_sync_request = on_push

    def push(self) -> None:
        """Handle a push event."""
        if self._election is None or self._election.holding:
            self._on_push()
        else:
            self._pending.set()

    async def run(self) -> None:
        """Relay push events while this replica does not hold the lease."""
        while True:
            await self._pending.wait()
            self._pending.clear()
            if self._election:
                try:
                    await self._election.request_sync()
                except RequestError as error:
                    log.warning("cannot relay a push event to the leader, will retry: %s", error)
                    self._pending.set()
            await asyncio.sleep(_PAUSE_SECONDS)
