"""Rules, which are declared next to the function that checks them, with their text for docs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from caphv.validation.finding import Fault, FieldPath, Finding

Check = Callable[..., Iterable[Any]]
CheckT = TypeVar("CheckT", bound=Check)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, with the same name in every report and page, and a description of what must hold.

    A rule without a check is reported by the code that reads the value.

    :param kinds: kinds to which the rule applies
    :param fields: paths below the spec of these kinds
    :param example: an object that breaks the rule
    :param check: function that yields findings; the rule set decides about its arguments
    :param advice: the rule only warns
    :param before: for a rule about changes, the object of the example before the change
    :param refused_by_go: the Go provider also refuses objects that break the rule
    """

    name: str
    description: str
    kinds: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    example: str = ""
    check: Check | None = None
    advice: bool = False
    before: str = ""
    refused_by_go: bool = False

    @property
    def severity(self) -> str:
        """`error` or `warning`."""
        return "warning" if self.advice else "error"

    def finding(
        self,
        path: FieldPath,
        fault: Fault,
        detail: str,
        value: Any = None,
        *,
        advice: bool = False,
        remedy: str = "",
    ) -> Finding:
        """Return a finding of this rule, with the members of `Finding`."""
        return Finding(
            path,
            fault,
            detail,
            rule=self.name,
            value=value,
            advice=self.advice or advice,
            remedy=remedy,
        )

    def sign(self, finding: Finding) -> Finding:
        """Return the finding of a check with the rule's name and severity."""
        return self.finding(
            finding.path, finding.fault, finding.detail, finding.value, advice=finding.advice
        )

    def findings(self, *subject: Any) -> list[Finding]:
        """Run the check, which yields findings without a place, and return its findings."""
        return list(self.yield_findings(*subject))

    def yield_findings(self, *subject: Any) -> Iterator[Finding]:
        """Yield each finding as soon as the check yields it, which may raise later."""
        if self.check is not None:
            yield from (self.sign(finding) for finding in self.check(*subject))


class Rules(list[Rule]):
    """The rules of one theme, in the order of the docs."""

    def rule(
        self,
        name: str,
        kinds: tuple[str, ...],
        description: str,
        *fields: str,
        example: str = "",
        refused_by_go: bool = False,
        advice: bool = False,
        before: str = "",
    ) -> Callable[[CheckT], CheckT]:
        """Declare a rule with the decorated function as its check. `Rule` explains the rest."""

        def register(check: CheckT) -> CheckT:
            rule = Rule(
                name=name,
                description=description,
                kinds=kinds,
                fields=fields,
                example=example,
                check=check,
                advice=advice,
                before=before,
                refused_by_go=refused_by_go,
            )
            self.append(rule)
            return check

        return register

    def declare(
        self,
        name: str,
        description: str,
        *,
        kinds: tuple[str, ...] = (),
        example: str = "",
        advice: bool = False,
    ) -> Rule:
        """Declare a rule that other code reports with `Rule.finding`."""
        rule = Rule(name, description, kinds, example=example, advice=advice)
        self.append(rule)
        return rule
