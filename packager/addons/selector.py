"""Label selectors as kubectl takes them, for objects that no API server selects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Selector = Callable[[Mapping[str, str]], bool]
"""Returns whether labels are selected."""

# Possessive quantifiers (`*+`) never backtrack, so that no text takes more than linear time.
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"\s*+(?:(?P<absent>!)\s*+)?(?P<name>{_NAME})\s*+"
    rf"(?:(?P<op>==?|!=)\s*+(?P<value>{_VALUE})\s*+"
    rf"|(?<=\s)(?P<set>in|notin)\s*+\((?P<values>[^()]*+)\)\s*+)?"
)


def selector(text: str) -> Selector:
    """Parse `team=a,tier!=edge,wave in (1,2),canary,!legacy`. Raises `ValueError` if invalid."""
    requirements = [_parse_requirement(part) for part in _split(text)]
    return lambda labels: all(requirement(labels) for requirement in requirements)


def _split(text: str) -> list[str]:
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


def _parse_requirement(text: str) -> Selector:
    match = _REQUIREMENT.fullmatch(text)
    if not match or (match["absent"] and (match["op"] or match["set"])):
        msg = (
            f"{text!r} selects no labels: write name=value, name!=value, name in (a,b), name or "
            "!name"
        )
        raise ValueError(msg)

    name = match["name"]
    if match["set"]:
        values = frozenset(value.strip() for value in match["values"].split(","))
    elif match["op"]:
        values = frozenset({match["value"]})
    else:
        is_present = not match["absent"]
        return lambda labels: (name in labels) == is_present

    # As in Kubernetes, an object without the label counts as one with another value.
    excluded = match["set"] == "notin" or match["op"] == "!="
    return lambda labels: (labels.get(name) in values) != excluded
