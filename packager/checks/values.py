"""Values that a chart does not know: neither in its `values.yaml`, nor with an effect on what it renders.

Charts use values that they do not document, and hand whole objects on. So the documented values only say which keys to
try: a key is unknown if the chart renders the same without it.
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
    """Return a finding for each key that the chart does not know, paths as in `values`."""
    suspects = list(_undocumented(values, documented, ()))
    if not suspects:
        return []
    full = render(dict(values))
    if render(without(values, suspects)) != full:
        suspects = [path for path in suspects if render(without(values, [path])) == full]
    return [_finding(path, documented, chart) for path in suspects]


def without(values: Mapping[str, Any], paths: Sequence[FieldPath]) -> Obj:
    """Return values without some keys."""
    result = dict(values)
    for path in paths:
        key, rest = str(path[0]), path[1:]
        if not rest:
            result.pop(key, None)
        elif isinstance(result.get(key), Mapping):
            result[key] = without(result[key], [rest])
    return result


def _undocumented(values: Mapping[str, Any], documented: Mapping[str, Any], path: FieldPath) -> Iterator[FieldPath]:
    for key, value in values.items():
        known = documented.get(key)
        if key not in documented:
            yield (*path, key)
        elif isinstance(value, Mapping) and isinstance(known, Mapping) and known:
            yield from _undocumented(value, known, (*path, key))


def _finding(path: FieldPath, documented: Mapping[str, Any], chart: object) -> Finding:
    there: Any = documented
    for key in path[:-1]:
        there = there.get(key)
    close = difflib.get_close_matches(str(path[-1])[:64], [str(key)[:64] for key in there], 1)
    remedy = f"write {close[0]}, or remove it" if close else "remove it, or correct its name"
    return Finding(path, Fault.UNKNOWN, f"{chart} renders the same without it: {remedy}", UNKNOWN)
