"""The tests keep their own rules: where they are, and what they may touch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

TESTS = CHECKOUT / "tests"
MODULES = sorted(path for path in TESTS.rglob("*.py") if path.name != "__init__.py")
# Folders below tests/unit whose tests are about no package: about pages, the repository, and other folders of it.
NO_PACKAGES = {"docs", "project", "support", "deploy", "clusterclass"}
PACKAGES = ("commands", "reconciler", "webhooks", "packager", "sandbox", "overview", "bench", "release")


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


@pytest.mark.parametrize("text", ["assert queue._keys == []", "assert len(it.server._tasks) < 3"])
def test_the_check_finds_private_state(text: str) -> None:
    assert len(list(private_attributes(ast.parse(text)))) == 1
