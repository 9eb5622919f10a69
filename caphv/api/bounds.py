"""Upper bounds of every list, map and text of our kinds, for fields that have no bound of their own.

They are far above what any machine needs, so that no stored object meets them, and so low that no object keeps an API
server, the webhook or the provider busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from caphv.api.object import Obj

MOST_ITEMS = 256
LONGEST_TEXT = 4096
LONGEST_FREE_TEXT = 256 * 1024
FREE_TEXTS = frozenset({"userData", "annotations"})
"""Fields whose texts are files, or belong to other clients."""
MOST_VALUES = 6_000
"""Of a whole spec."""

Path = tuple[str | int, ...]


def with_bounds(schema: Obj, name: str = "") -> Obj:
    """Return a structural schema in which every list, map and text has an upper bound."""
    found = dict(schema)
    if found.get("type") == "array":
        found.setdefault("maxItems", MOST_ITEMS)
    if found.get("type") == "object" and "properties" not in found:
        found.setdefault("maxProperties", MOST_ITEMS)
    if (found.get("type") == "string" or "x-kubernetes-int-or-string" in found) and "enum" not in found:
        found.setdefault("maxLength", LONGEST_FREE_TEXT if name in FREE_TEXTS else LONGEST_TEXT)
    if "properties" in found:
        found["properties"] = {key: with_bounds(child, key) for key, child in found["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), dict):
            found[key] = with_bounds(found[key], name)
    return found


def beyond(value: Any, path: Path) -> Iterator[tuple[Path, str, Any]]:
    """Yield each place of a value that is beyond these bounds: its path, `items` or `characters`, and the bound.

    At most one for a whole that has too many values, which is not checked further.
    """
    waiting: list[tuple[Any, Path, str]] = [(value, path, "")]
    seen = 0
    while waiting:
        one, place, name = waiting.pop()
        if isinstance(one, str):
            longest = LONGEST_FREE_TEXT if name in FREE_TEXTS else LONGEST_TEXT
            if len(one) > longest:
                yield place, "characters", longest
            continue
        if not isinstance(one, dict | list):
            continue
        seen += len(one)
        if len(one) > MOST_ITEMS:
            yield place, "items", MOST_ITEMS
        elif seen > MOST_VALUES:
            yield path, "values", MOST_VALUES
            return
        elif isinstance(one, dict):
            waiting += [(item, (*place, key), name if name in FREE_TEXTS else key) for key, item in one.items()]
        else:
            waiting += [(item, (*place, index), name) for index, item in enumerate(one)]
