"""What commands print for programs: by discovery over all commands and the source of all of them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import yaml

from commands.main import cli
from commands.output.data import data_text, fields_of

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3] / "commands"
# Documents of a form that others define: JSON Schema, a List of Kubernetes, and SARIF.
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


@dataclass(frozen=True)
class Row:
    """Data of the model."""

    some_name: str = "x"


def test_a_document_has_its_items_in_one_field() -> None:
    assert json.loads(data_text("json", items=[Row()], of=Row())) == {
        "of": {"someName": "x"},
        "items": [{"someName": "x"}],
    }
    assert yaml.safe_load(data_text("yaml", items=())) == {"items": []}
    assert fields_of({"server": "x", "rows": [1]}, items="rows") == {"server": "x", "items": [1]}
    with pytest.raises(TypeError, match="items"):
        data_text("json", server="x")  # type: ignore[call-arg]


def test_all_documents_are_written_by_one_function() -> None:
    found = set()
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dumps", "orjson.dumps"):
                found.add(str(file.relative_to(ROOT)))
    assert found == OTHER_FORMS | {"output/data.py"}


def formats() -> dict[str, tuple[str, ...]]:
    """Return the formats of each command, the default first."""
    return {
        " ".join(path): (
            parameter.default,
            *(choice for choice in parameter.type.choices if choice != parameter.default),
        )
        for path, command in commands()
        for parameter in command.params
        if "--output" in parameter.opts and isinstance(parameter.type, click.Choice)
    }


def test_every_command_with_json_has_yaml_too() -> None:
    assert [path for path, found in formats().items() if ("json" in found) is not ("yaml" in found)] == []
