"""Label selectors as kubectl takes them, for objects that no API server selects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Selector = Callable[[Mapping[str, str]], bool]
"""Whether labels are selected."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"\s*+(?:(?P<absent>!)\s*+)?(?P<name>{_NAME})\s*+"
    rf"(?:(?P<op>==?|!=)\s*+(?P<value>{_VALUE})\s*+|(?<=\s)(?P<set>in|notin)\s*+\((?P<values>[^()]*+)\)\s*+)?"
)


def selector(text: str) -> Selector:
    """Return a selector: `team=a,tier!=edge,wave in (1,2),canary,!legacy`. Raises ValueError for anything else."""
    requirements = [_requirement(part) for part in _parts(text)]
    return lambda labels: all(requirement(labels) for requirement in requirements)


def _parts(text: str) -> list[str]:
    """Split a selector at the commas that are not in brackets."""
    parts: list[list[str]] = []
    is_in_brackets = False

    for piece in text.split(","):
        if is_in_brackets:
            parts[-1].append(piece)
        else:
            parts.append([piece])

        last_bracket = max(piece.rfind("("), piece.rfind(")"))
        if last_bracket >= 0:
            is_in_brackets = piece[last_bracket] == "("

    return [",".join(pieces) for pieces in parts]


def _requirement(text: str) -> Selector:
    found = _REQUIREMENT.fullmatch(text)
    if not found or (found["absent"] and (found["op"] or found["set"])):
        msg = f"{text!r} selects no labels: write name=value, name!=value, name in (a,b), name or !name"
        raise ValueError(msg)
    name = found["name"]
    if found["set"]:
        values = frozenset(value.strip() for value in found["values"].split(","))
    elif found["op"]:
        values = frozenset({found["value"]})
    else:
        wanted = not found["absent"]
        return lambda labels: (name in labels) == wanted
    # As in Kubernetes, an object without the label is one whose value is another.
    excluded = found["set"] == "notin" or found["op"] == "!="
    return lambda labels: (labels.get(name) in values) != excluded
