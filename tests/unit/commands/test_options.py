"""Options of all commands: what they take without a value, between which limits, and whether help says so."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.support.commandlist import leaf_commands

pytestmark = pytest.mark.unit

FLAGS = {
    "--all-namespaces",
    "--allow-insecure-identities",
    "--create-branch",
    "--dry-run",
    "--force",
    "--overwrite",
    "--partial",
    "--prune",
    "--wait",
    "--yes",
}
# The least and the greatest value, and what holds without the option.
NUMBERS = {
    "--boot-seconds": (0.0, None, 2.0),
    "--boot-spread": (0.0, 1.0, 0.25),
    "--concurrency": (1, 1000, 32),
    "--debounce": (0.0, 600.0, 1.0),
    "--expires-in": (1, 3650, None),
    "--git-max-size": (1, None, 512),
    "--git-timeout": (1.0, 3600.0, 60.0),
    "--groups": (1, None, None),
    "--harvester-cache-size": (24, 1024, 32),
    "--max-prune": (0, None, 10),
    "--share": (0.01, 1.0, 1.0),
}
EXISTING_FOLDERS = {"--charts", "--definitions", "--git-credentials", "--source-credentials", "--templates"}
EXISTING_FILES = {"--helm", "--workload-kubeconfig"}
NEW_FOLDERS = {"--folder", "--to"}
NEW_FILES = {"--passphrase-file"}


def options(*names: str) -> Iterator[tuple[str, click.Option, click.Context]]:
    """Yield the options of all commands, or those of some names, with the command's words."""
    for words, command in leaf_commands():
        context = command.make_context(words, [], resilient_parsing=True)
        for option in command.params:
            if isinstance(option, click.Option) and (not names or {*option.opts} & {*names}):
                yield words, option, context


def is_taken(option: click.Option, context: click.Context, value: Any) -> bool:
    try:
        option.type_cast_value(context, str(value))
    except click.BadParameter:
        return False
    return True


def test_help_shows_each_default_but_an_empty_one() -> None:
    for words, option, context in options():
        if (record := option.get_help_record(context)) is None:
            continue
        place = f"caphv {words} {option.opts[0]}: {record[1]}"
        assert '[default: ""]' not in record[1], place
        if context.params.get(option.name or "") not in ("", None) and not (option.is_flag or option.multiple):
            assert "default" in record[1].lower(), place


def test_help_names_the_form_of_each_value() -> None:
    """A type of click, such as TEXT, teaches less than NAMESPACE, FILE or SECONDS."""
    for words, option, context in options():
        if (record := option.get_help_record(context)) is None or option.opts == ["--message"]:
            continue
        place = f"caphv {words} {record[0]}"
        assert not {"TEXT", "INTEGER", "FLOAT"} & set(record[0].split()), place
        assert "default: " not in record[1].lower().partition("[default: ")[0], place


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_a_flag_takes_no_value(name: str) -> None:
    found = [option for _, option, _ in options(name)]
    assert found
    assert all(option.is_flag and not option.multiple for option in found)


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_a_number_has_limits_and_a_default(name: str) -> None:
    least, most, default = NUMBERS[name]
    found = list(options(name))
    assert found
    for _, option, context in found:
        assert context.params[option.name or ""] == default
        assert is_taken(option, context, least)
        assert not is_taken(option, context, least - 1)
        assert is_taken(option, context, most or 10**6)
        assert most is None or not is_taken(option, context, most + 1)


@pytest.mark.parametrize("name", sorted(EXISTING_FOLDERS | EXISTING_FILES | NEW_FOLDERS | NEW_FILES))
def test_a_path_of_the_wrong_sort_is_wrong_usage(name: str, tmp_path: Path) -> None:
    file, missing = tmp_path / "file", tmp_path / "missing"
    file.touch()
    found = list(options(name))
    assert found
    for _, option, context in found:
        assert is_taken(option, context, tmp_path) is (name in EXISTING_FOLDERS | NEW_FOLDERS)
        assert is_taken(option, context, file) is (name in EXISTING_FILES | NEW_FILES)
        assert is_taken(option, context, missing) is (name in NEW_FOLDERS | NEW_FILES)


@pytest.mark.parametrize(("words", "command"), list(leaf_commands()), ids=lambda value: str(value)[:60])
def test_a_command_takes_what_its_options_give(words: str, command: click.Command) -> None:
    names = {param.name for param in command.params if param.expose_value}
    callback = command.callback
    assert callback is not None
    groups = getattr(callback, "option_groups", {})
    fields = {field.name: field for group in groups.values() for field in dataclasses.fields(group)}
    needed = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
    assert needed <= names, words
    if groups:
        taken = set(inspect.signature(callback).parameters) - set(groups)
        assert taken == names - set(fields), words
