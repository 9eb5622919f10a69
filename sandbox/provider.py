"""Run the provider of a sandbox, and start it again when it has lost its Lease, as a kubelet does.

On a busy machine the API server may answer too late for a renewal.
"""

from __future__ import annotations

import os
import runpy
import sys

_LEASE_LOST = 3


def main() -> None:
    """Run `caphv` with the arguments of this process."""
    try:
        # Imports point down, so the command line is not imported here.
        runpy.run_module("caphv", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code == _LEASE_LOST:
            # The process keeps its pid, which the sandbox has recorded.
            os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - our own command
        raise


if __name__ == "__main__":
    main()
