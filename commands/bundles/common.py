"""Shared by the commands of `caphv bundles`: options, comparison with a repository, and exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.options.charts import chart_options, rendering
from commands.options.clusters import SelectedClusters, Step, progress, read_clusters
from commands.options.repository import open_store

if TYPE_CHECKING:
    from packager.bundler import Batch, Bundler
    from packager.git.prune import Pruning
    from packager.git.snapshot import Snapshot

_Command = TypeVar("_Command", bound=Callable[..., Any])

DONE, DIFFERENT, UNREADABLE = 0, 1, 2
EVERYTHING = 1_000_000


def render_options(command: _Command) -> _Command:
    """Add the options for rendering bundles."""
    for add in (
        click.option(
            "--force",
            is_flag=True,
            help="Allow changes of CNI, encapsulation and networks that break a running cluster.",
        ),
        chart_options,
    ):
        command = add(command)
    return command


def output(*formats: str) -> Callable[[_Command], _Command]:
    """Return the option for the output format; the first format is the default."""
    return click.option("-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True)


PARTIAL = click.option("--partial", is_flag=True, help="Ignore clusters that are only in the repository.")

PRUNE = click.option(
    "--prune",
    is_flag=True,
    help="Remove bundles of clusters that were not given (in the namespace).",
)


def bundler_of(flags: dict[str, Any], step: Step) -> Bundler:
    """Return a bundler with the options of `render_options`, which reports progress."""
    from packager.bundler import Bundler

    try:
        return Bundler(
            rendering(flags, force=flags["force"]),
            report=lambda done, whole: step(f"rendering cluster {done + 1} of {whole}"),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def release_of(bundler: Bundler, name: str) -> Any:
    """Return the named release, without a name the newest one."""
    try:
        return bundler.renderer.table.release(name) if name else bundler.renderer.table.newest
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--release") from None


def compare(flags: dict[str, Any], *, whole: bool) -> tuple[SelectedClusters, Batch, list[Any], list[str]]:
    """Read clusters and a repository, and compare the rendered bundles with its content.

    With `whole`, all clusters are given: others in the repository are extra. The last result are branches of groups
    that do not follow the branch.
    """
    from packager.diff import diff_clusters
    from packager.planner import ManagementState, Planner

    with progress() as step:
        given = read_clusters(flags, step)
        bundler = bundler_of(flags, step)
        with open_store(flags) as store:
            step("reading the repository")
            snapshot = store.sync()
            whole = whole and not (given.selected or given.input.unreadable)
            pruning = pruning_of(given, snapshot, EVERYTHING, whole=whole)
            state = ManagementState(given.clusters, live=False, pruning=pruning)
            planned = Planner(bundler).plan(snapshot, state)
            found = diff_clusters(planned.batch, planned.plan, snapshot)
            stale = store.stale()
    return given, planned.batch, found, stale


def pruning_of(given: SelectedClusters, snapshot: Snapshot, budget: int, *, whole: bool) -> Pruning:
    """Return what may be removed: with `whole`, the bundles of clusters that are not among the given ones."""
    from packager.git.prune import Pruning
    from packager.tree import CLUSTERS

    if not whole:
        scope: set[str] | None = {f"{CLUSTERS}/{facts.key}" for facts in given.clusters}
    elif given.namespace:
        top = f"{CLUSTERS}/{given.namespace}"
        scope = {f"{top}/{name}" for name in snapshot.entries(top)}
    else:
        scope = None
    return Pruning(complete=not given.input.unreadable, budget=budget, scope=scope)


def finish(given: SelectedClusters, batch: Batch, *, different: bool = False) -> None:
    """Print all problems, and exit."""
    from commands.output import bundles as out

    for line in out.problems(given, batch):
        click.echo(f"caphv bundles: {line}", err=True)
    sys.exit(UNREADABLE if given.input.unreadable else DIFFERENT if different or batch.failed else DONE)
