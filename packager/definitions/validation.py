"""ClusterDefinitions for `caphv validate`: each by itself, and all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from caphv.validation.finding import Fault, Finding
from packager.addons.merge import Obj
from packager.definitions import model, rules
from packager.definitions.build import build
from packager.rendering.renderer import Renderer


@dataclass(frozen=True)
class About:
    """A finding about one of several objects, and the place of the object that it has to do with."""

    index: int
    finding: Finding
    other: int | None = None


def concerns(obj: Obj) -> bool:
    """Whether an object is a ClusterDefinition."""
    return model.is_definition(obj)


def alone(obj: Obj) -> list[Finding]:
    """Return what is wrong with a definition and with the add-ons that it wants; nothing of other kinds."""
    return list(build(obj, _renderer(), {}).findings) if concerns(obj) else []


def together(objs: Sequence[Obj]) -> list[About]:
    """Return a finding for each definition whose cluster another one defines already."""
    first: dict[tuple[str, str], int] = {}
    found = []
    for index, obj in enumerate(objs):
        if not concerns(obj):
            continue
        key = key_of(obj)
        if key in first:
            detail = "another definition makes this cluster: remove one of them"
            finding = Finding(("metadata", "name"), Fault.DUPLICATE, detail, "definition-twice", key[1])
            found.append(About(index, finding, first[key]))
        first.setdefault(key, index)
    return found


def key_of(obj: Obj) -> tuple[str, str]:
    """Return namespace and name of an object as far as it has them, whatever it holds there."""
    metadata: Any = obj.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    return str(known.get("namespace") or ""), str(known.get("name") or "")


def described() -> dict[str, str]:
    """Return what each rule says, by its name."""
    return dict(rules.DESCRIPTIONS)


@cache
def _renderer() -> Renderer:
    return Renderer()
