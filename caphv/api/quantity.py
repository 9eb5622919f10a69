"""Parse quantities as the parser of Kubernetes does (`k8s.io/apimachinery/pkg/api/resource`).

The documented grammar allows a fraction as exponent (`4e1.5`), but the parser does not. As in
Kubernetes, a number beyond an int64 counts as the largest int64, and a number below a billionth as
a billionth.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

LARGEST = Decimal(2**63 - 1)

_SMALLEST = Decimal("1e-9")
_SUFFIXES = {
    "": 0,
    "k": 1,
    "M": 2,
    "G": 3,
    "T": 4,
    "P": 5,
    "E": 6,
    "K": 1,
    "m": -1,
    "u": -2,
    "n": -3,
}
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
# No size is as long as these, and converting longer ones would cost time.
_LONGEST = 4096
_LONGEST_INT = 64
_MOST_DIGITS = 4
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_REMEMBERED = 128


def quantity(value: object) -> Decimal | None:
    """Return the number that a quantity represents, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    if isinstance(value, int):
        return _cap(Decimal(max(-(10**_LONGEST_INT), min(value, 10**_LONGEST_INT))))
    return _parse(value) if len(value) <= _LONGEST else None


# Results are cached, because several rules read each size, and machines have few different sizes.
@lru_cache(maxsize=_REMEMBERED)
def _parse(text: str) -> Decimal | None:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number = Decimal(match["number"])
    if not number:
        return number

    suffix = match["suffix"] or ""
    exponent = match["exponent"] or "0"
    if len(exponent.lstrip("+-0")) > _MOST_DIGITS:
        scale = Decimal("-9999") if exponent.startswith("-") else Decimal("9999")
    else:
        scale = Decimal(exponent)
    base = 1024 if suffix.endswith("i") else 1000
    factor = Decimal(base) ** _SUFFIXES[suffix.removesuffix("i")]
    return _cap(number * factor * Decimal(10) ** scale)


def readable(amount: float | Decimal, unit: str = "") -> str:
    """Format a number for people, with one decimal; bytes (`B`) get a binary unit."""
    if unit != "B":
        return f"{amount:.1f}".removesuffix(".0")
    size = float(amount)
    index = 0
    while abs(size) >= 1024 and index < len(_BYTES) - 1:
        size = size / 1024
        index += 1
    return f"{size:.1f} {_BYTES[index]}".replace(".0 ", " ")


def in_gibibytes(amount: float) -> str:
    """Format bytes as a quantity such as `1.5Gi`, as specs have it."""
    return f"{amount / 1024**3:.1f}".removesuffix(".0") + "Gi"


def _cap(number: Decimal) -> Decimal:
    if abs(number) > LARGEST:
        return LARGEST.copy_sign(number)
    return _SMALLEST.copy_sign(number) if number and abs(number) < _SMALLEST else number
