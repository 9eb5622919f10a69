"""The table of day-2 tasks names commands and tests that exist, and misses no command."""

import ast
import re

import pytest

from commands.main import COMMANDS
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

PAGE = (CHECKOUT / "docs" / "tasks" / "README.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| ")][1:]
TESTS = [row[2].strip("`") for row in ROWS]
# Processes and tools for files, which have pages of their own.
NOT_DAY_TWO = {
    "run",
    "webhook",
    "packager",
    "validate",
    "generate",
    "plan",
    "bundles",
    "schema",
    "sandbox",
    "completion",
}


def test_the_table_is_found() -> None:
    assert len(ROWS) > 25
    assert len(set(TESTS)) == len(TESTS)


@pytest.mark.parametrize("name", TESTS)
def test_the_test_of_a_task_exists(name: str) -> None:
    path, _, function = name.partition("::")
    tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert function in names


def test_every_command_of_an_operator_has_a_task() -> None:
    called = {words.split()[1] for words in re.findall(r"`(caphv [a-z -]+)`", PAGE)}
    assert COMMANDS.keys() - NOT_DAY_TWO - called == set()
