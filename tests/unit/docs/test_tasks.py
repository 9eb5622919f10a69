"""The table of day-2 tasks names commands and tests that exist, and misses no command."""

import io
import re
from collections.abc import Container, Iterator
from pathlib import Path

import click
import pytest
import yaml
from rich.console import Console

from commands.main import cli
from commands.output import pools
from operations.capacity.addresspools import Entry, PoolReport, Verdict
from tests.support.clusters import NOW
from tests.support.paths import CHECKOUT
from tests.support.syntax import functions

pytestmark = pytest.mark.unit

PAGE = (CHECKOUT / "docs" / "tasks" / "README.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| Task |")]
TASKS = [line.split("|")[1].strip() for line in ROWS]
TESTS: dict[str, list[str]] = yaml.safe_load((Path(__file__).parent / "day-two.yaml").read_text(encoding="utf-8"))
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


def test_each_task_has_tests_of_its_own() -> None:
    assert len(TASKS) > 25
    assert sorted(TASKS) == sorted(TESTS)
    names = [name for tests in TESTS.values() for name in tests]
    assert len(set(names)) == len(names)
    assert all(TESTS.values())


@pytest.mark.parametrize("row", ROWS)
def test_a_task_has_a_page(row: str) -> None:
    assert ".md" in row.split("|")[3]


@pytest.mark.parametrize("name", [name for tests in TESTS.values() for name in tests])
def test_the_test_of_a_task_exists(name: str) -> None:
    path, _, function = name.partition("::")
    assert function in functions(path, nested=True)


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


def test_the_night_of_an_exhausted_pool_shows_what_the_audit_writes() -> None:
    page = (CHECKOUT / "docs" / "tasks" / "three-nights.md").read_text(encoding="utf-8")
    held = [
        Entry(pool="machines", address=f"172.16.4.{number}", id="team-a/held", verdict=Verdict.HELD)
        for number in range(49)
    ]
    detail = "its HarvesterMachine or load balancer no longer exists"
    leaked = Entry(
        pool="machines", address="172.16.3.41", id="team-a/production-md-0-9kd2c", verdict=Verdict.LEAKED, detail=detail
    )
    out = Console(file=io.StringIO(), width=1000)
    pools.show(
        out,
        [
            PoolReport(
                harvester="https://172.16.0.10:6443",
                name="machines",
                total=50,
                available=0,
                expected=0,
                entries=(*held, leaked),
            )
        ],
        only_wrong=True,
        now=NOW,
    )
    assert isinstance(out.file, io.StringIO)
    assert f"```\n{out.file.getvalue()}```" in page
