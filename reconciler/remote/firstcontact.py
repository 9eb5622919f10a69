"""Report the first contact of a watch."""

from __future__ import annotations

from collections.abc import Callable


class FirstContact:
    """Callback of a watch that reports its first contact, which fills the cache.

    Without objects, no other event tells that the cache is filled.
    """

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._was_reported = False

    def __call__(self) -> None:
        """Report a contact, unless one was reported before."""
        if not self._was_reported:
            self._was_reported = True
            self._report()
