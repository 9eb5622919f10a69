"""Runs pytest, and then the tests that failed a second time, one after the other, if they are few.

Usage: rerun.py REPORT ARGUMENT... with the JUnit XML report to write and pytest's arguments. A test that fails twice
fails the run; one that passes the second time is reported as flaky, and its first report is kept. More than five
failures are no accident: nothing is repeated.
"""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

MOST = 5
TESTS_FAILED = 1  # pytest's exit status; other errors are not of a test


def read_failed(text: str) -> list[str]:
    """Return the names of the tests of a report that failed, or whose fixtures did."""
    cases = ElementTree.fromstring(text).iter("testcase")  # noqa: S314 - our own pytest wrote it
    names = (f"{case.get('classname', '')}.{case.get('name', '')}" for case in cases if _failed(case))
    return list(dict.fromkeys(names))


def _failed(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def run(report: Path, *arguments: str) -> int:
    """Run pytest once; return its exit status."""
    command = [sys.executable, "-m", "pytest", *arguments, f"--junitxml={report}"]
    return subprocess.run(command, check=False).returncode


def main(report_file: str, *arguments: str) -> int:
    """Run the tests; return the exit status."""
    report = Path(report_file)
    status = run(report, *arguments)
    if status != TESTS_FAILED:
        return status
    failed = read_failed(report.read_text(encoding="utf-8"))
    if len(failed) > MOST:
        return status
    sys.stdout.write(f"\n=== running again, one after the other: {', '.join(failed)}\n")
    sys.stdout.flush()
    again = report.with_name(f"{report.stem}-again.xml")
    status = run(again, *arguments, "--last-failed", "--last-failed-no-failures=none", "--numprocesses=0")
    if status == 0:
        sys.stdout.write(f"\n=== FLAKY, fix them: {', '.join(failed)}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
