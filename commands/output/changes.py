"""How a plan looks: what changes, and what was checked before."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from commands.output.echo import echo
from commands.output.overview import age, console, who
from commands.output.text import Text
from overview.changes import Change, Plan
from overview.doctor.model import Check, Result
from overview.model import Cluster, Problem

_MARKS = {
    Result.ERROR: ("✗", "red"),
    Result.WARNING: ("!", "yellow"),
    Result.SKIPPED: ("-", "dim"),
    Result.OK: ("✓", "green"),
}


def show(plan: Plan) -> None:
    """Write checks and changes of a plan."""
    show_checks(plan.checks)
    out = console()
    if not plan.changes:
        why = " now" if plan.pending else f": the objects of cluster {plan.cluster} are as wanted"
        out.print(Text(f"Nothing to change{why}"))
    _show_changes(plan.changes, "")
    _show_changes(plan.pending, ", later")


def _show_changes(changes: Iterable[Change], when: str) -> None:
    out, changes = console(), tuple(changes)
    for name in dict.fromkeys(change.object for change in changes):
        out.print(Text.assemble((name, "bold"), when))
        for change in (each for each in changes if each.object == name):
            out.print(Text(f"  {change.field}: {change.before or '(not set)'} → {change.after}"), soft_wrap=True)


def show_checks(checks: Iterable[Check]) -> None:
    """Write a line for each check, with the remedy of those that need one."""
    out, order = console(), list(Result)
    for check in sorted(checks, key=lambda each: order.index(each.result)):
        mark, style = _MARKS[check.result]
        out.print(Text.assemble((f"{mark} ", style), (check.id, "bold"), f": {check.message}"), soft_wrap=True)
        if check.remedy:
            out.print(Text(f"  → {check.remedy}"), soft_wrap=True)


class Progress:
    """Lines about something under way, each once: on standard output, or on standard error when that has data."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._stderr = to_stderr
        self._last = ""
        self._problems: Counter[tuple[str, str]] = Counter()

    def say(self, text: str) -> None:
        """Write a line unless it repeats the last one."""
        if text != self._last:
            self._last = text
            echo(f"{datetime.now(UTC):%H:%M:%S}  {text}", err=self._stderr)
            (sys.stderr if self._stderr else sys.stdout).flush()

    def problems(self, cluster: Cluster) -> None:
        """Write each problem that needs action, once."""
        for problem in cluster.problems:
            self._problems[who(problem), problem.cause] += 1
            if problem.severity.wrong and self._problems[who(problem), problem.cause] == 1:
                self._problem(problem)

    def stopped(self, cluster: Cluster | None) -> None:
        """Say what is being waited for."""
        for problem in cluster.problems if cluster else ():
            self._problem(problem)

    def _problem(self, problem: Problem) -> None:
        since = age(problem.since, datetime.now(UTC))
        mark = "✗" if problem.severity.wrong else "…"
        echo(f"{mark} {who(problem)}: {problem.cause}{f'  ({since})' if since else ''}", err=self._stderr)
        echo(f"  → {problem.next_step}", err=self._stderr)
