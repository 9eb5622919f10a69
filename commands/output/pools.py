"""How entries of IPPools look: a line an address, with its owner and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console

from commands.output.overview import age, console, row
from commands.output.text import Text
from overview.objects import Unseen
from overview.pools import Entry, PoolReport, Verdict

_STYLES = {
    Verdict.HELD: "green",
    Verdict.LEAKED: "bold red",
    Verdict.IN_USE: "yellow",
    Verdict.FOREIGN: "cyan",
    Verdict.UNRECORDED: "yellow",
    Verdict.UNKNOWN: "magenta",
}


def show(out: Console, reports: Iterable[PoolReport], *, only_wrong: bool, now: datetime | None = None) -> None:
    """Write each pool with its entries, a line each, cut to the width of a terminal."""
    now = now or datetime.now(UTC)
    for report in reports:
        out.print(_title(report))
        for line in _books(report):
            out.print(Text.assemble(("  ! ", "yellow"), line))
        entries = [each for each in report.entries if not only_wrong or each.verdict is not Verdict.HELD]
        if entries:
            _show_entries(out, entries, now)


def show_plan(plans: Iterable[PoolReport]) -> None:
    """Write what a release does."""
    out = console()
    for report in plans:
        out.print(_title(report))
        for entry in report.leaked:
            out.print(Text.assemble(("  release ", "red"), (entry.address, "bold"), f"  {entry.id}  {entry.detail}"))
        for line in _books(report):
            out.print(Text.assemble(("  correct ", "yellow"), line))


def show_unseen(unseen: Iterable[Unseen]) -> None:
    """Say on standard error what could not be read."""
    errors = Console(stderr=True, highlight=False)
    for each in unseen:
        errors.print(Text(f"not seen: {each}", style="yellow"), soft_wrap=True)


def _title(report: PoolReport) -> Text:
    counted = Counter(entry.verdict for entry in report.entries)
    parts = [f"{counted[verdict]} {verdict}" for verdict in Verdict if counted[verdict]]
    free = f"{report.expected} of {report.total} free"
    text = Text.assemble("IPPool ", (report.name, "bold"), (f" on {report.harvester}", "dim"), f": {free}")
    if parts:
        text.append(f"; {', '.join(parts)}")
    return text


def _books(report: PoolReport) -> Iterable[str]:
    if report.error:
        yield report.error
    if report.available != report.expected:
        yield f"status.available is {report.available}, by its entries it is {report.expected}"
    if report.stray_marks:
        yield f"marks of addresses that are not allocated: {', '.join(report.stray_marks)}"


def _show_entries(out: Console, entries: list[Entry], now: datetime) -> None:
    header = ["ADDRESS", "STATE", "AGE", "HOLDER", "OWNER"]
    rows = [
        [
            Text(entry.address),
            Text(entry.verdict, style=_STYLES[entry.verdict]),
            Text(age(entry.created, now) or "-"),
            Text(entry.id),
            Text("; ".join(filter(None, (entry.owner, entry.detail)))),
        ]
        for entry in entries
    ]
    table = [[Text(name, style="dim") for name in header], *rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(*table, strict=True)]
    for cells in table:
        line = Text("  ")
        line.append_text(row(cells, widths))
        out.print(line, no_wrap=True, overflow="ellipsis", crop=True)
