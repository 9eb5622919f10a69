"""Keep pauses of Python's garbage collector short, even with large caches.

A full collection visits each cached object and stops the process meanwhile, for half a second with
5,000 machines. Caches hold trees, which need no collector. Therefore objects that have survived a
full collection are frozen, and the next collection visits only newer objects. Once an hour all
objects are thawed, to find cycles that became garbage later, for example in a closed session.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

THAW_SECONDS = 3600.0


class ShortPauses:
    """A member of `gc.callbacks`, called before and after each garbage collection."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._thawed = clock()

    def install(self) -> None:
        """Install the callback."""
        gc.callbacks.append(self)

    def remove(self) -> None:
        """Remove the callback, and let the collector visit all objects again."""
        gc.callbacks.remove(self)
        gc.unfreeze()

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        """Freeze objects after a full collection. Once an hour, thaw all objects before it."""
        if info["generation"] != 2:
            return
        if phase == "stop":
            gc.freeze()
        elif self._clock() - self._thawed >= THAW_SECONDS:
            self._thawed = self._clock()
            gc.unfreeze()
