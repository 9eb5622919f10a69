"""How clusters look on a terminal and in a pipe: a line a cluster, and below it what is wrong and what to do."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from caphv.api.counting import counted
from commands.output.text import Text
from overview.causes import own_problems
from overview.model import Cluster, Machine, Overview, Problem, Replicas, Severity, State

STATE_STYLES = {
    State.AVAILABLE: "green",
    State.PROGRESSING: "cyan",
    State.DEGRADED: "yellow",
    State.UNREACHABLE: "bold yellow",
    State.FAILED: "bold red",
    State.PAUSED: "magenta",
    State.DELETING: "cyan",
}
_MARKS = {
    Severity.ERROR: ("✗", "red"),
    Severity.WARNING: ("!", "yellow"),
    Severity.WAITING: ("…", "cyan"),
    Severity.NOTE: ("·", "dim"),
}
_PIPE_WIDTH = 10_000
_NAMED = 3


def console() -> Console:
    """A console on standard output: as wide as the terminal; without one, lines are never broken and have no colour."""
    if sys.stdout.isatty():
        return Console(highlight=False, soft_wrap=False)
    return Console(highlight=False, no_color=True, width=_PIPE_WIDTH, emoji=False)


def show(out: Console, overview: Overview, *, with_namespace: bool, now: datetime | None = None) -> None:
    """Write a line for each cluster, with what is wrong, and what may not be seen."""
    now = now or datetime.now(UTC)
    wide = out.width >= 110 and out.is_terminal
    columns = _columns(overview.clusters, with_namespace=with_namespace, wide=wide, now=now)
    for text, cluster in zip(columns, (None, *overview.clusters), strict=True):
        out.print(text, no_wrap=True, overflow="ellipsis", crop=True)
        for problem in own_problems(cluster, overview.causes) if cluster else ():
            _show_problem(out, problem, now)
    if len(overview.clusters) > 1 and out.is_terminal:
        out.print(Text(summary(overview.clusters), style="dim"))


def show_provider(out: Console, overview: Overview, now: datetime) -> None:
    """Say first if no provider is at work: all that follows may be outdated."""
    provider = overview.provider
    if provider is None or not provider.silent:
        return
    out.print(
        Text.assemble(("✗ ", "red"), ("provider", "bold"), f": {provider.cause}", f"  ({age(provider.since, now)})")
    )
    out.print(Text.assemble(("→ ", "dim"), provider.next_step))


def show_causes(out: Console, overview: Overview, now: datetime) -> None:
    """Say what several clusters have in common once, before the clusters."""
    for cause in overview.causes:
        mark, style = _MARKS[cause.severity]
        since = age(cause.since, now)
        out.print(
            Text.assemble(
                (f"{mark} ", style), (cause.subject, "bold"), f": {cause.cause}", f"  ({since})" if since else ""
            )
        )
        out.print(Text(f"  concerns {counted(len(cause.clusters), 'cluster')}: {some(cause.clusters)}"))
        out.print(Text.assemble(("→ ", "dim"), cause.next_step))


def show_unseen(overview: Overview) -> None:
    """Say on standard error what could not be read, so that it is not taken for absent."""
    errors = Console(stderr=True, highlight=False)
    for what in overview.unseen:
        errors.print(Text(f"not seen: {what}", style="yellow"), soft_wrap=True)


def summary(clusters: Iterable[Cluster]) -> str:
    """Count clusters by state."""
    numbers = Counter(cluster.state for cluster in clusters)
    parts = [f"{numbers[state]} {state.lower()}" for state in State if numbers[state]]
    return f"{counted(sum(numbers.values()), 'cluster')}: {', '.join(parts)}"


def age(since: str, now: datetime) -> str:
    """Time since a moment, as kubectl writes it: 45s, 12m, 5h, 3d."""
    try:
        seconds = max(0, int((now - datetime.fromisoformat(since)).total_seconds()))
    except ValueError:
        return ""
    for unit, size, least in (("d", 86400, 2), ("h", 3600, 2), ("m", 60, 2)):
        if seconds >= size * least:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def version_text(cluster: Cluster) -> str:
    """Version that the cluster has; while machines differ, from which to which."""
    wanted = cluster.version or (cluster.versions[-1] if cluster.versions else "")
    others = [version for version in cluster.versions if version != wanted]
    if not others:
        return wanted
    return f"{others[0].partition('+')[0]} → {wanted.partition('+')[0]}"


def machine_state(machine: Machine) -> str:
    """One word for a machine."""
    if machine.deleting:
        return "Deleting"
    return "Ready" if machine.ready else machine.phase or "Pending"


def _columns(clusters: Sequence[Cluster], *, with_namespace: bool, wide: bool, now: datetime) -> list[Text]:
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
        rows = [[Text(cluster.namespace), *row] for row, cluster in zip(rows, clusters, strict=True)]
    table = [[Text(name, style="dim") for name in header], *rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(*table, strict=True)]
    return [row(cells, widths) for cells in table]


def row(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    """Put cells into columns of these widths."""
    line = Text()
    for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        line.append_text(cell)
        if index < len(cells) - 1:
            line.append(" " * (width - cell.cell_len + 2))
    line.rstrip()
    return line


def _replicas(replicas: Replicas) -> Text:
    style = "" if replicas.complete else "cyan" if replicas.available == replicas.desired else "yellow"
    return Text(str(replicas), style=style)


def _show_problem(out: Console, problem: Problem, now: datetime) -> None:
    mark, style = _MARKS[problem.severity]
    since = age(problem.since, now)
    cause = Text.assemble((who(problem), "bold"), ": ", problem.cause, (f"  ({since})" if since else "", "dim"))
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(mark, style=style), cause)
    if problem.severity is not Severity.WAITING:
        grid.add_row(Text("→", style="dim"), Text(problem.next_step))
    if out.is_terminal:
        out.print(Padding(grid, (0, 0, 0, 2)))
        return
    out.print(Text(f"  {mark} {cause.plain}"))
    if problem.severity is not Severity.WAITING:
        out.print(Text(f"    {problem.next_step}"))


def who(problem: Problem) -> str:
    """Objects that a problem concerns, not more than a few by name."""
    return some(problem.objects)


def some(names: Sequence[str]) -> str:
    """Name a few, and count the rest."""
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
