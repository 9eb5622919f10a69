"""`caphv schema`: JSON Schemas for editors, without network access."""

import json
from typing import Any

import click

from caphv.api.object import Obj
from commands.main import CONTEXT_SETTINGS


@click.group(
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv schema print > .caphv-schema.json
  caphv schema path
""",
)
def schema() -> None:
    """Print JSON Schemas for editors.

    For completion, documentation and validation in an editor, write the schema to a file and start
    each manifest with the line `# yaml-language-server: $schema=.caphv-schema.json`. This needs no
    network access.
    """


@schema.command(epilog="\b\nExamples:\n  ls $(caphv schema path)")
def path() -> None:
    """Print the directory with one schema file per kind."""
    from caphv import data

    click.echo(data.folder("schemas"))


@schema.command(
    "print",
    epilog="""\b
Examples:
  caphv schema print > .caphv-schema.json
""",
)
def print_schema() -> None:
    """Print one self-contained schema for all kinds and versions.

    The schema selects by apiVersion and kind, rejects unknown fields and ignores other kinds, so
    that it suits files with several documents.
    """
    click.echo(json.dumps(combine_schemas(), indent=2))


def combine_schemas() -> Obj:
    """Return the schema in draft 7 of JSON Schema, which most editors support."""
    from caphv.api import crds

    choices = []
    for crd in crds.custom_resource_definitions():
        spec = crd["spec"]
        for version in spec["versions"]:
            selector = {
                "apiVersion": {"const": f"{spec['group']}/{version['name']}"},
                "kind": {"const": spec["names"]["kind"]},
            }
            choices.append(_choice(selector, version["schema"]["openAPIV3Schema"]))
    for schema in crds.kinds_of_files():
        selector = {key: schema["properties"][key] for key in ("apiVersion", "kind")}
        choices.append(_choice(selector, schema))
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "caphv",
        "allOf": choices,
    }


def _choice(selector: Obj, schema: Obj) -> Obj:
    return {
        "if": {"properties": selector, "required": ["apiVersion", "kind"]},
        "then": _close(schema),
    }


def _close(node: Any) -> Any:
    """Return the schema in a form that rejects unknown fields."""
    if isinstance(node, list):
        return [_close(item) for item in node]
    if not isinstance(node, dict):
        return node

    closed = {
        key: _close(value) for key, value in node.items() if not key.startswith("x-kubernetes-")
    }
    # `properties` may also be the name of a field that the schema describes.
    has_properties = node.get("type") == "object" and isinstance(closed.get("properties"), dict)
    if has_properties and "additionalProperties" not in node:
        closed["additionalProperties"] = False
    return closed
