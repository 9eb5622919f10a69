"""Memory of namespaces on Harvester whose quota is used up."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import NamedTuple


class QuotaWait(NamedTuple):
    """Why no VM can be created or started in a namespace, and for how many seconds to wait."""

    message: str
    seconds: float


class QuotaGate:
    """Let one machine at a time try again in a namespace on Harvester whose quota is used up.

    Without it, each waiting machine would try every few seconds, and create a Secret and reserve an
    address each time.
    """

    def __init__(self) -> None:
        self._closed: dict[Hashable, tuple[str, float]] = {}
        self._ran: dict[Hashable, float] = {}

    def wait(self, namespace: Hashable, seconds: float) -> QuotaWait | None:
        """Return how long a machine has to wait; None for the machine that has to try.

        :param seconds: for how long the other machines wait for the result of the attempt
        """
        message, until = self._closed.get(namespace, ("", 0.0))
        current_time = time.monotonic()
        if current_time < until:
            return QuotaWait(message, until - current_time)
        if message:
            self._closed[namespace] = (message, current_time + seconds)
        return None

    def close(self, namespace: Hashable, message: str, seconds: float) -> None:
        """Record that a quota refused a VM."""
        self._closed[namespace] = (message, time.monotonic() + seconds)

    def open(self, namespace: Hashable) -> None:
        """Record that a VM was created or started."""
        self._closed.pop(namespace, None)

    def record_running_vm(self, namespace: Hashable) -> None:
        """Record that a VM which a quota had halted runs again."""
        self.open(namespace)
        self._ran[namespace] = time.monotonic()

    def ran_since(self, namespace: Hashable, moment: float) -> bool:
        """Return whether a halted VM has begun to run since a moment of the monotonic clock."""
        return self._ran.get(namespace, moment) > moment
