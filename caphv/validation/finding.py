"""Findings about objects: one per fault, with the same words at every entry point.

The words equal Kubernetes' own field errors, because kubectl users know `spec.cpu: Invalid value:
0: …`, and scripts may match on it.
"""

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

FieldPath = tuple[str | int, ...]
"""Keys and indices from the root of the object: `("spec", "volumes", 1, "storageClass")`."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_MAX_VALUE_LENGTH = 120
# Longer names are cut, because comparing takes time quadratic in the length.
_MAX_NAME_LENGTH = 64


class Fault(StrEnum):
    """Kinds of field errors, as the API machinery of Kubernetes names them."""

    REQUIRED = "Required value"
    INVALID = "Invalid value"
    UNSUPPORTED = "Unsupported value"
    DUPLICATE = "Duplicate value"
    FORBIDDEN = "Forbidden"
    TOO_LONG = "Too long"
    TOO_MANY = "Too many"
    WRONG_TYPE = "Invalid type"
    UNKNOWN = "Unknown field"
    # A text could not be read, so it has no fields yet.
    SYNTAX = "Syntax error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault or one piece of advice.

    :param detail: what must hold and what to do about it
    :param rule: name of the broken rule, the same in every report and in `docs/validation.md`;
        empty in the finding of a check, to be filled in by the rule
    :param value: the value, shown with faults that concern one; never a secret, because rules about
        Secrets omit it
    :param advice: the value is valid but not recommended, so the finding only warns
    :param remedy: further help, for reports that have room
    """

    path: FieldPath
    fault: Fault
    detail: str
    rule: str = ""
    value: Any = None
    advice: bool = False
    remedy: str = ""

    @property
    def field(self) -> str:
        """The path as kubectl shows it: `spec.volumes[1].storageClass`."""
        return path_text(self.path)

    def __str__(self) -> str:
        if self.fault is Fault.SYNTAX:
            return self.detail
        if self.fault not in _WITH_VALUE or self.value is None:
            return f"{self.field}: {self.fault}: {self.detail}"

        value = json.dumps(self.value, ensure_ascii=True, sort_keys=True, default=str)
        if len(value) > _MAX_VALUE_LENGTH:
            value = f"{value[:_MAX_VALUE_LENGTH]}…"
        return f"{self.field}: {self.fault}: {value}: {self.detail}"


PlaceT = TypeVar("PlaceT")


@dataclass(frozen=True, slots=True)
class LocatedFinding(Generic[PlaceT]):
    """A finding and its place: the index of an object, an object, or a position in a file.

    `other` is the place of another object that the finding concerns.
    """

    place: PlaceT
    finding: Finding
    other: PlaceT | None = None


_WITH_VALUE = frozenset(
    {Fault.INVALID, Fault.UNSUPPORTED, Fault.DUPLICATE, Fault.TOO_LONG, Fault.WRONG_TYPE}
)


def path_text(path: FieldPath) -> str:
    """Return a path as kubectl shows it, with brackets around keys that are not plain names."""
    text = ""
    for part in path:
        if isinstance(part, int) or not _PLAIN.fullmatch(part):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text or "<root>"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean "x"?` for the most similar name, empty if no name is similar."""
    close = difflib.get_close_matches(name[:_MAX_NAME_LENGTH], sorted(set(names)), n=1, cutoff=0.75)
    return f'; did you mean "{close[0]}"?' if close else ""


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by field and rule and drop repetitions, so that the answer is unambiguous."""
    unique = {(finding.field, finding.rule, finding.detail): finding for finding in findings}
    return [unique[key] for key in sorted(unique)]
