"""What commands print for programs: one JSON or YAML document, always an object; a list is its field `items`."""

from __future__ import annotations

from typing import Any


def data_text(value: Any, output: str) -> str:
    """Return data as a document, in ASCII: whatever a terminal could obey is an escape of the format.

    :param value: of the model, or plain data
    :param output: `json` or `yaml`
    """
    import json

    import yaml

    from overview.model import as_json

    content = as_json(value)
    if isinstance(content, list):
        content = {"items": content}
    if output == "json":
        return json.dumps(content, indent=2) + "\n"
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=False))
