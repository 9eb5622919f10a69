"""Fails when a test took longer than a minute and is not on the list: slow tests are how a suite gets out of use.

Usage: slow.py LIST REPORT... with JUnit XML reports of pytest. Exit status 1 with a line for each finding. The variable
CAPHV_TEST_SLOW_SECONDS raises the limit, for machines that are slower or busy.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

LIMIT = 60.0


def read_list(text: str) -> set[str]:
    """Return the names in a list: the first word of each line, `#` begins a comment."""
    return {line.split()[0] for line in (raw.partition("#")[0] for raw in text.splitlines()) if line.strip()}


def read_report(text: str) -> dict[str, float]:
    """Return the seconds of each test of a report, of the slowest where a test has parameters."""
    seconds: dict[str, float] = {}
    for case in ElementTree.fromstring(text).iter("testcase"):  # noqa: S314 - our own pytest wrote it
        name = f"{case.get('classname', '')}.{case.get('name', '')}".strip(".").partition("[")[0]
        seconds[name] = max(seconds.get(name, 0.0), float(case.get("time") or 0))
    return seconds


def findings(listed: set[str], seconds: dict[str, float], limit: float) -> Iterable[str]:
    """Say which tests are too slow, and which names on the list are no tests (any more)."""
    for name, took in sorted(seconds.items()):
        if took > limit and name not in listed:
            yield f"{name} took {took:.0f} s: make it faster, or list it with a reason"
    for name in sorted(listed - seconds.keys()):
        yield f"{name} is on the list of slow tests and is no test: remove it"


def main(list_file: str, *report_files: str) -> int:
    """Print what is found; return the exit status."""
    seconds: dict[str, float] = {}
    for file in report_files:
        seconds |= read_report(Path(file).read_text(encoding="utf-8"))
    limit = float(os.environ.get("CAPHV_TEST_SLOW_SECONDS") or LIMIT)
    found = list(findings(read_list(Path(list_file).read_text(encoding="utf-8")), seconds, limit))
    for line in found:
        sys.stderr.write(f"{line}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
