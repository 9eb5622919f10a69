"""Fail when a test was skipped that is not on the list: an unnoticed skip is a missing test.

Usage: skips.py LIST REPORT... with JUnit XML reports of pytest. Exit status 1 with a line for each
finding.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree


def read_list(text: str) -> set[str]:
    """Return the names in a list with one name per line. `#` begins a comment."""
    return {name for line in text.splitlines() if (name := line.partition("#")[0].strip())}


def read_report(text: str) -> dict[str, list[str]]:
    """Return the reasons of skips by the name of the test without its parameters."""
    tests: dict[str, list[str]] = {}
    root = ElementTree.fromstring(text)  # noqa: S314 - our own pytest wrote it
    for case in root.iter("testcase"):
        # A module that was skipped as a whole has a name and no class.
        name = f"{case.get('classname', '')}.{case.get('name', '')}".strip(".").partition("[")[0]
        reasons = tests.setdefault(name, [])
        reasons.extend(skip.get("message", "") for skip in case.iter("skipped"))
    return tests


def findings(allowed: set[str], tests: dict[str, list[str]]) -> Iterable[str]:
    """Yield a line for each skip that is not allowed, and for each listed name without a test."""
    for name, reasons in sorted(tests.items()):
        if reasons and name not in allowed:
            yield f"{name} was skipped: {reasons[0]}"
    for name in sorted(allowed - tests.keys()):
        yield f"{name} is on the list of allowed skips and is no test: remove it"


def main(list_file: str, *report_files: str) -> int:
    """Print the findings; return the exit status."""
    allowed = read_list(Path(list_file).read_text(encoding="utf-8"))
    tests: dict[str, list[str]] = {}
    for file in report_files:
        report = read_report(Path(file).read_text(encoding="utf-8"))
        # A stage whose tests were not collected must not pass for a stage without skips.
        if not report:
            sys.stderr.write(f"{file} has no test\n")
            return 1
        tests |= report

    lines = list(findings(allowed, tests))
    for line in lines:
        sys.stderr.write(f"{line}\n")

    skipped = sum(1 for reasons in tests.values() if reasons)
    sys.stdout.write(f"{len(tests)} tests, {skipped} of them skipped, {len(lines)} findings\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
