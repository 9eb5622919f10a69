"""Parses settings that users write as YAML, without aliases, and with the types of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from caphv.runtime.text import Limits, load_yaml
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules

RULES = Rules()
YAML = RULES.declare(
    "addons-yaml",
    "Annotation `addons.caphv.io/values` must be YAML without aliases, of types that JSON has.",
    kinds=("Cluster",),
)
_MAX_ANNOTATION_LENGTH = 64 * 1024
_LIMITS = Limits(size=_MAX_ANNOTATION_LENGTH, aliases=False)
_MAX_DEPTH = 64


def parse_yaml(text: str) -> Any:
    """Return the value of a user's YAML. Raises `ValueError` with the fault.

    Aliases are refused, because a few of them can expand to gigabytes.
    """
    if len(text) > _MAX_ANNOTATION_LENGTH:
        raise ValueError(f"must have at most {_MAX_ANNOTATION_LENGTH} characters")
    return load_yaml(text, _LIMITS)


def check_json(value: Any, path: FieldPath) -> list[Finding]:
    """Return findings for values of YAML that JSON cannot hold.

    JSON cannot hold dates, keys that are not text, and infinite numbers.
    """
    # End the recursion before Python's own limit, which would raise an error without a place.
    if len(path) > _MAX_DEPTH:
        detail = f"must not be nested deeper than {_MAX_DEPTH} levels"
        return [YAML.finding(path[:8], Fault.INVALID, detail)]
    if isinstance(value, Mapping):
        if invalid := [key for key in value if not isinstance(key, str)]:
            detail = f"keys must be text: quote {invalid[0]!r}"
            return [YAML.finding(path, Fault.WRONG_TYPE, detail)]
        items: Iterable[tuple[str | int, Any]] = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return _check_scalar(value, path)

    findings = []
    for key, item in items:
        findings += check_json(item, (*path, key))
    return findings


def _check_scalar(value: Any, path: FieldPath) -> list[Finding]:
    if isinstance(value, str):
        # A lone surrogate is valid in YAML's escapes, and cannot be written as UTF-8.
        if value.isascii() or not any(0xD800 <= ord(character) <= 0xDFFF for character in value):
            return []
        return [YAML.finding(path, Fault.INVALID, "must be text that UTF-8 can hold")]

    is_finite = isinstance(value, float) and abs(value) < float("inf")
    if value is None or isinstance(value, int) or is_finite:
        return []
    detail = f"must be text, number, boolean, list or object, not {type(value).__name__}: quote it"
    return [YAML.finding(path, Fault.WRONG_TYPE, detail)]
