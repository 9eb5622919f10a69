"""Write output for programs: one JSON or YAML document, of the same form for all commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from caphv.api.object import Obj


def document(*, items: Iterable[Any], **fields: Any) -> Obj:
    """Return the document of a command.

    :param items: what the command lists, checks or changes: data of the model, or plain data
    :param fields: what describes all of it
    """
    from operations.status.model import as_json

    return {**as_json(fields), "items": as_json(tuple(items))}


def fields_of(value: Any, *, items: str) -> Obj:
    """Return the fields of a document: those of data of the model, one of which has the items."""
    from operations.status.model import as_json

    return {"items" if name == items else name: part for name, part in as_json(value).items()}


def data_text(output: str, /, *, items: Iterable[Any], **fields: Any) -> str:
    """Return a document in ASCII, in which control characters are escaped.

    :param output: `json` or `yaml`
    :param items: the items of the document
    :param fields: its other fields
    """
    import json

    import yaml

    content = document(items=items, **fields)
    if output == "json":
        return json.dumps(content, indent=2) + "\n"
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=False))


def print_data(output: str, /, *, items: Iterable[Any], **fields: Any) -> None:
    """Write a document to standard output; the parameters are those of `data_text`."""
    click.echo(data_text(output, items=items, **fields), nl=False)
