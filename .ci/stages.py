"""Runs targets of the Makefile one after the other, and says what it is doing and how long each took.

Usage: stages.py TARGET... Ends with the status of the first target that fails, after the table of those that ran.
"""

import os
import subprocess
import sys
import time


def main(*targets: str) -> int:
    """Run the targets; return the exit status."""
    make = os.environ.get("MAKE", "make")
    started, rows, status = time.monotonic(), list[tuple[str, float]](), 0
    for number, target in enumerate(targets, 1):
        sys.stdout.write(f"\n=== {number}/{len(targets)} {target}\n")
        sys.stdout.flush()
        before = time.monotonic()
        status = subprocess.run([make, "--no-print-directory", target], check=False).returncode
        rows.append((target, time.monotonic() - before))
        if status:
            break
    width = max(map(len, targets))
    sys.stdout.write("\n=== " + ("FAILED in " + rows[-1][0] if status else "passed") + "\n")
    for name, seconds in [*rows, ("all", time.monotonic() - started)]:
        sys.stdout.write(f"{name:{width}} {int(seconds) // 60:3} min {int(seconds) % 60:2} s\n")
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
