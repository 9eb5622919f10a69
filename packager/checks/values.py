"""Finds values that a chart does not know.

Charts use values that they do not document, and pass on whole objects. So the documented values
only tell which keys to try. A key is unknown if the chart renders the same without it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding

UNKNOWN = "chart-values"
Rendering = Callable[[Obj], Any]
"""Renders a chart with values; equal results are equal objects."""


def unknown_values(
    values: Mapping[str, Any], documented: Mapping[str, Any], render: Rendering, chart: object
) -> list[Finding]:
    """Return a finding for each key that the chart does not know.

    :param values: values for the chart; a finding has the path of its key in them
    :param documented: values in the chart's `values.yaml`
    :param render: renders the chart with values
    :param chart: name of the chart in findings
    """
    suspects = list(_undocumented_keys(values, documented, ()))
    if not suspects:
        return []

    # Fast path, because rendering takes long, and usually all suspects together have no effect.
    full = render(dict(values))
    if render(copy_without(values, suspects)) != full:
        suspects = [path for path in suspects if render(copy_without(values, [path])) == full]
    return [_finding(path, documented, chart) for path in suspects]


def copy_without(values: Mapping[str, Any], paths: Sequence[FieldPath]) -> Obj:
    """Return a copy of the values without the keys at these paths."""
    result = dict(values)
    for path in paths:
        key = str(path[0])
        subpath = path[1:]
        if not subpath:
            result.pop(key, None)
        elif isinstance(result.get(key), Mapping):
            result[key] = copy_without(result[key], [subpath])
    return result


def _undocumented_keys(
    values: Mapping[str, Any], documented: Mapping[str, Any], path: FieldPath
) -> Iterator[FieldPath]:
    for key, value in values.items():
        default = documented.get(key)
        if key not in documented:
            yield (*path, key)
        # Below an empty default a chart takes any keys, such as labels.
        elif isinstance(value, Mapping) and isinstance(default, Mapping) and default:
            yield from _undocumented_keys(value, default, (*path, key))


def _finding(path: FieldPath, documented: Mapping[str, Any], chart: object) -> Finding:
    siblings: Any = documented
    for key in path[:-1]:
        siblings = siblings.get(key)
    names = [str(key)[:64] for key in siblings]
    matches = difflib.get_close_matches(str(path[-1])[:64], names, 1)
    remedy = f"write {matches[0]}, or remove it" if matches else "remove it, or correct its name"
    return Finding(path, Fault.UNKNOWN, f"{chart} renders the same without it: {remedy}", UNKNOWN)
