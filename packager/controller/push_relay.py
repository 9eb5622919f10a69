"""Has a push heard where the work is done: in this replica, or by a note on the Lease where another one holds that.

A Git host calls any replica that is ready, and tells nobody twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from caphv.runtime.election import LeaderElection
from caphv.runtime.errors import ApiError, Unreachable
from caphv.runtime.runnable import Runnable

log = logging.getLogger(__name__)

# Each note costs the holder one renewal; pushes that come meanwhile are one note.
_PAUSE = 5.0


class Bell(Runnable):
    """Calls `heard` here, or in the replica that holds the lease, once for all rings that come together."""

    def __init__(self, election: LeaderElection | None, heard: Callable[[], None]) -> None:
        self._election = election
        self._heard = heard
        self._rung = asyncio.Event()
        if election:
            election.on_sync_request = heard

    def ring(self) -> None:
        """There was a push."""
        if self._election is None or self._election.holding:
            self._heard()
        else:
            self._rung.set()

    async def run(self) -> None:
        """Hand rings over for as long as this replica waits for the lease."""
        while True:
            await self._rung.wait()
            self._rung.clear()
            if self._election:
                try:
                    await self._election.request_sync()
                except (ApiError, Unreachable) as error:
                    log.warning("a push cannot be handed over to the leader, trying again: %s", error)
                    self._rung.set()
            await asyncio.sleep(_PAUSE)
