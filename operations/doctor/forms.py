"""Read values of a server that may have any type.

An object of Harvester may be of a kind whose schema allows everything, and a server that is none
may answer anything.
"""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj

_MAX_DIGITS = 9


def number_of(value: object) -> int | None:
    """Return a number, or that of a text of decimal digits; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    # Python also converts digits of other scripts, and takes long for long texts.
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value) if len(value) <= _MAX_DIGITS else None
    return None


def mappings_of(value: object) -> list[Obj]:
    """Return the mappings in a list; none of another value."""
    return [item for item in _items(value) if isinstance(item, dict)]


def texts_of(value: object) -> list[str]:
    """Return the texts in a list; none of another value."""
    return [item for item in _items(value) if isinstance(item, str)]


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
