"""`caphv bundles upgrade`: other versions of add-ons, at once or in waves that wait for Fleet."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from commands.access.clusters import SelectedClusters, read_clusters
from commands.access.repository import open_store
from commands.bundles import waves
from commands.bundles.common import bundler_of, finish, release_of, render_options
from commands.main import CONTEXT_SETTINGS
from commands.options.changes import timeout_option
from commands.options.clusters import cluster_options
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.repository import commit_options, prune_option, repository_options
from commands.output.progress import progress

if TYPE_CHECKING:
    from caphv.api.object import Key
    from packager.addons.facts import ClusterFacts
    from packager.addons.versions import Versions
    from packager.planning.commitplan import Store
    from packager.planning.state import ManagementState
    from packager.rendering.bundler import Batch, Bundler


@click.command(
    context_settings=CONTEXT_SETTINGS,
    short_help="Upgrade add-ons, at once or in waves.",
    epilog="""\b
Examples:
  caphv bundles upgrade -l wave=1 --repo https://git.example.com/fleet.git --dry-run
  caphv bundles upgrade -l wave=1 --repo https://git.example.com/fleet.git
  caphv bundles upgrade --count 10 --repo https://git.example.com/fleet.git --review caphv/upgrade
  caphv bundles upgrade --all --release 2026.12 --repo https://git.example.com/fleet.git
  caphv bundles upgrade --waves canary,10%,rest --gate ready=10m --repo \
https://git.example.com/fleet.git --wait
                        one commit a wave: first clusters with label caphv.io/wave=canary, then a \
tenth, then the rest
  caphv bundles upgrade --stop --repo https://git.example.com/fleet.git

Exit status: 0 done, requested or nothing to do, 1 clusters cannot be rendered, or the upgrade was
reverted or stopped, left clusters out or timed out, 2 usage error or unreadable input.
""",
)
@cluster_options
@render_options
@repository_options
@commit_options
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="NUMBER",
    help="Upgrade at most this many clusters, in order of namespace and name.",
)
@click.option("--all", "everything", is_flag=True, help="Upgrade all given clusters.")
@click.option(
    "--waves",
    default="",
    show_default=False,
    metavar="WAVES",
    help=(
        "Have the packager upgrade in several commits: values of label caphv.io/wave, "
        "numbers or percentages, such as canary,10%,rest. Needs --gate."
    ),
)
@click.option(
    "--gate",
    type=waves.Gate(),
    metavar="ready=DURATION",
    help=(
        "Time within which Fleet must report a wave ready, such as ready=10m. The next "
        "wave follows when it does; otherwise the wave is reverted."
    ),
)
@click.option(
    "--packager",
    default="",
    callback=waves.packager_name,
    show_default=False,
    metavar="NAME",
    help=(
        "Packager that upgrades, if it runs with --namespace or --watch-filter: the "
        "name of its Lease without .packager.caphv.io."
    ),
)
@click.option(
    "--wait",
    is_flag=True,
    help="With --waves: wait for the end of the upgrade, and show its progress.",
)
@timeout_option("2h", "Maximum time to wait with --wait, such as 90s, 45m or 2h.")
@click.option(
    "--stop",
    is_flag=True,
    help="Stop an upgrade in waves; clusters keep their current versions.",
)
@click.option(
    "--release",
    default="",
    metavar="RELEASE",
    help=(
        "Release of the bundles, which may be older than the current one.  [default: the newest]"
    ),
)
@click.option(
    "--dry-run", is_flag=True, help="Show the differences or the waves, and commit nothing."
)
@prune_option
@output_option()
@fill(options=waves.UpgradeOptions)
def upgrade(options: waves.UpgradeOptions) -> None:
    """Change the pinned versions of charts and templates.

    Select the clusters with --selector, --count, --waves or --all; others stay unchanged. No other
    command changes pinned versions.

    With --waves, the command commits caphv-upgrade.yaml, and the packager in the management cluster
    upgrades one wave after another. If Fleet does not report a wave ready in time, the packager
    reverts the wave in one commit and ends the upgrade. Run the command again to continue: it
    leaves out clusters that are already upgraded.
    """
    waves.check(options)
    if options.stop:
        sys.exit(waves.stop(options))
    if options.waves:
        sys.exit(waves.upgrade(options))
    if not (options.selector or options.count or options.everything):
        raise click.UsageError("select clusters with --selector, --count, --waves or --all")

    with progress() as step:
        selected = read_clusters(options, step)
        bundler = bundler_of(options, step)
        target = release_of(bundler, options.release)
        with open_store(options) as store:
            step("reading the repository")
            upgraded = _upgrade(options, selected, bundler, store, target)

    from commands.output import bundles as out

    click.echo(upgraded.text, nl=False, color=out.colour())
    click.echo(upgraded.summary, err=True)
    finish(selected, upgraded.batch, different=upgraded.is_partial)


@dataclass(frozen=True)
class _Upgraded:
    """The output and summary of an upgrade, its bundles, and whether some changes were refused."""

    text: str
    summary: str
    batch: Batch
    is_partial: bool


def _upgrade(
    options: waves.UpgradeOptions,
    selected: SelectedClusters,
    bundler: Bundler,
    store: Store,
    target: Versions,
) -> _Upgraded:
    """Upgrade the clusters, or with `--dry-run`, only compare their bundles."""
    from commands.output import bundles as out
    from packager.contents.diff import diff_clusters
    from packager.contents.inventory import wave
    from packager.git.commit import Reason
    from packager.planning.commitplan import commit_plan
    from packager.planning.planner import Planner

    snapshot = store.sync()
    chosen = wave(selected.clusters, snapshot.tree, target, options.count)
    pins = {facts.key: target for facts in chosen.chosen}
    state = _planner_state(options, selected, chosen.chosen, pins)

    if options.dry_run:
        planned = Planner(bundler).plan(snapshot, state)
        plan = planned.plan
        form = "diff" if options.output == "text" else options.output
        text = out.DIFFERENCES[form](diff_clusters(planned.batch, plan, snapshot))
    else:
        reason = Reason(options.message or f"Upgrade to release {target.release} of the bundles.")
        planned, result = commit_plan(store, Planner(bundler), state, reason=reason)
        text = out.PUSHED[options.output](result)
        plan = result.plan
    is_partial = bool(plan.held or plan.refused)
    return _Upgraded(text, out.wave(chosen, target), planned.batch, is_partial)


def _planner_state(
    options: waves.UpgradeOptions,
    selected: SelectedClusters,
    chosen: Iterable[ClusterFacts],
    pins: Mapping[Key, Versions],
) -> ManagementState:
    """Return the planner's input for an upgrade of these clusters only."""
    from packager.git.pruning import Pruning
    from packager.planning.state import ManagementState
    from packager.tree import CLUSTERS

    # Bundles of other clusters stay. Bundles that these clusters no longer have are removed.
    scope = {f"{CLUSTERS}/{key}" for key in pins}
    pruning = Pruning(complete=not selected.input.unreadable, budget=options.max_prune, scope=scope)
    return ManagementState(tuple(chosen), live=False, pruning=pruning, pins=pins)
