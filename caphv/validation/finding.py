"""What is wrong with an object, one finding a fault, so that every door reports the same in the same words.

The words are those of Kubernetes' own field errors: kubectl users know `spec.cpu: Invalid value: 0: …`, and scripts
that match on it go on working.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FieldPath = tuple[str | int, ...]
"""Keys and indices from the root of the object: `("spec", "volumes", 1, "storageClass")`."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LONGEST_VALUE = 120


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


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault or one piece of advice.

    `rule` is the name of what was broken, the same at every door and in `docs/validation.md`. `detail` says what is
    wanted and what to do about it. `value` is shown with faults that concern a value; it never is a secret: rules about
    Secrets leave it out. An `advice` is legal and unwise: it warns and refuses nothing.
    """

    path: FieldPath
    fault: Fault
    detail: str
    rule: str
    value: Any = None
    advice: bool = False

    @property
    def field(self) -> str:
        """The path as kubectl shows it: `spec.volumes[1].storageClass`."""
        return rendered(self.path)

    def __str__(self) -> str:
        shown = f": {_shown(self.value)}" if self.fault in _WITH_VALUE and self.value is not None else ""
        return f"{self.field}: {self.fault}{shown}: {self.detail}"


_WITH_VALUE = frozenset({Fault.INVALID, Fault.UNSUPPORTED, Fault.DUPLICATE, Fault.TOO_LONG, Fault.WRONG_TYPE})


def rendered(path: FieldPath) -> str:
    """Return a path as kubectl shows it; keys that are no plain names stand in brackets, as of a map."""
    text = ""
    for part in path:
        if isinstance(part, int) or not _PLAIN.fullmatch(part):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text or "<root>"


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by field and rule, without repetitions: the same object is told the same at every time."""
    unique = {(finding.field, finding.rule, finding.detail): finding for finding in findings}
    return [unique[key] for key in sorted(unique)]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, default=str)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
