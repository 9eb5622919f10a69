"""What commands print for programs: by discovery over all commands and the source of all of them."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import yaml

from commands.output.data import data_text, fields_of
from tests.support.commandlist import leaf_commands

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3] / "commands"
# Documents of a form that others define: JSON Schema, a List of Kubernetes, and SARIF.
OTHER_FORMS = {"schema.py", "generate_output.py", "output/validate.py"}

# Commands that print a file for another program, and the diff of Git.
OTHER_DEFAULTS = {
    "bundles diff": "diff",
    "bundles render": "yaml",
    "cloud-config create": "cloud-init",
    "cloud-config renew": "cloud-init",
    "generate": "yaml",
    "identity create": "secret",
}

WITHOUT_OUTPUT = {
    "completion": "prints a script for a shell",
    "packager gitrepo": "prints a manifest",
    "packager run": "runs until it is stopped, and has logs and metrics",
    "run": "runs until it is stopped, and has logs and metrics",
    "sandbox demo": "is a show for people",
    "sandbox down": "has no result but the exit status",
    "sandbox kubeconfig": "prints a kubeconfig, or its path",
    "sandbox logs": "prints logs as they are",
    "sandbox restart": "has no result but the exit status",
    "sandbox up": "reports its build; sandbox status has the result",
    "schema path": "prints one path",
    "schema print": "prints a JSON Schema",
    "webhook": "runs until it is stopped, and has logs and metrics",
}


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


def output_options() -> dict[str, click.Option]:
    return {
        path: parameter
        for path, command in leaf_commands()
        for parameter in command.params
        if isinstance(parameter, click.Option) and "--output" in parameter.opts
    }


def formats() -> dict[str, tuple[str, ...]]:
    return {path: tuple(option.type.choices) for path, option in output_options().items()}  # type: ignore[attr-defined]


def test_all_options_for_the_output_are_alike() -> None:
    alike = {(option.help, *option.opts, option.show_default) for option in output_options().values()}
    assert alike == {("Output format.", "-o", "--output", True)}
    assert [path for path, option in output_options().items() if option.default != formats()[path][0]] == []


def test_every_command_with_json_has_yaml_too() -> None:
    assert [path for path, names in formats().items() if ("json" in names) is not ("yaml" in names)] == []


def test_the_form_for_people_is_text() -> None:
    assert {path: names[0] for path, names in formats().items() if names[0] != "text"} == OTHER_DEFAULTS


def test_every_command_has_an_output_or_a_reason_to_have_none() -> None:
    silent = {path for path, _ in leaf_commands()} - set(output_options())
    faults = {path for path in silent if path.startswith("sandbox fault ")}
    assert silent - faults == set(WITHOUT_OUTPUT)
    assert "sandbox fault list" not in faults, "the others begin or end a fault"
