"""When what happened to a machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

TAINT = "node.cloudprovider.kubernetes.io/uninitialized"


@dataclass
class Times:
    """When (monotonic seconds) each thing was seen for one machine."""

    created: float = 0.0
    vm: float = 0.0
    address: float = 0.0
    ready: float = 0.0
    node: float = 0.0
    initialized: float = 0.0
    gone: float = 0.0

    @property
    def done(self) -> float:
        """When the machine was both ready and initialized, 0 before."""
        return max(self.ready, self.initialized) if self.ready and self.initialized else 0.0


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum."""
    found = sorted(values)
    return {
        "median": round(statistics.median(found), 3),
        "p99": round(found[min(len(found) - 1, int(len(found) * 0.99))], 3),
        "max": round(found[-1], 3),
    }
