"""Share options, comparison and exit status between the commands of `caphv bundles`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.access.clusters import SelectedClusters, read_clusters
from commands.access.repository import names_repository, open_store
from commands.options.charts import ChartOptions, chart_options, rendering
from commands.options.clusters import ClusterOptions
from commands.options.groups import with_options
from commands.options.repository import RepositoryOptions
from commands.output.progress import Step, progress

if TYPE_CHECKING:
    from packager.contents.diff import ClusterDiff
    from packager.git.pruning import Pruning
    from packager.git.snapshot import Snapshot
    from packager.rendering.bundler import Batch, Bundler

_Command = TypeVar("_Command", bound=Callable[..., Any])

DONE = 0
DIFFERENT = 1
UNREADABLE = 2
# A budget of removals that no repository reaches.
EVERYTHING = 1_000_000


@dataclass(frozen=True, kw_only=True)
class RenderOptions(ChartOptions):
    """The options of `render_options` for rendering bundles."""

    force: bool


@dataclass(frozen=True, kw_only=True)
class BundleOptions(ClusterOptions, RenderOptions, RepositoryOptions):
    """Options for clusters, for the rendering and repository of bundles, and for the output."""

    output: str


def render_options(command: _Command) -> _Command:
    """Add the options for rendering bundles."""
    return with_options(
        command,
        click.option(
            "--force",
            is_flag=True,
            help=(
                "Allow changes of the CNI, its encapsulation and networks, which break running "
                "clusters."
            ),
        ),
        chart_options,
    )


PARTIAL = click.option(
    "--partial", is_flag=True, help="Ignore clusters that are only in the repository."
)

PRUNE = click.option(
    "--prune",
    is_flag=True,
    help=(
        "Remove the bundles of clusters that were not given; with --namespace, only in "
        "that namespace."
    ),
)


def bundler_of(options: RenderOptions, step: Step) -> Bundler:
    """Return a bundler with the options of `render_options`, which reports progress."""
    from packager.rendering.bundler import Bundler

    try:
        return Bundler(
            rendering(options, force=options.force),
            report=lambda done, total: step(f"rendering cluster {done + 1} of {total}"),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@contextlib.contextmanager
def rendered_clusters(
    options: BundleOptions, step: Step
) -> Iterator[tuple[SelectedClusters, Batch, Snapshot | None]]:
    """Read clusters, and render their bundles with what the repository pins.

    Yields also the repository, from which files are read in the block; None without one.
    """
    selected = read_clusters(options, step)
    bundler = bundler_of(options, step)
    snapshot = None
    with contextlib.ExitStack() as stack:
        if names_repository(options):
            snapshot = stack.enter_context(open_store(options)).sync()
        yield (
            selected,
            bundler.render(selected.clusters, snapshot.tree if snapshot else {}),
            snapshot,
        )


def release_of(bundler: Bundler, name: str) -> Any:
    """Return the release of a name, or the newest release without a name."""
    try:
        return bundler.renderer.table.release(name) if name else bundler.renderer.table.newest
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--release") from None


@dataclass(frozen=True)
class Comparison:
    """The rendered bundles of clusters, and how they differ from the content of a repository."""

    selected: SelectedClusters
    batch: Batch
    differences: list[ClusterDiff]

    def finish(self) -> None:
        """Print all problems, and exit."""
        is_current = all(difference.is_current for difference in self.differences)
        finish(self.selected, self.batch, different=not is_current)


def compare(options: BundleOptions, *, with_others: bool) -> Comparison:
    """Read clusters and a repository, and compare the rendered bundles with its content.

    `with_others` reports the bundles of clusters that only the repository has as extra.
    """
    from packager.contents.diff import diff_clusters
    from packager.planning.planner import Planner
    from packager.planning.state import ManagementState

    with progress() as step:
        selected = read_clusters(options, step)
        bundler = bundler_of(options, step)

        def compare_with(snapshot: Snapshot) -> Comparison:
            # Clusters that were left out by a selector, or that could not be read, also are only in
            # the repository. Nothing tells them from extra ones, so none is reported.
            may_miss_clusters = selected.has_selector or selected.input.unreadable
            pruning = pruning_of(
                selected, snapshot, EVERYTHING, with_others=with_others and not may_miss_clusters
            )
            state = ManagementState(selected.clusters, live=False, pruning=pruning)
            planned = Planner(bundler).plan(snapshot, state)
            differences = diff_clusters(planned.batch, planned.plan, snapshot)
            return Comparison(selected, planned.batch, differences)

        with open_store(options) as store:
            step("reading the repository")
            return store.read(compare_with)


def pruning_of(
    selected: SelectedClusters, snapshot: Snapshot, budget: int, *, with_others: bool
) -> Pruning:
    """Return the bundles that may be removed: those of the selected clusters that are obsolete.

    `with_others` adds the bundles of all other clusters in the repository, or in the namespace to
    which the selection is limited.
    """
    from packager.git.pruning import Pruning
    from packager.tree import CLUSTERS

    # A scope of None is the whole repository.
    scope: set[str] | None = None
    if not with_others:
        scope = {f"{CLUSTERS}/{facts.key}" for facts in selected.clusters}
    elif selected.namespace:
        top = f"{CLUSTERS}/{selected.namespace}"
        scope = {f"{top}/{name}" for name in snapshot.entries(top)}
    return Pruning(complete=not selected.input.unreadable, budget=budget, scope=scope)


def finish(selected: SelectedClusters, batch: Batch, *, different: bool = False) -> None:
    """Print all problems, and exit."""
    from commands.output import bundles as out

    for line in out.problems(selected, batch):
        click.echo(f"caphv bundles: {line}", err=True)
    sys.exit(exit_status(selected, is_different=different or bool(batch.failed)))


def exit_status(selected: SelectedClusters, *, is_different: bool) -> int:
    """Return the exit status; input that could not be read takes precedence."""
    if selected.input.unreadable:
        return UNREADABLE
    return DIFFERENT if is_different else DONE
