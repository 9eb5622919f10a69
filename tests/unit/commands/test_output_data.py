"""What commands print for programs: by discovery over all commands and the source of all of them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from commands.main import cli
from commands.output.data import data_text

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3] / "commands"
# Documents of a form that others define: JSON Schema, a List of Kubernetes, SARIF and findings.
OTHER_FORMS = {"schema.py", "generate_output.py", "output/validate.py"}


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_a_document_is_always_an_object() -> None:
    assert json.loads(data_text([{"a": 1}], "json")) == {"items": [{"a": 1}]}
    assert yaml.safe_load(data_text((), "yaml")) == {"items": []}
    assert json.loads(data_text({"a": 1}, "json")) == {"a": 1}


def test_all_documents_are_written_by_one_function() -> None:
    found = set()
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dumps", "orjson.dumps"):
                found.add(str(file.relative_to(ROOT)))
    assert found == OTHER_FORMS | {"output/data.py"}


def test_every_command_with_json_has_yaml_too() -> None:
    lacking = []
    for path, command in commands():
        for parameter in command.params:
            choices = list(getattr(parameter.type, "choices", ()))
            if "-o" in parameter.opts and "json" in choices and "yaml" not in choices:
                lacking.append(" ".join(path))
    assert lacking == ["validate"], "whose formats are those of code scanners"
