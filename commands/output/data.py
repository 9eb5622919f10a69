"""Format output for programs as one JSON or YAML object; a list becomes its field `items`."""

from __future__ import annotations

from typing import Any

import click


def data_text(value: Any, output: str) -> str:
    """Return data as a document in ASCII, in which control characters are escaped.

    :param value: data of the model, or plain data
    :param output: `json` or `yaml`
    """
    import json

    import yaml

    from operations.status.model import as_json

    content = as_json(value)
    if isinstance(content, list):
        content = {"items": content}
    if output == "json":
        return json.dumps(content, indent=2) + "\n"
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=False))


def print_data(value: Any, output: str) -> None:
    """Write data of the model as a JSON or YAML document."""
    click.echo(data_text(value, output), nl=False)
