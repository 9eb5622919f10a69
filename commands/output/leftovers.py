"""Format leftovers: one line per object, with its owner and why it is or is not left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from rich.console import Console

from commands.output.overview import age, aligned, console
from commands.output.pools import VERDICT_STYLES, describe_books
from commands.output.text import Text
from operations.capacity.addresspools import Verdict
from operations.leftovers.decision import LeftoverReport, OwnedObject


def show(
    reports: Iterable[LeftoverReport], *, only_wrong: bool, now: datetime | None = None
) -> None:
    """Write what is on each Harvester without an owner, cut to the width of a terminal."""
    out = console()
    now = now or datetime.now(UTC)
    for report in reports:
        out.print(_title(report))
        for pool in report.pools:
            for line in describe_books(pool):
                out.print(Text.assemble(("  ! ", "yellow"), f"IPPool {pool.name}: {line}"))
        objects = filtered(report, only_wrong=only_wrong).objects
        if objects:
            _show_objects(out, objects, now)


def filtered(report: LeftoverReport, *, only_wrong: bool) -> LeftoverReport:
    """Return a report without the objects of others, if only leftovers are requested."""
    objects = (*report.leaked, *report.in_use)
    return replace(report, objects=objects) if only_wrong else report


def _title(report: LeftoverReport) -> Text:
    counts = Counter(obj.verdict for obj in report.objects)
    parts = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
    text = Text.assemble("Harvester ", (report.harvester, "bold"), ": ")
    return text.append(", ".join(parts) if parts else "every object has an owner")


def _show_objects(out: Console, objects: Iterable[OwnedObject], now: datetime) -> None:
    """Write a table of objects without an owner."""
    header = ["OBJECT", "STATE", "AGE", "OWNER", "DETAIL"]
    rows = [
        [
            Text(obj.subject),
            Text(obj.verdict, style=VERDICT_STYLES[obj.verdict]),
            Text(age(obj.created, now) or "-"),
            Text(obj.owner or "-"),
            Text(obj.detail),
        ]
        for obj in objects
    ]
    for line in aligned(header, rows):
        out.print(Text("  ").append_text(line), no_wrap=True, overflow="ellipsis")
