"""The interface of a package whose kinds are validated by `caphv validate` and documented."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from caphv.api.object import Obj
from caphv.validation.finding import Finding, LocatedFinding
from caphv.validation.rule import Rule


class RuleSet(Protocol):
    """The rules of one domain. A module can be a rule set."""

    def rules(self) -> Sequence[Rule]:
        """Return every rule that the set reports."""

    def concerns(self, obj: Obj) -> bool:
        """Return whether the set has rules for an object."""

    def check(self, obj: Obj) -> Sequence[Finding]:
        """Return the findings about an object by itself. Kinds outside of the set have none."""

    def check_together(self, objs: Sequence[Obj]) -> Sequence[LocatedFinding[int]]:
        """Return the findings about combinations of objects. Places are indices of `objs`."""
