"""Keeps pauses of Python's garbage collector short, however large the caches are.

A full collection visits each cached object, and stops the process meanwhile: half a second with 5,000 machines.
Caches hold trees, which need no collector. So what has survived a full collection is frozen, and the next one visits
newer objects only. Cycles that become garbage later, such as those of a closed session, are found once an hour.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

THAW_SECONDS = 3600.0


class ShortPauses:
    """Hears of collections as a member of `gc.callbacks`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._thawed = clock()

    def install(self) -> None:
        """Follow collections from now on."""
        gc.callbacks.append(self)

    def remove(self) -> None:
        """Leave everything to the collector again."""
        gc.callbacks.remove(self)
        gc.unfreeze()

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        """Freeze what has survived a full collection; before the first one of an hour, thaw everything."""
        if info["generation"] != 2:
            return
        if phase == "stop":
            gc.freeze()
        elif self._clock() - self._thawed >= THAW_SECONDS:
            self._thawed = self._clock()
            gc.unfreeze()
