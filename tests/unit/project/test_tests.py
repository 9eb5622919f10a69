"""The tests keep their own rules: where they are, and what they may touch."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

TESTS = CHECKOUT / "tests"
MODULES = sorted(path for path in TESTS.rglob("*.py") if path.name != "__init__.py")
# Folders below tests/unit whose tests are about no package: about pages, the repository, and other folders of it.
NO_PACKAGES = {"docs", "project", "support", "deploy", "clusterclass"}
PACKAGES = ("commands", "reconciler", "webhooks", "packager", "sandbox", "operations", "tools")


@pytest.fixture(scope="module")
def trees() -> list[tuple[Path, ast.Module]]:
    return [(path.relative_to(TESTS), ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES]


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def private_attributes(tree: ast.Module) -> Iterator[str]:
    """Find attributes of others that begin with one underscore and stand in an assertion."""
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Assert):
            for node in ast.walk(statement):
                if not isinstance(node, ast.Attribute) or not re.match(r"_[a-z]", node.attr):
                    continue
                if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                    yield f"line {node.lineno}: {ast.unparse(node)}"


def test_what_several_tests_need_is_in_support(trees: list[tuple[Path, ast.Module]]) -> None:
    found = [
        f"{path} imports {module}"
        for path, tree in trees
        for module in imports(tree)
        if module.startswith("tests.") and not module.startswith(("tests.support", "tests.corpus"))
    ]
    assert found == []


def test_no_assertion_reads_private_state(trees: list[tuple[Path, ast.Module]]) -> None:
    assert [f"{path}, {found}" for path, tree in trees for found in private_attributes(tree)] == []


def test_there_is_one_way_to_wait(trees: list[tuple[Path, ast.Module]]) -> None:
    defined = [
        f"{path}: {node.name}"
        for path, tree in trees
        for node in tree.body
        if isinstance(node, ast.AsyncFunctionDef) and node.name.strip("_") in ("until", "wait_until", "eventually")
    ]
    assert defined == ["support/waiting.py: until"]


def test_coroutines_are_tests_and_not_wrapped(trees: list[tuple[Path, ast.Module]]) -> None:
    wrapped = [
        f"{path}: {function.name}"
        for path, tree in trees
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test_")
        for statement in function.body
        if isinstance(statement, ast.AsyncFunctionDef) and statement.name in ("scenario", "main", "live")
    ]
    assert wrapped == []


def test_unit_tests_mirror_the_packages() -> None:
    folders = {path.parent.relative_to(TESTS / "unit") for path in MODULES if path.is_relative_to(TESTS / "unit")}
    strange = []
    for folder in sorted(folders - {Path()}):
        top = folder.parts[0]
        # The packages below caphv/ have their folders at the top.
        package = CHECKOUT / folder if top in PACKAGES else CHECKOUT / "caphv" / folder
        if top not in NO_PACKAGES and not package.is_dir():
            strange.append(str(folder))
    assert strange == []


def lost_tasks(tree: ast.Module) -> Iterator[str]:
    """Find tasks of functions whose outcome no one reads: a failed assertion in them is no failure."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        read = {name for node in ast.walk(function) for name in _outcomes(node)}
        for node in ast.walk(function):
            if not isinstance(node, ast.Assign | ast.Expr) or not isinstance(node.value, ast.Call):
                continue
            if ast.unparse(node.value.func) in ("asyncio.create_task", "asyncio.ensure_future"):
                target = node.targets[0] if isinstance(node, ast.Assign) else ast.Name("_")
                if isinstance(target, ast.Name) and target.id not in read:
                    yield f"line {node.lineno}: {ast.unparse(node)}"


def _outcomes(node: ast.AST) -> Iterator[str]:
    """Find the names that a node awaits or returns, or whose outcome it reads."""
    if (isinstance(node, ast.Await | ast.Return) and node.value) or (
        isinstance(node, ast.Attribute) and node.attr in ("result", "exception", "cancelled")
    ):
        yield from (name.id for name in ast.walk(node.value) if isinstance(name, ast.Name))


def hidden_failures(tree: ast.Module) -> Iterator[str]:
    """Find `pytest.fail` in callbacks, which others than the test call: in a task of theirs it may end unseen."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(function):
                if inner is not function and isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                    yield from (f"line {inner.lineno}" for node in ast.walk(inner) if _is_call(node, "pytest.fail"))


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == name


def empty_comparisons(tree: ast.Module) -> Iterator[str]:
    """Find waits that end when two calls return the same, which both may do because neither found anything."""
    for node in ast.walk(tree):
        if isinstance(node, ast.While):
            condition: ast.expr | None = node.test
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "until" and node.args:
            condition = node.args[0].body if isinstance(node.args[0], ast.Lambda) else None
        else:
            continue
        for part in ast.walk(condition) if condition else ():
            match part:
                case ast.Compare(left=ast.Call(), ops=[ast.Eq() | ast.NotEq()], comparators=[ast.Call()]):
                    yield f"line {part.lineno}: {ast.unparse(part)}"


@pytest.mark.parametrize("search", [lost_tasks, hidden_failures, empty_comparisons])
def test_each_test_can_fail(
    search: Callable[[ast.Module], Iterator[str]], trees: list[tuple[Path, ast.Module]]
) -> None:
    assert [f"{path}, {place}" for path, tree in trees for place in search(tree)] == []


@pytest.mark.parametrize(
    ("search", "text"),
    [
        (lost_tasks, "async def test_x():\n task = asyncio.create_task(run())\n task.cancel()"),
        (lost_tasks, "async def test_x():\n asyncio.create_task(run())"),
        (hidden_failures, "def test_x():\n it.on_change = lambda: pytest.fail('changed')"),
        (hidden_failures, "def test_x():\n def changed():\n  pytest.fail('changed')\n it.on_change = changed"),
        (empty_comparisons, "def test_x():\n while skipped(folder) != manifests(folder):\n  pass"),
        (empty_comparisons, "async def test_x():\n await until(lambda: names(a) == names(b))"),
    ],
)
def test_the_check_finds_what_cannot_fail(search: Callable[[ast.Module], Iterator[str]], text: str) -> None:
    assert len(list(search(ast.parse(text)))) == 1


@pytest.mark.parametrize(
    ("search", "text"),
    [
        (lost_tasks, "async def test_x():\n task = asyncio.create_task(run())\n await ended(task)"),
        (lost_tasks, "async def test_x():\n task = asyncio.create_task(run())\n assert task.result() == 1"),
        (hidden_failures, "def test_x():\n pytest.fail('never')"),
        (empty_comparisons, "async def test_x():\n await until(lambda: names(a) == names(b) != set())"),
        (empty_comparisons, "async def test_x():\n await until(lambda: names(a) == ['x'])"),
    ],
)
def test_the_check_leaves_other_tests_alone(search: Callable[[ast.Module], Iterator[str]], text: str) -> None:
    assert list(search(ast.parse(text))) == []


@pytest.mark.parametrize("text", ["assert queue._keys == []", "assert len(it.server._tasks) < 3"])
def test_the_check_finds_private_state(text: str) -> None:
    assert len(list(private_attributes(ast.parse(text)))) == 1
