"""Returns the memory of large buffers to the system as soon as they are freed.

glibc takes the first large buffers from the system, and later ones of up to 32 MiB from its heap, where smaller objects
keep them from being returned: a few large requests leave tens of MiB behind permanently. A fixed threshold prevents it.

Each read of a TLS connection takes a buffer of 256 KiB for a moment. The thresholds keep it in the heap: seven times
the CPU of a small read would otherwise be system calls and page faults.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE = 512 * 1024
_KEPT = 1024 * 1024


def return_to_system() -> None:
    """Set the thresholds for this process; other C libraries than glibc have none.

    The second is how much free memory the end of the heap may have; glibc derives it from the first unless that is set.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        glibc = ctypes.CDLL(None)
        glibc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
        glibc.mallopt(_M_TRIM_THRESHOLD, _KEPT)


def trim() -> None:
    """Return what is free between objects of the heap to the system, too: it takes a tenth of a millisecond at most."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
