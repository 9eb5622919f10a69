"""Resolve plain scalars as kubectl does, which reads YAML 1.1 in Go's way, and not in PyYAML's.

PyYAML would read `12:30:17` as the number 45017, and `2026-11-21` as a date. kubectl reads both as
text.
"""

import re
from typing import Any

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN_WORDS = {"y": True, "yes": True, "true": True, "on": True}
_BOOLEAN_WORDS |= {"n": False, "no": False, "false": False, "off": False}
_BOOLEANS = {
    text: value
    for word, value in _BOOLEAN_WORDS.items()
    for text in (word, word.capitalize(), word.upper())
}
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)"
    r"(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<bin>[01]+)"
    r"|0[oO]?(?P<oct>[0-7]+)|(?P<dec>0|[1-9][0-9]*))"
)
_BASES = {"hex": 16, "bin": 2, "oct": 8, "dec": 10}
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_IN_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_OCTAL = re.compile(r"[-+]?0(?=[0_]*[1-7])[0-7_]+")
_FIRST_OF_NUMBERS = frozenset("+-.0123456789")


def resolve(text: str) -> Any:
    """Return the value of a plain scalar: None, bool, int, float or the text itself.

    Whole numbers become integers in any notation, as after a conversion to JSON.

    Raises `ValueError` if JSON has no such number (`.inf`, `.nan`, or too large).
    """
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text in _NULL:
        return None
    return _number(text) if text[0] in _FIRST_OF_NUMBERS else text


def looks_octal(text: str) -> bool:
    """Return whether a leading zero makes a plain scalar an octal number."""
    return len(text.lstrip("+-0")) > 1 and bool(_OCTAL.fullmatch(text))


def _number(text: str) -> Any:
    """Parse a text as a number, or return the text if it is none. Raises `ValueError`."""
    if _NOT_IN_JSON.fullmatch(text):
        msg = f"{text} is not a number that JSON can hold"
        raise ValueError(msg)
    plain = text.replace("_", "")
    if len(plain) > _MAX_NUMBER_LENGTH:
        return text

    if match := _INTEGER.fullmatch(plain):
        form = next(name for name in _BASES if match[name])
        value = int(match[form], _BASES[form]) * (-1 if match["sign"] == "-" else 1)
        if -(2**63) <= value < 2**64:
            return value

    if not _FLOAT.fullmatch(plain):
        return text
    number = float(plain)
    if number in (float("inf"), float("-inf")):
        msg = f"{text} is not a number that JSON can hold"
        raise ValueError(msg)
    return int(number) if number.is_integer() and abs(number) < _MAX_WHOLE else number


# Longer numbers stay text, because nothing calculates with them, and converting costs time.
_MAX_NUMBER_LENGTH = 400
_MAX_WHOLE = 1e21
