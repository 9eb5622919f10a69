"""Commands that the program prints come from `caphv.api.remedies`, where tests find all of them to run them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from caphv.api.remedies import Remedy, all_commands
from commands.main import cli

pytestmark = pytest.mark.unit

FOLDERS = ("caphv", "operations", "reconciler", "commands", "webhooks", "packager")
# What the sandbox prints about itself, the name of the program, and pages that are generated.
ELSEWHERE = ("commands/sandbox/", "caphv/__main__.py", "caphv/api/remedies.py", "tools/generate/reference.py")
# Texts of the command line itself, which tests of their own run.
HELP = ("help", "short_help", "epilog")
# Commands that are only named, because their arguments are the reader's to know.
POINTERS = {
    "caphv bundles push",
    "caphv bundles trace",
    "caphv bundles upgrade",
    "caphv bundles vendor",
    "caphv doctor",
    "caphv etcd remove",
    "caphv generate",
    "caphv move",
    "caphv packager",
    "caphv packager run",
    "caphv packager sync",
    "caphv pools audit",
    "caphv run --with-packager",
    "caphv status",
    "caphv validate",
    "kubectl config use-context",
    "kubectl config view",
}
FIELD = "\0"


def names_of(group: click.Group, prefix: str) -> Iterator[str]:
    """Yield the names of all commands, the longer first."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from names_of(command, f"{prefix} {name}")
        yield f"{prefix} {name}"


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module with their lines, fields as `FIELD`; without docstrings and help texts."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(node.value)
        elif isinstance(node, ast.keyword) and node.arg in HELP:
            skipped.update(ast.walk(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else FIELD for part in node.values)
            yield node.lineno, "".join(map(str, parts))


@functools.cache
def pattern() -> re.Pattern[str]:
    known = "|".join(re.escape(name) for name in sorted(names_of(cli, "caphv"), key=len, reverse=True))
    argument = rf"(?: (?:-\S+|{FIELD}|\S*/\S+))?"
    return re.compile(rf"(?<![\w-])(?:kubectl [a-z]+(?: \S+)?|(?:{known})(?![\w:-]){argument})")


def commands_in(text: str) -> Iterator[str]:
    """Yield the commands of a text: a name alone, or with the beginning of its arguments."""
    if "kubectl" in text or "caphv" in text:
        yield from (found[0].strip("`.,;:)") for found in pattern().finditer(text))


def printed(checkout: Path) -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((checkout / folder).rglob("*.py")):
            name = path.relative_to(checkout).as_posix()
            if name.startswith(ELSEWHERE):
                continue
            for line, text in strings(ast.parse(path.read_text(encoding="utf-8"))):
                yield from ((f"{name}:{line}", command) for command in commands_in(text))


def test_each_command_that_is_printed_is_registered(checkout: Path) -> None:
    found = list(printed(checkout))
    assert [(place, command) for place, command in found if command not in POINTERS] == []
    assert POINTERS - {command for _, command in found} == set()


# Remedies that no test takes out of an output, and why.
NOT_RUN = {
    "START_SANDBOX": "starts programs; tests/e2e/test_sandbox_lifecycle.py restarts what is missing with it",
}


def test_each_remedy_is_run_by_a_test(checkout: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (checkout / "tests" / "integration").rglob("*.py")]
    run = {name for text in texts for name in re.findall(r"(?:follows|printed_in)\(remedies\.([A-Z_]+)", text)}
    registered = {name for name, command in all_commands().items() if isinstance(command, Remedy)}
    assert run <= registered
    assert registered - run == NOT_RUN.keys()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("delete it: kubectl delete machine \0 -n \0", ["kubectl delete machine"]),
        ("see caphv doctor \0", ["caphv doctor \0"]),
        ("see `caphv doctor`.", ["caphv doctor"]),
        ("run caphv pools release --yes", ["caphv pools release --yes"]),
        ("move them: caphv move team/shop", ["caphv move team/shop"]),
        ("caphv copies these folders", []),
        ("caphv bundles: pushed", []),
    ],
)
def test_prose_names_no_command(text: str, found: list[str]) -> None:
    assert list(commands_in(text)) == found


def test_registered_commands_are_commands() -> None:
    known = set(names_of(cli, "caphv"))
    for name, command in all_commands().items():
        for part in re.split(r" \| ", str(command)):
            words = part.split()
            assert words[0] == "kubectl" or {" ".join(words[:2]), " ".join(words[:3])} & known, name
