"""Writes YAML for review: the same bytes for the same data, and one line per changed value.

PyYAML is not used: it takes longer than all the rest of a rendering, and breaks long lines at
places that move. This writer knows the types of JSON, and quotes everything that is not plainly a
word. Readers of YAML 1.1 and 1.2 read the same data.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

# Words that need no quotes, because no reader parses them as a number, date, boolean or merge.
_WORD = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*")
_AMBIGUOUS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
# A literal block can hold a text of several lines that is printable, begins with a word, and ends
# with one line feed.
_HIDDEN = r"\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff"
_BLOCK = re.compile(rf"[^\s{_HIDDEN}](?:[^{_HIDDEN}]*[^\s{_HIDDEN}])?\n")
_QUOTED = json.JSONEncoder(ensure_ascii=False).encode
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")


def dump(value: Any) -> str:
    """Return a document with a line feed at its end; keys stay in their order.

    Raises `TypeError` for types that JSON does not have, and `ValueError` for lone surrogates, NaN
    and infinity.
    """
    lines: list[str] = []
    _node(value, "", lines)
    return "".join(lines)


def dump_all(documents: Sequence[Any]) -> str:
    """Return several documents with `---` between them."""
    return "---\n".join(map(dump, documents))


def writable(value: Any) -> Any:
    """Return parsed YAML in a form that `dump` can write, which is how an API server reads it.

    A user may have edited a file. Keys, dates and infinite numbers that JSON does not have become
    text.
    """
    if isinstance(value, dict):
        return {str(key): writable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [writable(item) for item in value]
    is_finite = not isinstance(value, float) or math.isfinite(value)
    is_plain = value is None or isinstance(value, str | int | float)
    return value if is_plain and is_finite else str(value)


def is_part_of_ambiguous(text: str) -> bool:
    """Whether a text, alone or in a longer one, may be a word that needs quotes."""
    return any(text.lower() in word for word in _AMBIGUOUS)


def _node(value: Any, indent: str, lines: list[str]) -> None:
    if isinstance(value, dict) and value:
        _mapping(value, indent, lines)
    elif isinstance(value, list | tuple) and value:
        _sequence(value, indent, lines)
    else:
        lines.append(f"{indent}{_scalar(value)}\n")


def _mapping(value: dict[Any, Any], indent: str, lines: list[str]) -> None:
    for key, item in value.items():
        if not isinstance(key, str):
            msg = f"keys are text, not {type(key).__name__}"
            raise TypeError(msg)
        head = f"{indent}{_text(key)}:"
        if isinstance(item, dict | list | tuple) and item:
            lines.append(head + "\n")
            _node(item, indent + "  ", lines)
        elif isinstance(item, str) and "\n" in item and _BLOCK.fullmatch(item):
            lines.append(head + " |\n")
            lines += [f"{indent}  {line}\n" if line else "\n" for line in item[:-1].split("\n")]
        else:
            lines.append(f"{head} {_scalar(item)}\n")


def _sequence(value: Sequence[Any], indent: str, lines: list[str]) -> None:
    for item in value:
        first = len(lines)
        _node(item, indent + "  ", lines)
        lines[first] = f"{indent}- {lines[first][len(indent) + 2 :]}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool | int | float):
        return _number(value) if isinstance(value, float) else json.dumps(value)
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    msg = f"{type(value).__name__} cannot be written as YAML"
    raise TypeError(msg)


def _number(value: float) -> str:
    text = json.dumps(value, allow_nan=False)
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text

    # YAML 1.1 takes an exponent without a point or a sign for text.
    if "." not in mantissa:
        mantissa += ".0"
    if exponent[0] not in "+-":
        exponent = f"+{exponent}"
    return f"{mantissa}e{exponent}"


def _text(value: str) -> str:
    if _WORD.fullmatch(value) and value.lower() not in _AMBIGUOUS:
        return value
    quoted = _QUOTED(value)
    return _UNPRINTABLE.sub(_escape, quoted)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xD800 <= code <= 0xDFFF:
        msg = "a lone surrogate is not text"
        raise ValueError(msg)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
