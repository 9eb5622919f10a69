"""What an object holds, without its names: for tests of memory that does not grow, and of what is forgotten."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

_SEQUENCES = (list, set, frozenset, tuple, deque)


def held(thing: Any) -> Iterator[Any]:
    """Yield all values that are reachable from an object through attributes and containers, each once."""
    seen, todo = set[int](), [thing]
    while todo:
        found = todo.pop()
        if id(found) in seen or isinstance(found, type) or callable(found):
            continue
        seen.add(id(found))
        yield found
        if isinstance(found, dict):
            todo += [*found.keys(), *found.values()]
        elif isinstance(found, _SEQUENCES):
            todo += found
        elif not isinstance(found, (str, bytes, int, float, complex)):
            todo += list(getattr(found, "__dict__", {}).values())
            todo += [getattr(found, name) for name in getattr(found, "__slots__", ()) if hasattr(found, name)]


def size(thing: Any) -> int:
    """Count the values that an object holds."""
    return sum(1 for _ in held(thing))
