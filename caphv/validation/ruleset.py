"""What a package offers so that its kinds are validated: by `caphv validate`, and in the tables of the docs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from caphv.api.object import Obj
from caphv.validation.finding import Finding, LocatedFinding
from caphv.validation.rule import Rule


class RuleSet(Protocol):
    """The rules of one domain; a module can be one."""

    def rules(self) -> Sequence[Rule]:
        """Return every rule that the set reports."""

    def concerns(self, obj: Obj) -> bool:
        """Return whether the set has rules for an object."""

    def check(self, obj: Obj) -> Sequence[Finding]:
        """Return what is wrong with one object by itself; nothing for kinds that are none of the set's."""

    def check_together(self, objs: Sequence[Obj]) -> Sequence[LocatedFinding[int]]:
        """Return what is wrong among objects. Places are indices of `objs`."""
