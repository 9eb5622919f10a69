"""The check of skipped tests in CI finds what it is there for."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_runs"/>
<testcase classname="tests.unit.test_a" name="test_listed[x-y]"><skipped message="not here"/></testcase>
{more}
</testsuite></testsuites>"""
UNLISTED = '<testcase classname="tests.unit.test_b.TestB" name="test_other"><skipped message="too slow"/></testcase>'


def check(checkout: Path, folder: Path, *, report: str, allowed: str) -> subprocess.CompletedProcess[str]:
    (folder / "report.xml").write_text(report)
    (folder / "allowed").write_text(allowed)
    command = [sys.executable, checkout / ".ci" / "skips.py", "allowed", "report.xml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_listed_skip_is_fine(checkout: Path, tmp_path: Path) -> None:
    done = check(checkout, tmp_path, report=REPORT.format(more=""), allowed="# why\ntests.unit.test_a.test_listed\n")
    assert (done.returncode, done.stdout) == (0, "2 tests, 1 of them skipped, 0 findings\n")


def test_unlisted_skip_fails_with_its_reason(checkout: Path, tmp_path: Path) -> None:
    report = REPORT.format(more=UNLISTED)
    done = check(checkout, tmp_path, report=report, allowed="tests.unit.test_a.test_listed")
    assert done.returncode == 1
    assert done.stderr == "tests.unit.test_b.TestB.test_other was skipped: too slow\n"


def test_stale_name_on_the_list_fails(checkout: Path, tmp_path: Path) -> None:
    allowed = "tests.unit.test_a.test_listed\ntests.unit.test_a.test_gone"
    done = check(checkout, tmp_path, report=REPORT.format(more=""), allowed=allowed)
    assert done.returncode == 1
    assert "tests.unit.test_a.test_gone is on the list" in done.stderr


def test_report_without_tests_fails(checkout: Path, tmp_path: Path) -> None:
    done = check(checkout, tmp_path, report="<testsuites/>", allowed="")
    assert (done.returncode, done.stderr) == (1, "report.xml has no test\n")
