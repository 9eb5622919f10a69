"""The rule set of ClusterDefinitions, for single definitions and for all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from caphv.api.object import Key, Obj, text_at
from caphv.validation.finding import Fault, Finding, LocatedFinding
from caphv.validation.rule import Rule
from packager.definitions import model
from packager.definitions import rules as definition_rules
from packager.definitions.build import build
from packager.rendering.options import RenderOptions
from packager.rendering.renderer import Renderer


def rules() -> Sequence[Rule]:
    """Return the rules about definitions."""
    return definition_rules.all_rules()


def concerns(obj: Obj) -> bool:
    """Whether an object is a ClusterDefinition."""
    return model.is_definition(obj)


def check(obj: Obj) -> list[Finding]:
    """Return findings about a definition and its add-ons; none for other kinds."""
    return ForFleet("").check(obj)


def check_together(objs: Sequence[Obj]) -> list[LocatedFinding[int]]:
    """Return a finding for each definition whose cluster an earlier one defines.

    All further definitions refer to the first one.
    """
    first: dict[Key, int] = {}
    findings = []

    for index, obj in enumerate(objs):
        if not concerns(obj):
            continue
        key = key_of(obj)
        if key in first:
            detail = "another definition defines this cluster: remove one of them"
            finding = definition_rules.TWICE.finding(
                ("metadata", "name"), Fault.DUPLICATE, detail, key.name
            )
            findings.append(LocatedFinding(index, finding, first[key]))
        else:
            first[key] = index
    return findings


def key_of(obj: Obj) -> Key:
    """Return namespace and name of an object as text, as far as it has them."""
    return Key(text_at(obj, "metadata", "namespace"), text_at(obj, "metadata", "name"))


@dataclass(frozen=True)
class ForFleet:
    """The same rule set, for clusters whose bundles this release of Fleet reads.

    Raises `ValueError` for anything but a release.
    """

    release: str

    def __post_init__(self) -> None:
        # The renderer refuses an invalid release. It is cached, and `check` uses it later.
        _renderer(self.release)

    def rules(self) -> Sequence[Rule]:
        """Return the rules about definitions."""
        return rules()

    def concerns(self, obj: Obj) -> bool:
        """Whether an object is a ClusterDefinition."""
        return concerns(obj)

    def check(self, obj: Obj) -> list[Finding]:
        """Return findings about a definition and its add-ons; none for other kinds."""
        if not concerns(obj):
            return []
        return list(build(obj, _renderer(self.release), {}).findings)

    def check_together(self, objs: Sequence[Obj]) -> list[LocatedFinding[int]]:
        """Return a finding for each definition whose cluster an earlier one defines."""
        return check_together(objs)


@cache
def _renderer(fleet_release: str) -> Renderer:
    return Renderer(RenderOptions(fleet_version=fleet_release))
