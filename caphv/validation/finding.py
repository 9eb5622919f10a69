"""What is wrong with an object, one finding per fault, so that every entry point reports the same in the same words.

The words are those of Kubernetes' own field errors: kubectl users know `spec.cpu: Invalid value: 0: …`, and scripts
that match on it keep working.
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
_LONGEST_VALUE = 120
# Comparing takes time quadratic to the length.
_LONGEST_NAME = 64


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
    # Of text that could not be read; it has no field yet.
    SYNTAX = "Syntax error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault or one piece of advice.

    `rule` is the name of the broken rule, the same in every report and in `docs/validation.md`; the rule fills it in
    where its check leaves it empty. `detail` says what must hold and what to do about it. `value` is shown with faults
    that concern a value; it is never a secret: rules about Secrets leave it out. An `advice` is about a value that is
    valid but not recommended: it warns and refuses nothing. `remedy` is further help, for reports that have room.
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
        return rendered(self.path)

    def __str__(self) -> str:
        if self.fault is Fault.SYNTAX:
            return self.detail
        shown = f": {_shown(self.value)}" if self.fault in _WITH_VALUE and self.value is not None else ""
        return f"{self.field}: {self.fault}{shown}: {self.detail}"


PlaceT = TypeVar("PlaceT")


@dataclass(frozen=True, slots=True)
class LocatedFinding(Generic[PlaceT]):
    """A finding and its place: the index of an object, an object, or a position in a file.

    `other` is the place of the other object that it has to do with.
    """

    place: PlaceT
    finding: Finding
    other: PlaceT | None = None


_WITH_VALUE = frozenset({Fault.INVALID, Fault.UNSUPPORTED, Fault.DUPLICATE, Fault.TOO_LONG, Fault.WRONG_TYPE})


def rendered(path: FieldPath) -> str:
    """Return a path as kubectl shows it; keys that are not plain names are in brackets, like those of a map."""
    text = ""
    for part in path:
        if isinstance(part, int) or not _PLAIN.fullmatch(part):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text or "<root>"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean "x"?` for the name that is nearly this one, empty when none is."""
    close = difflib.get_close_matches(name[:_LONGEST_NAME], sorted(set(names)), n=1, cutoff=0.75)
    return f'; did you mean "{close[0]}"?' if close else ""


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by field and rule, without repetitions: the same object always gets the same answer."""
    unique = {(finding.field, finding.rule, finding.detail): finding for finding in findings}
    return [unique[key] for key in sorted(unique)]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, default=str)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
