"""Show clusters, one per line, with their problems and the next steps below."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from caphv.api.counting import counted, name_some
from commands.output.text import Text
from operations.read.objects import time_of
from operations.status.causes import own_problems
from operations.status.model import Cluster, Machine, Overview, Problem, Replicas, Severity, State

STATE_STYLES = {
    State.AVAILABLE: "green",
    State.PROGRESSING: "cyan",
    State.DEGRADED: "yellow",
    State.UNREACHABLE: "bold yellow",
    State.FAILED: "bold red",
    State.PARKED: "magenta",
    State.PAUSED: "magenta",
    State.DELETING: "cyan",
}
_MARKS = {
    Severity.ERROR: ("✗", "red"),
    Severity.WARNING: ("!", "yellow"),
    Severity.WAITING: ("…", "cyan"),
    Severity.NOTE: ("·", "dim"),
}
# This is wide enough for any line, because programs that read a pipe expect one line per cluster.
_PIPE_WIDTH = 10_000
_MAX_LISTED = 3


def console() -> Console:
    """Return a console on standard output, as wide as the terminal.

    Without a terminal, lines are never broken and have no colour.
    """
    if sys.stdout.isatty():
        return Console(highlight=False, soft_wrap=False)
    # FORCE_COLOR and TTY_COMPATIBLE, which CI systems set, would fill each line up to this width.
    return Console(highlight=False, force_terminal=False, width=_PIPE_WIDTH, emoji=False)


def show(
    out: Console, overview: Overview, *, with_namespace: bool, now: datetime | None = None
) -> None:
    """Write a line for each cluster, with its problems below."""
    now = now or datetime.now(UTC)
    wide = out.width >= 110 and out.is_terminal
    columns = _columns(overview.clusters, with_namespace=with_namespace, wide=wide, now=now)
    for text, cluster in zip(columns, (None, *overview.clusters), strict=True):
        out.print(text, no_wrap=True, overflow="ellipsis")
        for problem in own_problems(cluster, overview.causes) if cluster else ():
            _show_problem(out, problem, now)
    if len(overview.clusters) > 1 and out.is_terminal:
        out.print(Text(summary(overview.clusters), style="dim"))


def show_provider(out: Console, overview: Overview, now: datetime) -> None:
    """Write a warning if no provider is at work, because all other output may be outdated."""
    provider = overview.provider
    if provider is None or not provider.silent:
        return
    out.print(
        Text.assemble(
            ("✗ ", "red"),
            ("provider", "bold"),
            f": {provider.cause}",
            f"  ({age(provider.since, now)})",
        )
    )
    out.print(Text.assemble(("→ ", "dim"), provider.next_step))


def show_causes(out: Console, overview: Overview, now: datetime) -> None:
    """Write the causes that several clusters share, before the clusters."""
    for cause in overview.causes:
        mark, style = _MARKS[cause.severity]
        since = age(cause.since, now)
        title = (cause.subject, "bold")
        time = f"  ({since})" if since else ""
        out.print(Text.assemble((f"{mark} ", style), title, f": {cause.cause}", time))

        number = counted(len(cause.clusters), "cluster")
        out.print(Text(f"  concerns {number}: {name_some(cause.clusters, _MAX_LISTED)}"))
        out.print(Text.assemble(("→ ", "dim"), cause.next_step))


def show_unseen(overview: Overview) -> None:
    """List on standard error what could not be read, because it might seem to be absent."""
    errors = Console(stderr=True, highlight=False)
    for unseen in overview.unseen:
        errors.print(Text(f"not seen: {unseen}", style="yellow"), soft_wrap=True)


def summary(clusters: Iterable[Cluster]) -> str:
    """Count clusters by state."""
    numbers = Counter(cluster.state for cluster in clusters)
    parts = [f"{numbers[state]} {state.lower()}" for state in State if numbers[state]]
    return f"{counted(sum(numbers.values()), 'cluster')}: {', '.join(parts)}"


def age(since: str, now: datetime) -> str:
    """Format the time since a moment as kubectl does: 45s, 12m, 5h, 3d."""
    begin = time_of(since)
    if begin is None:
        return ""
    # Clocks differ, so that an object may have been created in the next second.
    seconds = max(0, int((now - begin).total_seconds()))
    for unit, size, least in (("d", 86400, 2), ("h", 3600, 2), ("m", 60, 2)):
        if seconds >= size * least:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def version_text(cluster: Cluster) -> str:
    """Return the version of a cluster, or the former and the new one during an upgrade."""
    target = cluster.version or (cluster.versions[-1] if cluster.versions else "")
    others = [version for version in cluster.versions if version != target]
    if not others:
        return target
    return f"{others[0].partition('+')[0]} → {target.partition('+')[0]}"


def machine_state(machine: Machine) -> str:
    """Return the state of a machine in one word."""
    if machine.deleting:
        return "Deleting"
    return "Ready" if machine.ready else machine.phase or "Pending"


def _columns(
    clusters: Sequence[Cluster], *, with_namespace: bool, wide: bool, now: datetime
) -> list[Text]:
    """Return the lines of the table of clusters, the header first."""
    header = ["CLUSTER", "STATE", "CONTROL PLANE", "WORKERS", "VERSION", "AGE"]
    rows = [
        [
            Text(cluster.name, style="bold"),
            Text(cluster.state, style=STATE_STYLES[cluster.state]),
            _replicas(cluster.control_plane),
            _replicas(cluster.workers),
            Text(version_text(cluster)),
            Text(age(cluster.created, now)),
        ]
        for cluster in clusters
    ]

    if wide:
        header.append("ENDPOINT")
        rows = [[*row, Text(cluster.endpoint)] for row, cluster in zip(rows, clusters, strict=True)]
    if with_namespace:
        header.insert(0, "NAMESPACE")
        rows = [
            [Text(cluster.namespace), *row] for row, cluster in zip(rows, clusters, strict=True)
        ]
    return aligned(header, rows)


def aligned(header: Sequence[str], rows: Iterable[Sequence[Text]]) -> list[Text]:
    """Return the lines of a table with columns of equal widths, the header first."""
    table = [[Text(name, style="dim") for name in header], *rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(*table, strict=True)]
    return [_row(cells, widths) for cells in table]


def _row(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text()
    for cell, width in zip(cells, widths, strict=True):
        line.append_text(cell).append(" " * (width - cell.cell_len + 2))
    line.rstrip()
    return line


def _replicas(replicas: Replicas) -> Text:
    style = "yellow"
    if replicas.complete:
        style = ""
    elif replicas.available == replicas.desired:
        style = "cyan"
    return Text(str(replicas), style=style)


def _show_problem(out: Console, problem: Problem, now: datetime) -> None:
    """Write a problem and, unless it only waits, the next step below."""
    mark, style = _MARKS[problem.severity]
    duration = age(problem.since, now)
    note = f"  ({duration})" if duration else ""
    cause = Text.assemble((affected(problem), "bold"), ": ", problem.cause, (note, "dim"))
    needs_action = problem.severity is not Severity.WAITING
    if not out.is_terminal:
        out.print(Text(f"  {mark} {cause.plain}"))
        if needs_action:
            out.print(Text(f"    {problem.next_step}"))
        return

    # Columns keep the second line of a long sentence below its first.
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(mark, style=style), cause)
    if needs_action:
        grid.add_row(Text("→", style="dim"), Text(problem.next_step))
    out.print(Padding(grid, (0, 0, 0, 2)))


def affected(problem: Problem) -> str:
    """Return the affected objects of a problem, the first of them by name."""
    return name_some(problem.objects, _MAX_LISTED)
