"""Raise the limit of open files.

Each watch is a connection, and the usual soft limit of 1,024 is only enough for a few clusters.
"""

from __future__ import annotations

import logging
import sys

if sys.platform != "win32":
    import resource

log = logging.getLogger(__name__)

_MIN_LIMIT = 4096


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit, and return it.

    Logs a warning if the limit is low. Returns -1 on a system without limits.
    """
    if sys.platform == "win32":
        return -1

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError) as error:
            log.debug("cannot raise the limit of open files: %s", error)

    if soft != resource.RLIM_INFINITY and soft < _MIN_LIMIT:
        log.warning(
            "the limit of open files is %d; with many Harvesters and clusters more than %d are "
            "needed (ulimit -n, or LimitNOFILE of the container runtime)",
            soft,
            soft,
        )
    return soft
