"""Merges settings and chart values field by field, and finds the origin of a field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caphv.api.object import Obj
from caphv.validation.finding import FieldPath

Origins = dict[FieldPath, FieldPath]
"""Path of a field in the settings → path of its source field in an object."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Obj:
    """Return `base` with the fields of `over`. Objects are merged, other values are replaced."""
    result = dict(base)
    for key, value in over.items():
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[key] = merge(before, value)
        else:
            result[key] = value
    return result


def leaves(value: Any, path: FieldPath = ()) -> list[FieldPath]:
    """Return the paths of all fields that hold no object."""
    if isinstance(value, Mapping) and value:
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    return [path]


def origin(origins: Mapping[FieldPath, FieldPath], path: FieldPath) -> FieldPath:
    """Return the origin of a field, or the origin of the first field of an object.

    Returns `path` if there is no origin.
    """
    for length in range(len(path), 0, -1):
        source = origins.get(path[:length])
        if source is not None:
            return (*source, *path[length:])

    # An object has no origin, so a finding about it is shown at the place of its first field.
    for target, source in origins.items():
        if target[: len(path)] == path:
            return source
    return path


def nest(path: FieldPath, value: Any) -> Obj:
    """Return nested mappings with a value at a path."""
    nested = value
    for key in reversed(path):
        nested = {key: nested}
    return dict(nested)
