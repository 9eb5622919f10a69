"""The checks of test reports find what they are there for."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support import scheduling

pytestmark = pytest.mark.unit

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_runs"/>
<testcase classname="tests.unit.test_a" name="test_listed[x-y]"><skipped message="not here"/></testcase>
{more}
</testsuite></testsuites>"""
UNLISTED = '<testcase classname="tests.unit.test_b.TestB" name="test_other"><skipped message="too slow"/></testcase>'


SLOW = """<testsuites><testsuite>
<testcase classname="tests.e2e.test_a" name="test_quick" time="59.9"/>
<testcase classname="tests.e2e.test_a" name="test_life[k3s]" time="61"/>
<testcase classname="tests.e2e.test_a" name="test_life[rke2]" time="5"/>
</testsuite></testsuites>"""


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


def durations(checkout: Path, folder: Path, listed: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "report.xml").write_text(SLOW)
    (folder / "slow-tests").write_text(listed)
    command = [sys.executable, checkout / ".ci" / "slow.py", "slow-tests", "report.xml"]
    # The limit of the run that this test is part of is not the one that is tested.
    inherited = {name: value for name, value in os.environ.items() if name != "CAPHV_TEST_SLOW_SECONDS"}
    return subprocess.run(command, cwd=folder, env=inherited | environ, capture_output=True, text=True, check=False)


def test_a_test_above_a_minute_fails_unless_it_is_listed(checkout: Path, tmp_path: Path) -> None:
    done = durations(checkout, tmp_path, "")
    assert (done.returncode, done.stderr.partition(":")[0]) == (1, "tests.e2e.test_a.test_life took 61 s")
    assert durations(checkout, tmp_path, "# why\ntests.e2e.test_a.test_life 61\n").returncode == 0
    assert durations(checkout, tmp_path, "", CAPHV_TEST_SLOW_SECONDS="120").returncode == 0


def test_stale_name_on_the_list_of_slow_tests_fails(checkout: Path, tmp_path: Path) -> None:
    done = durations(checkout, tmp_path, "tests.e2e.test_a.test_life 61\ntests.e2e.test_a.test_gone 90\n")
    assert done.returncode == 1
    assert "tests.e2e.test_a.test_gone is on the list" in done.stderr


def test_stages_are_named_and_timed_and_the_first_failure_ends_them(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("one:\n\t@echo done\ntwo:\n\t@false\nthree:\n\t@echo never\n")
    command = [sys.executable, checkout / ".ci" / "stages.py", "one", "two", "three"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "=== 1/3 one\ndone\n" in done.stdout
    assert "=== FAILED in two\none     0 min  0 s\n" in done.stdout
    assert "never" not in done.stdout


def test_slow_tests_are_tests(checkout: Path) -> None:
    listed = scheduling.slow_tests()
    assert listed
    for name, seconds in listed.items():
        module, _, test = name.rpartition(".")
        text = (checkout / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert f"def {test}(" in text, f"{name} is no test: remove it from .ci/slow-tests"
        assert seconds > 0


def test_slowest_groups_come_first() -> None:
    life = "tests/e2e/test_migration.py::test_handed_over_and_back_without_a_restart"
    image, pod = "tests/e2e/test_image.py::test_data_is_with_it", "tests/e2e/test_pod.py::test_other"
    other = "tests/e2e/test_migration.py::test_other"
    quick = "tests/integration/runtime/test_client.py::test_life_of_an_object"
    nodeids = [quick, image, pod, other, life]
    assert sorted(nodeids, key=scheduling.slowest_first(nodeids)) == [other, life, image, pod, quick]
    assert scheduling.group_of(life) == scheduling.group_of(other)
    assert scheduling.group_of(image) == scheduling.group_of(pod)


def test_workers_stay_in_a_folder_of_integration_tests() -> None:
    client, manager = (f"tests/integration/runtime/test_{name}.py" for name in ("client", "manager"))
    crds, life = "tests/integration/reconciler/test_crds.py", "tests/e2e/test_migration.py"
    waiting = {life: 146.0, client: 10.0, crds: 20.0, manager: 8.0}
    no_one = Counter[str]()
    assert scheduling.next_group(waiting, client, no_one) == client
    assert scheduling.next_group({life: 146.0, manager: 8.0}, client, no_one) == manager
    assert scheduling.next_group(waiting, None, no_one) == life
    assert scheduling.next_group(waiting, life, Counter({life: 1})) == life
    del waiting[life]
    assert scheduling.next_group(waiting, life, no_one) == crds
    alone = Counter({"tests/integration/reconciler": 1})
    assert scheduling.next_group(waiting, life, alone) == client
    assert scheduling.next_group({crds: 20.0}, life, alone) == crds
    both = Counter({"tests/integration/reconciler": 1, "tests/integration/runtime": 2})
    assert scheduling.next_group(waiting, life, both) == crds


SOMETIMES = """
from pathlib import Path

import pytest


def test_steady():
    pass


@pytest.mark.parametrize("number", range({number}))
def test_unsteady(number):
    seen = Path(f"seen-{{number}}")
    before = seen.exists()
    seen.touch()
    assert {holds}
"""


def rerun(checkout: Path, folder: Path, *, number: int, holds: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_sometimes.py").write_text(SOMETIMES.format(number=number, holds=holds))
    command = [sys.executable, checkout / ".ci" / "rerun.py", "out/report.xml", "test_sometimes.py", "-n2"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_tests_that_pass_alone_are_flaky_and_named(checkout: Path, tmp_path: Path) -> None:
    done = rerun(checkout, tmp_path, number=2, holds="before")
    assert done.returncode == 0
    named = done.stdout.partition("FLAKY, fix them: ")[2].strip().split(", ")
    assert sorted(named) == ["test_sometimes.test_unsteady[0]", "test_sometimes.test_unsteady[1]"]
    assert "2 passed" in done.stdout
    assert "2 failed, 1 passed" in done.stdout


def test_a_test_that_fails_twice_fails_the_run(checkout: Path, tmp_path: Path) -> None:
    done = rerun(checkout, tmp_path, number=1, holds="False")
    assert (done.returncode, "running again" in done.stdout, "FLAKY" in done.stdout) == (1, True, False)


def test_many_failures_are_not_repeated(checkout: Path, tmp_path: Path) -> None:
    done = rerun(checkout, tmp_path, number=6, holds="before")
    assert (done.returncode, "running again" in done.stdout) == (1, False)
