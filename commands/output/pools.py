"""Show the entries of IPPools: one address per line, with its owner and its problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console

from commands.output.overview import age, aligned, console
from commands.output.text import Text
from operations.capacity.addresspools import Entry, PoolReport, Verdict
from operations.read.objects import Unseen

VERDICT_STYLES = {
    Verdict.HELD: "green",
    Verdict.LEAKED: "bold red",
    Verdict.IN_USE: "yellow",
    Verdict.FOREIGN: "cyan",
    Verdict.UNRECORDED: "yellow",
    Verdict.UNKNOWN: "magenta",
}


def show(
    out: Console, reports: Iterable[PoolReport], *, only_wrong: bool, now: datetime | None = None
) -> None:
    """Write each pool with its entries, a line each, cut to the width of a terminal."""
    now = now or datetime.now(UTC)
    for report in reports:
        out.print(_title(report))
        for line in describe_books(report):
            out.print(Text.assemble(("  ! ", "yellow"), line))
        entries = [
            entry for entry in report.entries if not only_wrong or entry.verdict is not Verdict.HELD
        ]
        if entries:
            _show_entries(out, entries, now)


def show_plan(plans: Iterable[PoolReport]) -> None:
    """Write the addresses to release, and the errors to correct."""
    out = console()
    for report in plans:
        out.print(_title(report))
        for entry in report.leaked:
            out.print(
                Text.assemble(
                    ("  release ", "red"), (entry.address, "bold"), f"  {entry.id}  {entry.detail}"
                )
            )
        for line in describe_books(report):
            out.print(Text.assemble(("  correct ", "yellow"), line))


def show_unseen(unseen: Iterable[Unseen]) -> None:
    """List on standard error what could not be read."""
    errors = Console(stderr=True, highlight=False)
    for item in unseen:
        errors.print(Text(f"not seen: {item}", style="yellow"), soft_wrap=True)


def _title(report: PoolReport) -> Text:
    """Return the name of a pool with the numbers of its addresses by verdict."""
    numbers = Counter(entry.verdict for entry in report.entries)
    parts = [f"{numbers[verdict]} {verdict}" for verdict in Verdict if numbers[verdict]]
    free = f"{report.expected} of {report.total} free"
    text = Text.assemble(
        "IPPool ", (report.name, "bold"), (f" on {report.harvester}", "dim"), f": {free}"
    )
    if parts:
        text.append(f"; {', '.join(parts)}")
    return text


def describe_books(report: PoolReport) -> Iterable[str]:
    """Yield what is wrong with counts and marks of a pool, a line each."""
    if report.error:
        yield report.error
    if report.available != report.expected:
        yield f"status.available is {report.available}, but its entries give {report.expected}"
    if report.stray_marks:
        yield f"marks of addresses that are not allocated: {', '.join(report.stray_marks)}"


def _show_entries(out: Console, entries: list[Entry], now: datetime) -> None:
    """Write a table of addresses."""
    header = ["ADDRESS", "STATE", "AGE", "HOLDER", "OWNER"]
    rows = [
        [
            Text(entry.address),
            Text(entry.verdict, style=VERDICT_STYLES[entry.verdict]),
            Text(age(entry.created, now) or "-"),
            Text(entry.id),
            Text("; ".join(filter(None, (entry.owner, entry.detail)))),
        ]
        for entry in entries
    ]
    for line in aligned(header, rows):
        out.print(Text("  ").append_text(line), no_wrap=True, overflow="ellipsis")
