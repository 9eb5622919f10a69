"""Return the memory of large buffers to the system as soon as they are freed.

glibc takes the first large buffers from the system, and later ones of up to 32 MiB from its heap,
where smaller objects keep their memory from being returned. So a few large requests leave tens of
MiB behind permanently. A fixed threshold prevents that.

Each read of a TLS connection takes a buffer of 256 KiB for a moment. The thresholds keep it in the
heap. Otherwise system calls and page faults would take seven times the CPU of a small read.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGE = 512 * 1024
_TRIM_THRESHOLD_BYTES = 1024 * 1024


def return_to_system() -> None:
    """Set the thresholds for this process. C libraries other than glibc have none.

    The second one limits the free memory at the end of the heap. glibc would derive it from the
    first one.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        glibc = ctypes.CDLL(None)
        glibc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
        glibc.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def trim() -> None:
    """Also return free memory between objects of the heap to the system.

    This takes a tenth of a millisecond at most.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
