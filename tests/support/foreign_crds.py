"""CRDs of others, and which fields of an object they do not know."""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj

TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "object": dict,
    "array": list,
}


def violations(value: Any, node: Obj, path: str = "") -> list[str]:
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return []
    kind = node.get("type")
    if kind and not isinstance(value, TYPES[kind]):
        return [f"{path}: {value!r} is no {kind}"]
    found = []
    if isinstance(value, dict):
        properties, additional = node.get("properties", {}), node.get("additionalProperties")
        found += [f"{path}.{key} is required" for key in node.get("required", []) if key not in value]
        for key, item in value.items():
            if path == "" and key in ("metadata", "apiVersion", "kind"):
                continue
            if key not in properties and not isinstance(additional, dict):
                found.append(f"{path}.{key} is unknown")
            else:
                found += violations(item, properties.get(key, additional), f"{path}.{key}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            found += violations(item, node["items"], f"{path}[{index}]")
    if "enum" in node and value not in node["enum"]:
        found.append(f"{path}: {value!r} is none of {node['enum']}")
    return found
