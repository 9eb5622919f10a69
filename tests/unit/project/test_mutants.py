"""What `make mutants` changes, and that its list of accepted changes is still true."""

from __future__ import annotations

import ast
import importlib
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def mutants() -> Any:
    return importlib.import_module("tools.ci.mutants")


def changes(mutants: Any, text: str) -> list[str]:
    """Return the changed last lines of a source."""
    source = text.encode()
    return [
        mutation.apply(source).decode().splitlines()[-1].strip() for mutation in mutants.mutations_of("a.py", source)
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a == b", ["return None", "return a != b"]),
        ("return (a) < (b)", ["return None", "return (a) <= (b)"]),
        ("return a if b else c", ["return None", "return a if True else c", "return a if False else c"]),
        ("return a or b", ["return None", "return (a)", "return (b)", "return a and b"]),
        ("x = not a", ["x = (a)"]),
        ("x = a + 1", ["x = a - 1", "x = a + 2"]),
        ("x.y = z", ["pass"]),
        ("raise E from None", ["pass"]),
        ("await f()", ["pass", "(f())"]),
        ("return [a for a in b if c]", ["return None", "return [a for a in b if True]"]),
        ("f(timeout=15)", ["pass"]),
        ("f(1, timeout=15)", ["pass", "f(2, timeout=15)"]),
        ("f(x=1, timeout=15)", ["pass", "f(x=2, timeout=15)", "f(x=1, timeout=16)"]),
        ("log.info(f(1))", []),
        ('echo(f"wrote {1 + 1}")', []),
        ("x: int | None = y", []),
        ("return None", []),
    ],
)
def test_each_place_is_changed_in_every_way(mutants: Any, line: str, expected: list[str]) -> None:
    assert sorted(changes(mutants, f"async def f() -> int | None:\n    {line}\n")) == sorted(expected)


def test_changes_know_their_function(mutants: Any) -> None:
    text = "class A:\n    x = 1\n    async def f(self):\n        def g():\n            return 2\n        return g\n"
    found = {(each.function, each.in_function, each.before) for each in mutants.mutations_of("a.py", text.encode())}
    assert found == {("A", False, "1"), ("A.f", True, "g"), ("A.f.g", True, "2")}


def test_changed_code_is_valid_and_other_code(mutants: Any) -> None:
    for path in random.Random(1).sample(sorted((CHECKOUT / "operations").rglob("*.py")), 8):
        source = path.read_bytes()
        found = mutants.mutations_of("a.py", source)
        before = ast.dump(ast.parse(source))
        for mutation in found[:: max(1, len(found) // 25)]:
            assert ast.dump(ast.parse(mutation.apply(source))) != before, mutation.name


def test_sample_has_equally_many_of_each_package(mutants: Any) -> None:
    found = list(mutants.read_mutations(["operations/change/plan", "reconciler/machine"]))
    sample = mutants.draw(found, ["operations/change/plan", "reconciler/machine"], 21, random.Random(1))
    assert all(mutation.path.startswith("operations/change/plan/") for mutation in sample[:10])
    assert all(mutation.path.startswith("reconciler/machine/") for mutation in sample[10:])


def test_accepted_changes_exist_and_have_a_reason(mutants: Any) -> None:
    accepted = mutants.read_accepted(mutants.ACCEPTED.read_text(encoding="utf-8"))
    assert mutants.stale_names(CHECKOUT, accepted) == []
    assert all(len(reason) > 15 for reason in accepted.values())


@pytest.mark.parametrize("line", ["a.py | f | 1 | 2", "a.py | f | 1 | 2 |  ", "a.py f 1 2 because"])
def test_line_without_a_reason_is_refused(mutants: Any, line: str) -> None:
    with pytest.raises(ValueError, match="path"):
        mutants.read_accepted(f"# comment\n\n{line}\n")


def test_change_that_the_code_no_longer_has_is_stale(mutants: Any, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    return 1\n")
    names = ["a.py | f | 1 | 2", "a.py | f | 1 | 3", "b.py | f | 1 | 2"]
    assert mutants.stale_names(tmp_path, names) == names[1:]


def test_tests_of_a_change_are_those_that_call_its_function(mutants: Any) -> None:
    source = b"X = 1\ndef f():\n    return 2\n"
    outside, *inside = mutants.mutations_of("operations/a.py", source)
    near, far = "tests/unit/operations/test_a.py::test_f", "tests/unit/commands/test_b.py::test_g"
    calls = {"operations/a.py:f": [far, near], "operations/a.py:g": [far], "operations/b.py:f": ["other"]}
    assert mutants.tests_of(inside[0], calls) == [near, far]
    assert mutants.tests_of(outside, calls) == [near, far]
    assert mutants.tests_of(inside[0], {}) == []
    # What makes the decorators of options runs before any test.
    assert mutants.tests_of(inside[0], {"operations/a.py:g": [far], "operations/b.py:f": ["other"]}) == [far]


@pytest.mark.parametrize(
    ("assertion", "outcome"), [("value() == 1", "killed by unit tests"), ("value() < 3", "SURVIVED")]
)
def test_change_is_tried_and_taken_back(mutants: Any, tmp_path: Path, assertion: str, outcome: str) -> None:
    source = "def value():\n    return 1\n"
    (tmp_path / "a.py").write_text(source)
    (tmp_path / "test_a.py").write_text(f"from a import value\n\n\ndef test_value():\n    assert {assertion}\n")
    (mutation,) = [each for each in mutants.mutations_of("a.py", source.encode()) if each.after == "2"]
    assert mutants.try_mutation(tmp_path, mutation, ["test_a.py::test_value"], []) == outcome
    assert (tmp_path / "a.py").read_text() == source


def test_recorder_notes_calls_of_each_test(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("def f():\n    return [g for g in (1,)]\n\n\ndef h():\n    pass\n")
    (tmp_path / "test_a.py").write_text(
        "from code_ import a\n".replace("code_", "code") + "\n\ndef test_f():\n    a.f()\n"
    )
    (tmp_path / "code" / "__init__.py").touch()
    variables = {"PYTHONPATH": f"{tmp_path}:{CHECKOUT}/tools/ci", "PATH": "/usr/bin:/bin"}
    variables |= {"CAPHV_RECORDED_FOLDERS": "code", "CAPHV_RECORDS": str(tmp_path / "records")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "callrecorder", "-p", "no:cacheprovider", "test_a.py"]
    subprocess.run(command, cwd=tmp_path, env=variables, check=True, capture_output=True)
    (record,) = (tmp_path / "records").iterdir()
    assert '"code/a.py:f": ["test_a.py::test_f"]' in record.read_text()
    assert ":h" not in record.read_text()
