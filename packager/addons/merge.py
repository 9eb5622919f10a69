"""Merging of settings and chart values: field by field, later wins, and where each field came from is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caphv.api.object import Obj
from caphv.validation.finding import FieldPath

Origins = dict[FieldPath, FieldPath]
"""Path of a field in the settings → path in the object that it was read from."""


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Obj:
    """Return `base` with the fields of `over`: objects are merged, anything else is replaced as a whole."""
    result = dict(base)
    for key, value in over.items():
        before = result.get(key)
        result[key] = merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return result


def at(obj: Any, *path: str | int) -> Any:
    """Return what stands at a path, None where there is nothing, whatever the object holds on the way."""
    for key in path:
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def leaves(value: Any, path: FieldPath = ()) -> list[FieldPath]:
    """Paths of all fields that hold no object."""
    if isinstance(value, Mapping) and value:
        return [found for key, item in value.items() for found in leaves(item, (*path, key))]
    return [path]


def origin(origins: Mapping[FieldPath, FieldPath], path: FieldPath) -> FieldPath:
    """Where the field at `path` came from; for an object, where its first field did; the path itself if nowhere."""
    for length in range(len(path), 0, -1):
        known = origins.get(path[:length])
        if known is not None:
            return (*known, *path[length:])
    below = next((source for target, source in origins.items() if target[: len(path)] == path), None)
    return path if below is None else below
