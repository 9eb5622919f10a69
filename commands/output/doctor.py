"""Show checks by subject, the worst first, each with its remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from caphv.api.counting import counted
from commands.output.changes import CHECK_MARKS
from commands.output.overview import console
from commands.output.text import Text
from operations.status.check import Check, Result, worst


def show(checks: Sequence[Check], *, everything: bool) -> None:
    """Write the checks of each subject; unless `everything`, passed checks are only counted."""
    out = console()
    order = list(Result)
    for subject in dict.fromkeys(check.subject for check in checks):
        subject_checks = sorted(
            (check for check in checks if check.subject == subject),
            key=lambda check: order.index(check.result),
        )
        mark, style = CHECK_MARKS[worst(subject_checks)]
        passed = sum(check.result is Result.OK for check in subject_checks)
        title = Text.assemble((f"{mark} ", style), (subject, "bold"))
        if passed and not everything:
            title.append(f"  {passed} ok", style="dim")
        out.print(title)

        for check in subject_checks:
            if everything or check.result is not Result.OK:
                _show_check(out, check)

    numbers = Counter(check.result for check in checks)
    parts = [_number(numbers[result], result) for result in Result if numbers[result]]
    out.print(Text(", ".join(parts), style="dim"))


def _show_check(out: Console, check: Check) -> None:
    """Write a check, and its remedy below."""
    mark, style = CHECK_MARKS[check.result]
    text = Text.assemble((check.id, "bold" if check.wrong else ""), ": ", check.message)
    if not out.is_terminal:
        out.print(Text(f"  {mark} {text.plain}"))
        if check.remedy:
            out.print(Text(f"    {check.remedy}"))
        return

    # Columns keep the second line of a long sentence below its first.
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(mark, style=style), text)
    if check.remedy:
        grid.add_row(Text("→", style="dim"), Text(check.remedy))
    out.print(Padding(grid, (0, 0, 0, 2)))


def _number(number: int, result: Result) -> str:
    return (
        counted(number, result)
        if result in (Result.ERROR, Result.WARNING)
        else f"{number} {result}"
    )
