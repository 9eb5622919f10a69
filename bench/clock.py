"""What a call costs: seconds of time, and of CPU, which says more on a machine that does other things, too."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Call, and return the seconds that it took with its result."""
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
