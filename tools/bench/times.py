"""Moments in the life of a machine, and their distribution."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

TAINT = "node.cloudprovider.kubernetes.io/uninitialized"


@dataclass
class Times:
    """Times (monotonic seconds) at which a watch first reported each step of a machine.

    A time is 0 until the step is reported.
    """

    created: float = 0.0
    vm: float = 0.0
    address: float = 0.0
    ready: float = 0.0
    node: float = 0.0
    initialized: float = 0.0
    gone: float = 0.0

    @property
    def done(self) -> float:
        """Return the time at which the machine was both ready and initialized, 0 before."""
        if not self.ready or not self.initialized:
            return 0.0
        return max(self.ready, self.initialized)


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median, 99th percentile and maximum."""
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 3),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 3),
        "max": round(ordered[-1], 3),
    }
