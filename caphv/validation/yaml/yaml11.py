"""What a plain scalar means to kubectl, which reads YAML 1.1 in Go's way, and not in PyYAML's.

PyYAML would make the number 45017 of `12:30:17`, and a date of `2026-11-21`; kubectl takes both for text.
"""

import re
from typing import Any

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {
    **{text: True for word in ("y", "yes", "true", "on") for text in (word, word.capitalize(), word.upper())},
    **{text: False for word in ("n", "no", "false", "off") for text in (word, word.capitalize(), word.upper())},
}
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<bin>[01]+)|0[oO]?(?P<oct>[0-7]+)|(?P<dec>0|[1-9][0-9]*))"
)
_BASES = {"hex": 16, "bin": 2, "oct": 8, "dec": 10}
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_IN_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_OCTAL = re.compile(r"[-+]?0(?=[0_]*[1-7])[0-7_]+")
_FIRST_OF_NUMBERS = frozenset("+-.0123456789")


def resolved(text: str) -> Any:
    """Return the value of a plain scalar: None, bool, int, float or the text itself.

    Whole numbers are integers however they are written, as on their way through JSON.

    Raises:
        ValueError: JSON has no such number (`.inf`, `.nan`, or too large); the message says so.
    """
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text in _NULL:
        return None
    return _number(text) if text[0] in _FIRST_OF_NUMBERS else text


def looks_octal(text: str) -> bool:
    """Whether a plain scalar is read as another number than the same digits without the leading zero."""
    return len(text.lstrip("+-0")) > 1 and bool(_OCTAL.fullmatch(text))


def _number(text: str) -> Any:
    if _NOT_IN_JSON.fullmatch(text):
        msg = f"{text} is not a number that JSON can hold"
        raise ValueError(msg)
    plain = text.replace("_", "")
    if len(plain) > _LONGEST_NUMBER:
        return text
    if match := _INTEGER.fullmatch(plain):
        digits, base = next((match[name], base) for name, base in _BASES.items() if match[name])
        value = int(digits, base) * (-1 if match["sign"] == "-" else 1)
        if -(2**63) <= value < 2**64:
            return value
    if not _FLOAT.fullmatch(plain):
        return text
    number = float(plain)
    if number in (float("inf"), float("-inf")):
        msg = f"{text} is not a number that JSON can hold"
        raise ValueError(msg)
    return int(number) if number.is_integer() and abs(number) < _LARGEST_WHOLE else number


# Nothing calculates with longer numbers, and converting them costs time.
_LONGEST_NUMBER = 400
_LARGEST_WHOLE = 1e21
