"""`caphv schema`: the schemas for editors, which need files and no network."""

import json
from typing import Any

import click

from commands.main import CONTEXT_SETTINGS

Obj = dict[str, Any]


@click.group(
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv schema print > .caphv-schema.json
  caphv schema path
""",
)
def schema() -> None:
    """JSON Schemas of the kinds, for editors.

    Completion, explanations and errors while typing: print the schema into a file, and begin a manifest with the line
    `# yaml-language-server: $schema=.caphv-schema.json`. No network is needed.
    """


@schema.command(epilog="\b\nExamples:\n  ls $(caphv schema path)")
def path() -> None:
    """Print the folder with the schemas, a file a kind."""
    from caphv import data

    click.echo(data.folder("schemas"))


@schema.command(
    "print",
    epilog="""\b
Examples:
  caphv schema print > .caphv-schema.json        for files with any kinds
""",
)
def print_schema() -> None:
    """Print one schema for all kinds in all versions, complete in itself.

    It chooses by apiVersion and kind, knows no field but those that there are, and leaves other kinds alone, so that it
    fits files with several documents.
    """
    click.echo(json.dumps(combined(), indent=2))


def combined() -> Obj:
    """Return the schema that `caphv schema print` prints, in JSON Schema draft 7 as editors read it best."""
    from caphv.api import crds

    choices = []
    for crd in crds.custom_resource_definitions():
        spec = crd["spec"]
        for version in spec["versions"]:
            wanted = {
                "apiVersion": {"const": f"{spec['group']}/{version['name']}"},
                "kind": {"const": spec["names"]["kind"]},
            }
            choices.append(_choice(wanted, version["schema"]["openAPIV3Schema"]))
    for found in crds.kinds_of_files():
        wanted = {key: found["properties"][key] for key in ("apiVersion", "kind")}
        choices.append(_choice(wanted, found))
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "caphv", "allOf": choices}


def _choice(wanted: Obj, schema: Obj) -> Obj:
    return {"if": {"properties": wanted, "required": ["apiVersion", "kind"]}, "then": _closed(schema)}


def _closed(node: Any) -> Any:
    """The same schema without room for unknown fields."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {key: _closed(value) for key, value in node.items() if not key.startswith("x-kubernetes-")}
    described = closed.get("properties")
    if node.get("type") == "object" and isinstance(described, dict) and "additionalProperties" not in node:
        closed["additionalProperties"] = False
    return closed
