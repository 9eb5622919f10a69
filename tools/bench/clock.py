"""Measure the cost of a call, in seconds of time and in seconds of CPU.

On a machine with other load, the CPU seconds are the more reliable figure.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def time_call(call: Callable[[], T]) -> tuple[float, T]:
    """Call a function, and return the seconds that the call took and its result."""
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
