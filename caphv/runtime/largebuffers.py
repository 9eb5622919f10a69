"""Returns the memory of large buffers to the system as soon as they are freed.

glibc takes the first large buffers from the system, and later ones of up to 32 MiB from its heap, where smaller objects
keep them from being returned: a few large requests leave tens of MiB behind for good. A fixed threshold prevents it.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_MMAP_THRESHOLD = -3
_LARGE = 256 * 1024


def return_to_system() -> None:
    """Set the threshold for this process; other C libraries than glibc have none."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
