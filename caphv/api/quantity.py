"""Quantities as the parser of Kubernetes takes them (`k8s.io/apimachinery/pkg/api/resource`).

Its documented grammar lets an exponent be a fraction (`4e1.5`), its parser does not. As there, what is beyond an int64
counts as its largest value, and what is below a billionth as one.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

LARGEST = Decimal(2**63 - 1)

_SMALLEST = Decimal("1e-9")
_SUFFIXES = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6, "K": 1, "m": -1, "u": -2, "n": -3}
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
# Beyond these, converting costs time: no text or number of a size is as long.
_LONGEST, _LONGEST_INT = 4096, 64
_MOST_DIGITS = 4
_REMEMBERED = 128


def quantity(value: object) -> Decimal | None:
    """Return the number that a quantity stands for, None for what is none."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    if isinstance(value, int):
        return _capped(Decimal(max(-(10**_LONGEST_INT), min(value, 10**_LONGEST_INT))))
    return _parsed(value) if len(value) <= _LONGEST else None


# Several rules read each size, and machines have few different ones.
@lru_cache(maxsize=_REMEMBERED)
def _parsed(text: str) -> Decimal | None:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, suffix, exponent = Decimal(match["number"]), match["suffix"] or "", match["exponent"] or "0"
    if not number:
        return number
    if len(exponent.lstrip("+-0")) > _MOST_DIGITS:
        scale = Decimal("-9999") if exponent.startswith("-") else Decimal("9999")
    else:
        scale = Decimal(exponent)
    base = 1024 if suffix.endswith("i") else 1000
    factor = Decimal(base) ** _SUFFIXES[suffix.removesuffix("i")]
    return _capped(number * factor * Decimal(10) ** scale)


def _capped(number: Decimal) -> Decimal:
    if abs(number) > LARGEST:
        return LARGEST.copy_sign(number)
    return _SMALLEST.copy_sign(number) if number and abs(number) < _SMALLEST else number
