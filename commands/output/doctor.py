"""How checks look: by subject, what is wrong first, each with its remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.padding import Padding
from rich.table import Table

from caphv.api.counting import counted
from commands.output.overview import console
from commands.output.text import Text
from overview.doctor.model import Check, Result, worst

_MARKS = {
    Result.ERROR: ("✗", "red"),
    Result.WARNING: ("!", "yellow"),
    Result.SKIPPED: ("-", "dim"),
    Result.OK: ("✓", "green"),
}


def show(checks: Sequence[Check], *, everything: bool) -> None:
    """Write the checks of each subject; those that are ok are counted unless all are wanted."""
    out, order = console(), list(Result)
    for subject in dict.fromkeys(check.subject for check in checks):
        own = sorted((check for check in checks if check.subject == subject), key=lambda each: order.index(each.result))
        mark, style = _MARKS[worst(own)]
        passed = sum(check.result is Result.OK for check in own)
        title = Text.assemble((f"{mark} ", style), (subject, "bold"))
        if passed and not everything:
            title.append(f"  {passed} ok", style="dim")
        out.print(title)
        for check in own:
            if check.result is Result.OK and not everything:
                continue
            mark, style = _MARKS[check.result]
            text = Text.assemble((check.id, "bold" if check.wrong else ""), ": ", check.message)
            if not out.is_terminal:
                out.print(Text(f"  {mark} {text.plain}"))
                if check.remedy:
                    out.print(Text(f"    {check.remedy}"))
                continue
            grid = Table.grid(padding=(0, 1, 0, 0))
            grid.add_column(no_wrap=True)
            grid.add_column(overflow="fold")
            grid.add_row(Text(mark, style=style), text)
            if check.remedy:
                grid.add_row(Text("→", style="dim"), Text(check.remedy))
            out.print(Padding(grid, (0, 0, 0, 2)))
    numbers = Counter(check.result for check in checks)
    parts = [_number(numbers[result], result) for result in Result if numbers[result]]
    out.print(Text(", ".join(parts), style="dim"))


def _number(number: int, result: Result) -> str:
    return counted(number, result) if result in (Result.ERROR, Result.WARNING) else f"{number} {result}"
