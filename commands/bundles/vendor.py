"""`caphv bundles vendor`: charts in the repository, so that Fleet downloads none."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from commands.bundles.check import charts_options, open_checker
from commands.bundles.common import DIFFERENT, DONE, UNREADABLE, bundler_of, output, render_options
from commands.options.clusters import InputError, cluster_options, progress, read_clusters
from commands.options.repository import commit_options, open_store, repository_options

if TYPE_CHECKING:
    from packager.bundler import Batch
    from packager.checks.check import Checker
    from packager.rendering.vendored import VendoredChart


@click.command(
    short_help="Commit charts, so that Fleet downloads none.",
    epilog="""\b
Examples:
  caphv bundles vendor clusters/ --fetch --repo https://git.example.com/fleet.git
  caphv bundles vendor clusters/ --charts charts/ --folder fleet/

\b
Exit status: 0 done or nothing to do, 1 a chart is not available, or clusters cannot be rendered, 2 unreadable input,
wrong usage, or no helm.
""",
)
@cluster_options
@render_options
@repository_options
@charts_options
@commit_options
@output("table", "json", "yaml")
def vendor(**flags: Any) -> None:
    """Commit the charts that Fleet installs in the given clusters, once for all clusters, with their digests.

    The next push, or the packager, then copies them into the bundles instead of the addresses of charts. Charts that
    were vendored before stay as they are.
    """
    from commands.output import bundles as out
    from packager.git.commit import Reason
    from packager.git.prune import Pruning
    from packager.git.publish import changes
    from packager.rendering import vendored

    if not (flags["charts"] or flags["fetch"] or flags["chart_repo"]):
        raise click.UsageError("name the source of charts: --charts FOLDER, or --fetch")
    with progress() as step:
        given = read_clusters(flags, step)
        if not given.clusters and not given.input.unreadable:
            raise InputError(
                "no Cluster was given: of ClusterDefinitions, give the manifests that caphv packager sync commits"
            )
        bundler = bundler_of(flags, step)
        # A vendored chart may have any version: Fleet does not download it.
        bundler.renderer.table = replace(bundler.renderer.table, known={})
        with open_store(flags) as store, open_checker(flags) as checker:
            snapshot = store.sync()
            batch = bundler.render(given.clusters, snapshot.tree)
            step("reading charts")
            found, missing = _charts(batch, checker)

            def plan(now: Any) -> Any:
                charts = {**found, **vendored.read(now.tree)}
                # Without charts there is nothing to list: an empty index is no reason for a commit.
                wanted = vendored.folder_of(charts.values()) if charts else {}
                return changes(now, wanted, Pruning(complete=False, budget=0))

            try:
                reason = flags["message"] or "Vendor charts, so that Fleet downloads none."
                result = store.commit(plan, Reason(reason))
            except ValueError as error:
                raise InputError(str(error)) from None
    click.echo(out.PUSHED[flags["output"]](result), nl=False, color=out.colour())
    for line in (*(f"{name}: not available" for name in missing), *out.problems(given, batch)):
        click.echo(f"caphv bundles: {line}", err=True)
    sys.exit(UNREADABLE if given.input.unreadable else DIFFERENT if missing or batch.failed else DONE)


def _charts(batch: Batch, checker: Checker) -> tuple[dict[tuple[str, str], VendoredChart], list[str]]:
    """Return the charts that Fleet installs, and the names of those that are not available. Raises InputError."""
    from packager.checks.charts import files_of
    from packager.checks.contents import bundles_of
    from packager.checks.helm import HelmError
    from packager.rendering.vendored import VendoredChart

    releases = [
        release
        for result in batch.rendered
        for bundle in bundles_of(result.tree)
        for release in bundle.releases
        if release.by_fleet and release.chart.repo
    ]
    found, missing = {}, []
    for release in sorted({release.chart: release for release in releases}.values(), key=lambda one: str(one.chart)):
        ref = release.chart
        try:
            chart = checker.find(release)
            if chart is None:
                missing.append(str(ref))
                continue
            found[ref.name, ref.version] = VendoredChart(ref.name, ref.version, ref.repo, files_of(chart))
        except HelmError as error:
            raise InputError(f"{ref}: {error}") from None
    return found, missing
