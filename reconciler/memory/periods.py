"""Periods of time that begin with an event: of unknown, transient and failing states."""

from __future__ import annotations

import time

GRACE_SECONDS = 15.0
"""Seconds for which a state may be unknown before conditions report it as unknown.

States are unknown after a start of the provider, and while Harvester is unreachable.
"""

FORCE_DELETE_SECONDS = 60.0
"""Seconds for which Harvester must be unreachable before a requested force-deletion begins.

A shorter interruption, for example of a failover, must not leave objects behind.
"""

# Seconds between two writes of transient states. A new VM on a busy Harvester has a new one every
# few seconds: its volumes do not exist, are pending, it is scheduled, it has no address.
_NEXT_TRANSIENT_SECONDS = 5.0
# The first and the longest wait before a failed attempt is repeated for which nothing waits.
_FIRST_RETRY_SECONDS = 60.0
_MAX_RETRY_SECONDS = 600.0


class Grace:
    """Start times of the periods in which states behind conditions are unknown.

    Without it, a restart begins a new grace period.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def remaining(self, condition: str) -> float:
        """Return the seconds until the grace period of a condition ends, 0 once it has ended.

        The first call begins the period.
        """
        current_time = time.monotonic()
        since = self._since.setdefault(condition, current_time)
        return max(0.0, since + GRACE_SECONDS - current_time)

    def mark_known(self, *conditions: str) -> None:
        """Record that the states behind these conditions (default: all conditions) are known."""
        for condition in conditions or tuple(self._since):
            self._since.pop(condition, None)


class OutageClock:
    """Since when a deletion has no connection to Harvester.

    Without it, a requested force-deletion waits for the whole time again.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def begin(self) -> None:
        """Record that there is no connection; only the first call after `end` counts."""
        if self._since is None:
            self._since = time.monotonic()

    def end(self) -> None:
        """Record that Harvester answers."""
        self._since = None

    def remaining(self) -> float:
        """Return the seconds until a force-deletion may begin, 0 if it may. Begins the outage."""
        self.begin()
        since = self._since or 0.0
        return max(0.0, since + FORCE_DELETE_SECONDS - time.monotonic())


class Repeated:
    """Start time of a series of equal failures. Without it, the next attempt comes sooner."""

    def __init__(self) -> None:
        self._kind = ""
        self._since = 0.0

    def retry_after(self, kind: str) -> float:
        """Return the seconds until the next attempt, after an attempt has failed in this way.

        The wait is as long as the failure has already lasted, within limits.
        """
        current_time = time.monotonic()
        if kind != self._kind:
            self._kind = kind
            self._since = current_time
        lasted = current_time - self._since
        return min(max(lasted, _FIRST_RETRY_SECONDS), _MAX_RETRY_SECONDS)

    def reset(self) -> None:
        """Record that the last attempt has succeeded, or that no attempt is due."""
        self._kind = ""


class Debounce:
    """Start time of a transient state, and whether one was written.

    Without it, the status reports the state later, and the next one sooner.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._is_written = False

    def remaining(self, patience: float) -> float:
        """Return the seconds until a transient state has to be written, 0 if that is now.

        :param patience: seconds for which the first state must last before it is written
        """
        # A machine passes through half a dozen such states within seconds. Writing each of them
        # would take half of all requests. So only a state that lasts is written, and further states
        # less often.
        current_time = time.monotonic()
        required = max(patience, _NEXT_TRANSIENT_SECONDS) if self._is_written else patience
        if self._since is None:
            self._since = current_time

        remaining = self._since + required - current_time
        if remaining <= 0:
            self._since = current_time
            self._is_written = True
        return max(0.0, remaining)

    def end(self) -> None:
        """Record that the object is in a lasting state."""
        self._since = None
        self._is_written = False
