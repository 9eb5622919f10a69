"""Objects that a user has edited by hand: any field may hold anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SHAPES = (7, "text", ["a"], {"a": ["b"]}, [["a"]])


def edited(value: Any) -> Iterator[Any]:
    """Yield the value with each of its fields in turn left out, or replaced by something else."""
    yield from SHAPES
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {other: field for other, field in value.items() if other != key}
            yield from ({**value, key: field} for field in edited(inner))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from ([*value[:index], item, *value[index + 1 :]] for item in edited(inner))


def edited_objects(obj: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the results of `edited` that are still objects."""
    return (changed for changed in edited(obj) if isinstance(changed, dict))
