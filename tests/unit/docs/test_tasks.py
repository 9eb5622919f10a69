"""The table of day-2 tasks names commands and tests that exist, and misses no command."""

import ast
import re
from collections.abc import Container, Iterator

import click
import pytest

from commands.main import cli
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
    called = {words.removeprefix("caphv ") for words in re.findall(r"`(caphv [a-z]+[a-z -]*)`", PAGE)}
    tasks = {" ".join(word for word in words.split() if not word.startswith("-")) for words in called}
    assert leaves(NOT_DAY_TWO) - tasks == set()
    assert tasks - leaves() == set()


def leaves(without: Container[str] = ()) -> set[str]:
    """Commands that have no commands below them."""

    def below(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
        if not isinstance(command, click.Group):
            yield " ".join(path)
            return
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and name not in without:
                yield from below(child, (*path, name))

    return set(below(cli, ()))
