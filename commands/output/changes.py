"""Show a plan: its changes, and the checks before them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NoReturn

from commands.output.echo import echo
from commands.output.overview import affected, age, console
from commands.output.text import Text
from operations.change.changes import Change, Plan
from operations.status.check import Check, Result
from operations.status.model import Cluster, Problem

CHECK_MARKS = {
    Result.ERROR: ("✗", "red"),
    Result.WARNING: ("!", "yellow"),
    Result.SKIPPED: ("-", "dim"),
    Result.OK: ("✓", "green"),
}


def show(plan: Plan, subject: str = "") -> None:
    """Write checks and changes of a plan.

    :param subject: what is changed, by default the objects of the cluster
    """
    show_checks(plan.checks)
    out = console()
    if not plan.changes:
        detail = f": the objects of cluster {plan.cluster} are up to date"
        if subject:
            detail = f": {subject} is up to date"
        if plan.pending:
            detail = " now"
        out.print(Text(f"Nothing to change{detail}"))
    _show_changes(plan.changes, "")
    _show_changes(plan.pending, ", later")


def _show_changes(changes: Iterable[Change], when: str) -> None:
    out = console()
    changes = tuple(changes)
    for name in dict.fromkeys(change.object for change in changes):
        out.print(Text.assemble((name, "bold"), when))
        for change in changes:
            if change.object == name:
                before = change.before or "(not set)"
                out.print(Text(f"  {change.field}: {before} → {change.after}"), soft_wrap=True)


def show_checks(checks: Iterable[Check]) -> None:
    """Write a line for each check, and a second line with the remedy if it has one."""
    out = console()
    order = list(Result)
    for check in sorted(checks, key=lambda check: order.index(check.result)):
        mark, style = CHECK_MARKS[check.result]
        out.print(
            Text.assemble((f"{mark} ", style), (check.id, "bold"), f": {check.message}"),
            soft_wrap=True,
        )
        if check.remedy:
            out.print(Text(f"  → {check.remedy}"), soft_wrap=True)


class Progress:
    """Lines about the progress of a change, each once.

    They go to standard output, or to standard error when the output is data.
    """

    def __init__(self, *, to_stderr: bool) -> None:
        self._stderr = to_stderr
        self._last = ""
        self._problems: Counter[tuple[str, str]] = Counter()
        self._cluster: Cluster | None = None

    def say(self, text: str) -> None:
        """Write a line unless it repeats the last one."""
        if text != self._last:
            self._last = text
            echo(f"{datetime.now(UTC):%H:%M:%S}  {text}", err=self._stderr)
            (sys.stderr if self._stderr else sys.stdout).flush()

    def problems(self, cluster: Cluster) -> None:
        """Write each problem that needs action, once."""
        self._cluster = cluster
        for problem in cluster.problems:
            self._problems[affected(problem), problem.cause] += 1
            if problem.severity.wrong and self._problems[affected(problem), problem.cause] == 1:
                self._problem(problem)

    def give_up(self, *lines: str) -> NoReturn:
        """Write the problems for which the change waits, and lines; exit with status 1."""
        for problem in self._cluster.problems if self._cluster else ():
            self._problem(problem)
        for line in lines:
            echo(line, err=True)
        sys.exit(1)

    def _problem(self, problem: Problem) -> None:
        since = age(problem.since, datetime.now(UTC))
        mark = "✗" if problem.severity.wrong else "…"
        duration = f"  ({since})" if since else ""
        echo(f"{mark} {affected(problem)}: {problem.cause}{duration}", err=self._stderr)
        echo(f"  → {problem.next_step}", err=self._stderr)
