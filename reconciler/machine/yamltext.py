"""Format YAML for cloud-config, so that a reader of the Secret understands it."""

import json
import re
from collections.abc import Sequence
from typing import Any

from reconciler.machine.guest import CloudConfig

# Text that block scalars and Jinja keep unchanged. It consists of whole lines, and the first line
# is not indented.
_LITERAL = re.compile(r"(?!.*\{[{%#])[^\s][\t\n -~]*[^\n]\n", re.DOTALL)


def block(values: CloudConfig, indent: int) -> str:
    """Return keys and values in block style."""
    space = " " * indent
    text = ""
    for key, value in values.items():
        if isinstance(value, list) and value:
            text += f"{space}{key}:\n{list_items(value, indent)}"
        else:
            text += f"{space}{key}: {flow(value)}\n"
    return text


def list_items(items: Sequence[Any], indent: int) -> str:
    """Return items of a list in block style. Texts of several lines stay readable."""
    space = " " * indent
    parts = []
    for item in items:
        if not isinstance(item, str) or not _LITERAL.fullmatch(item):
            parts.append(f"{space}- {flow(item)}\n")
            continue
        parts.append(f"{space}- |\n")
        parts += [f"{space}  {line}\n" if line else "\n" for line in item.splitlines()]
    return "".join(parts)


def flow(value: Any) -> str:
    """Return a value in flow style, which is JSON."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{flow(name)}: {flow(item)}" for name, item in value.items())
        return "{" + pairs + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    # In a template, a brace of ours must not look like the start of an expression.
    return json.dumps(value, ensure_ascii=False).replace("{", "\\u007b")
