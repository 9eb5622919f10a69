"""What a rule is, and the one way to declare one: next to the code that checks it, with its text for the docs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from caphv.validation.finding import Fault, FieldPath, Finding

Check = Callable[..., Iterable[Any]]
CheckT = TypeVar("CheckT", bound=Check)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. Its name is the same in every report and page; its description says what must hold.

    `kinds` are the kinds it applies to. `fields` are paths below the spec of those kinds. `example` breaks the rule;
    for a rule about changes, `before` is the same object before the change. `check` yields what is wrong; its arguments
    are a matter of the rule set. A rule without a check is reported by the code that reads the value. `advice` only
    warns. `refused_by_go` says that the Go provider refuses it, too.
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
        """Return a finding of this rule."""
        return Finding(path, fault, detail, self.name, value, self.advice or advice, remedy)

    def signed(self, found: Finding) -> Finding:
        """Return what a check has found with the rule's name and severity."""
        return self.finding(found.path, found.fault, found.detail, found.value, advice=found.advice)

    def findings(self, *subject: Any) -> list[Finding]:
        """Run a check that yields findings without a place."""
        return [self.signed(found) for found in self.check(*subject)] if self.check is not None else []


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
        """Declare a rule with the decorated function as its check."""

        def register(check: CheckT) -> CheckT:
            self.append(Rule(name, description, kinds, fields, example, check, advice, before, refused_by_go))
            return check

        return register

    def declare(
        self, name: str, description: str, *, kinds: tuple[str, ...] = (), example: str = "", advice: bool = False
    ) -> Rule:
        """Declare a rule that other code reports with `Rule.finding`."""
        rule = Rule(name, description, kinds, example=example, advice=advice)
        self.append(rule)
        return rule
