"""The rule set of ClusterDefinitions: each by itself, and all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from caphv.api.object import Obj
from caphv.validation.finding import Fault, Finding, LocatedFinding
from caphv.validation.rule import Rule
from packager.definitions import model
from packager.definitions import rules as definition_rules
from packager.definitions.build import build
from packager.rendering.renderer import Renderer


def rules() -> Sequence[Rule]:
    """Return the rules about definitions."""
    return definition_rules.RULES


def concerns(obj: Obj) -> bool:
    """Whether an object is a ClusterDefinition."""
    return model.is_definition(obj)


def check(obj: Obj) -> list[Finding]:
    """Return what is wrong with a definition and the add-ons that it configures; nothing for other kinds."""
    return list(build(obj, _renderer(), {}).findings) if concerns(obj) else []


def check_together(objs: Sequence[Obj]) -> list[LocatedFinding[int]]:
    """Return a finding for each definition whose cluster an earlier one defines."""
    first: dict[tuple[str, str], int] = {}
    found = []
    for index, obj in enumerate(objs):
        if not concerns(obj):
            continue
        key = key_of(obj)
        if key in first:
            detail = "another definition defines this cluster: remove one of them"
            finding = definition_rules.TWICE.finding(("metadata", "name"), Fault.DUPLICATE, detail, key[1])
            found.append(LocatedFinding(index, finding, first[key]))
        first.setdefault(key, index)
    return found


def key_of(obj: Obj) -> tuple[str, str]:
    """Return namespace and name of an object as far as it has them, whatever it holds there."""
    metadata: Any = obj.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    return str(known.get("namespace") or ""), str(known.get("name") or "")


@cache
def _renderer() -> Renderer:
    return Renderer()
