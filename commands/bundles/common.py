"""What the commands of `caphv bundles` have in common: how they render, what they compare with, and how they end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.options.clusters import SelectedClusters, Step, progress, read_clusters
from commands.options.repository import open_store

if TYPE_CHECKING:
    from packager.bundler import Batch, Packager
    from packager.git.prune import Pruning
    from packager.git.snapshot import Snapshot

_Command = TypeVar("_Command", bound=Callable[..., Any])

DONE, DIFFERENT, UNREADABLE = 0, 1, 2
EVERYTHING = 1_000_000


def render_options(command: _Command) -> _Command:
    """Add the options that say how bundles are rendered."""
    for add in (
        click.option(
            "--force", is_flag=True, help="Allow changes of CNI, encapsulation and networks that break a live cluster."
        ),
        click.option("--chart-repo", default="", metavar="URL", help="Mirror of all charts, https://… or oci://…."),
        click.option(
            "--templates",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Folder with templates over the shipped ones.",
        ),
    ):
        command = add(command)
    return command


def output(*formats: str) -> Callable[[_Command], _Command]:
    """Return the option that chooses a form of the output; the first one is the default."""
    return click.option("-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True)


PARTIAL = click.option("--partial", is_flag=True, help="Say nothing of clusters that are only in the repository.")


def packager_of(flags: dict[str, Any], step: Step) -> Packager:
    """Return a packager with the options of `render_options`, which tells what it renders."""
    from packager.bundler import Packager
    from packager.rendering.renderer import Options

    options = Options(flags["templates"], flags["chart_repo"], flags["force"])
    try:
        return Packager(options, report=lambda done, whole: step(f"rendering cluster {done + 1} of {whole}"))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def release_of(packager: Packager, name: str) -> Any:
    """Return the set of versions of a name, the newest one without."""
    try:
        return packager.renderer.table.release(name) if name else packager.renderer.table.newest
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--release") from None


def compare(flags: dict[str, Any]) -> tuple[SelectedClusters, Batch, list[Any]]:
    """Read clusters and a repository, and compare what clusters should have with what it holds."""
    from packager.diff import compared

    with progress() as step:
        given = read_clusters(flags, step)
        packager = packager_of(flags, step)
        with open_store(flags) as store:
            step("reading the repository")
            snapshot = store.sync()
            whole = not (flags["partial"] or given.selected or given.input.unreadable)
            pruning = pruning_of(given, snapshot, EVERYTHING, whole=whole)
            batch, plan = packager.plan(given.clusters, snapshot, pruning)
            found = compared(batch, plan, snapshot)
    return given, batch, found


def pruning_of(given: SelectedClusters, snapshot: Snapshot, budget: int, *, whole: bool) -> Pruning:
    """Return what may be removed: with `whole`, clusters that were not given, as far as they should have been."""
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
    """Tell what went wrong, and end."""
    from commands.output import bundles as out

    for line in out.problems(given, batch):
        click.echo(f"caphv bundles: {line}", err=True)
    sys.exit(UNREADABLE if given.input.unreadable else DIFFERENT if different or batch.failed else DONE)
