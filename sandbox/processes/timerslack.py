"""The timer slack of processes, by which their timers may expire late.

Idle servers written in Go wake up some 150 times a second, for the timers of watch caches, the
ticks of Raft, and the Go runtime's monitor, which sleeps for 20 µs at a time. With more slack, the
kernel lets several timers expire together (prctl(2), PR_SET_TIMERSLACK), so that an idle server
takes half as much CPU time.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator

PR_SET_TIMERSLACK = 29
RESET = 0


@contextlib.contextmanager
def set_for_children(seconds: float) -> Iterator[None]:
    """Let timers of programs that this thread starts in the block expire up to `seconds` late.

    The value 0 changes nothing. Only Linux has this setting. Elsewhere the block runs without it.
    """
    if not seconds or sys.platform != "linux":
        yield
        return

    # A child inherits the slack of the thread that forks it.
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(round(seconds * 1e9)), 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_TIMERSLACK, RESET, 0, 0, 0)
