"""Run targets of the Makefile one after the other, and print how long each took.

Usage: stages.py TARGET... A target that fails does not stop the ones after it, because each says
something about other tests. Ends with the status of the first one that failed, after a table.
"""

import os
import subprocess
import sys
import time


def main(*targets: str) -> int:
    """Run the targets; return the exit status."""
    make = os.environ.get("MAKE", "make")
    start = time.monotonic()
    failed: dict[str, int] = {}
    rows: list[tuple[str, float]] = []
    for number, target in enumerate(targets, 1):
        # Flush the title, because the target writes its output to the same pipe.
        sys.stdout.write(f"\n=== {number}/{len(targets)} {target}\n")
        sys.stdout.flush()

        target_start = time.monotonic()
        status = subprocess.run([make, "--no-print-directory", target], check=False).returncode
        rows.append((target, time.monotonic() - target_start))
        if status:
            failed[target] = status

    result = f"FAILED in {', '.join(failed)}" if failed else "passed"
    sys.stdout.write(f"\n=== {result}\n")
    width = max(map(len, targets))
    for name, duration in [*rows, ("all", time.monotonic() - start)]:
        minutes, seconds = divmod(int(duration), 60)
        sys.stdout.write(f"{name:{width}} {minutes:3} min {seconds:2} s\n")
    return next(iter(failed.values()), 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
