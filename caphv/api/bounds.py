"""Bound every list, map and text of our kinds whose field has no bound of its own.

The bounds are far above what any machine needs, so that no stored object meets them, and so low
that no object keeps an API server, the webhook or the provider busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from caphv.api.object import Obj

MOST_ITEMS = 256
LONGEST_TEXT = 4096
LONGEST_FREE_TEXT = 256 * 1024
FREE_TEXTS = frozenset({"userData", "annotations"})
"""Fields whose texts are files or belong to other clients."""
MOST_VALUES = 6_000
"""Most values of a whole spec."""

Path = tuple[str | int, ...]


def with_bounds(schema: Obj, name: str = "") -> Obj:
    """Return a structural schema in which every list, map and text has an upper bound."""
    bounded = dict(schema)
    kind = bounded.get("type")
    if kind == "array":
        bounded.setdefault("maxItems", MOST_ITEMS)
    if kind == "object" and "properties" not in bounded:
        bounded.setdefault("maxProperties", MOST_ITEMS)
    is_text = kind == "string" or "x-kubernetes-int-or-string" in bounded
    if is_text and "enum" not in bounded:
        bounded.setdefault("maxLength", LONGEST_FREE_TEXT if name in FREE_TEXTS else LONGEST_TEXT)

    if "properties" in bounded:
        bounded["properties"] = {
            key: with_bounds(child, key) for key, child in bounded["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if isinstance(bounded.get(key), dict):
            bounded[key] = with_bounds(bounded[key], name)
    return bounded


class Excess(NamedTuple):
    """A place in a value, and the bound that it exceeds, in `items`, `characters` or `values`."""

    path: Path
    unit: str
    bound: int


def beyond(value: Any, path: Path) -> Iterator[Excess]:
    """Yield each place in a value that exceeds these bounds.

    Stops when the whole value has too many values.
    """
    waiting: list[tuple[Any, Path, str]] = [(value, path, "")]
    count = 0
    while waiting:
        node, place, name = waiting.pop()
        if isinstance(node, str):
            longest = LONGEST_FREE_TEXT if name in FREE_TEXTS else LONGEST_TEXT
            if len(node) > longest:
                yield Excess(place, "characters", longest)
            continue
        if not isinstance(node, dict | list):
            continue

        count += len(node)
        if len(node) > MOST_ITEMS:
            yield Excess(place, "items", MOST_ITEMS)
        elif count > MOST_VALUES:
            yield Excess(path, "values", MOST_VALUES)
            return
        elif isinstance(node, dict):
            waiting += [
                (item, (*place, key), name if name in FREE_TEXTS else key)
                for key, item in node.items()
            ]
        else:
            waiting += [(item, (*place, index), name) for index, item in enumerate(node)]
