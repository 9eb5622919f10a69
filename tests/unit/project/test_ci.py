"""The checks of test reports find what they are there for."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import Producer

from tests.support import scheduling

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
    command = [sys.executable, checkout / "tools" / "ci" / "skips.py", "allowed", "report.xml"]
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


def conditional_tests(module: ast.Module) -> Iterator[str]:
    """The names of tests that are skipped on a condition, alone or with their module."""
    marks = [node.value for node in module.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        conditions = [mark for mark in (*marks, *function.decorator_list) if "skipif" in ast.unparse(mark)]
        if function.name.startswith("test_") and conditions:
            yield function.name


def test_every_test_that_a_machine_may_lack_something_for_is_listed(checkout: Path) -> None:
    """Otherwise CI fails only where that is missing, after all tests have run."""
    listed = (checkout / ".ci" / "allowed-skips").read_text(encoding="utf-8").split("\n")
    conditional = [
        ".".join((*file.relative_to(checkout).with_suffix("").parts, name))
        for part in ("unit", "integration", "e2e")
        for file in (checkout / "tests" / part).rglob("test_*.py")
        if "skipif" in (text := file.read_text(encoding="utf-8"))
        for name in conditional_tests(ast.parse(text))
    ]
    assert len(conditional) > 1
    assert [name for name in conditional if name not in listed] == []


def test_stages_are_named_and_timed_and_a_failure_hides_no_other(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("one:\n\t@echo done\ntwo:\n\t@false\nthree:\n\t@echo also\n")
    command = [sys.executable, checkout / "tools" / "ci" / "stages.py", "one", "two", "three"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "=== 1/3 one\ndone\n" in done.stdout
    assert "=== 3/3 three\nalso\n" in done.stdout
    assert "=== FAILED in two\none     0 min  0 s\n" in done.stdout


def test_slowest_groups_come_first() -> None:
    image, pod = "tests/e2e/test_image.py", "tests/e2e/test_pod.py"
    life, quick = "tests/e2e/test_migration.py", "tests/integration/runtime/test_client.py"
    nodeids = [f"{quick}::test_a", f"{quick}::test_b", f"{life}::test_c", f"{image}::test_d", f"{pod}::test_e"]
    assert scheduling.seconds_of_groups(nodeids) == {quick: 4.0, life: 30.0, "image": 60.0}
    assert sorted(nodeids, key=scheduling.slowest_first(nodeids)) == [*nodeids[3:], nodeids[2], *nodeids[:2]]


def test_workers_stay_in_a_folder() -> None:
    client, manager = (f"tests/integration/runtime/test_{name}.py" for name in ("client", "manager"))
    crds, life = "tests/integration/reconciler/test_crds.py", "tests/e2e/test_migration.py"
    waiting = {life: 146.0, client: 10.0, crds: 20.0, manager: 8.0}
    no_one = Counter[str]()
    assert scheduling.next_group(waiting, client, no_one, 2) == client
    assert scheduling.next_group({life: 146.0, manager: 8.0}, client, no_one, 2) == manager
    assert scheduling.next_group(waiting, None, no_one, 2) == life


def test_further_workers_come_to_the_folder_that_would_end_last() -> None:
    client, manager = (f"tests/integration/runtime/test_{name}.py" for name in ("client", "manager"))
    crds = "tests/integration/reconciler/test_crds.py"
    waiting = {crds: 100.0, client: 10.0, manager: 8.0}
    alone = Counter({"tests/integration/reconciler": 1})
    assert scheduling.next_group(waiting, None, alone, 2) == crds
    assert scheduling.next_group({**waiting, crds: 15.0}, None, alone, 2) == client
    assert scheduling.next_group({crds: 20.0}, None, Counter({"tests/integration/reconciler": 3}), 2) == crds


class Worker:
    """What a worker receives, as xdist's scheduler sees it."""

    shutting_down = False

    def __init__(self) -> None:
        self.received: list[int] = []

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.received += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_workers_learn_of_their_next_group_when_they_begin_their_last_test() -> None:
    config: Any = SimpleNamespace(getvalue=lambda _: ["popen"], option=SimpleNamespace(loadscopereorder=False))
    scheduler = scheduling.GroupScheduling(config, Producer("test", enabled=False))
    tests = [*(f"tests/e2e/test_a.py::test_{number}" for number in range(3)), "tests/e2e/test_b.py::test"]
    worker: Any = Worker()
    scheduler.add_node(worker)
    scheduler.add_node_collection(worker, tests)
    scheduler.schedule()
    assert worker.received == [0, 1, 2]
    scheduler.mark_test_complete(worker, 0)
    assert worker.received == [0, 1, 2]
    scheduler.mark_test_complete(worker, 1)
    assert worker.received == [0, 1, 2, 3]
    assert not worker.shutting_down
    scheduler.mark_test_complete(worker, 2)
    assert worker.shutting_down
