"""Tell whether the watch behind a cache is connected.

`synced` only means that a list was read once. While its watch is disconnected, a cache is outdated,
and a reconciler that reads "not in the cache" as "does not exist" would release an address or
remove a finalizer that is still needed. A watch that has just connected may still have events on
their way, and a connection that breaks silently is noticed only after 35 seconds (`_KEEPALIVE` of
`caphv.runtime.connection`). So read the object itself (`caphv.runtime.cache.Informer.read`) before
a step that cannot be undone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

WatchStateHandler = Callable[[bool], None]


class WatchState:
    """The state of one watch: connected or not."""

    def __init__(self) -> None:
        self.connected = False
        self._handlers: list[WatchStateHandler] = []

    def add_handler(self, handler: WatchStateHandler) -> None:
        """Call the handler with True when the watch connects, and with False when it ends."""
        self._handlers.append(handler)

    # The informer calls these methods.

    def record_opening(self) -> None:
        """Record that the server has accepted the watch."""
        self._set(connected=True)

    def record_closing(self) -> None:
        """Record that the watch has ended, for whatever reason."""
        self._set(connected=False)

    def _set(self, *, connected: bool) -> None:
        if connected == self.connected:
            return
        self.connected = connected
        for handler in list(self._handlers):
            try:
                handler(connected)
            except Exception:
                # A faulty handler must not end the watch that all others depend on.
                log.exception("handler of a watch's state failed")
