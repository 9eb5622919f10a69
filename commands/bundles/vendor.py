"""`caphv bundles vendor`: charts in the repository, so that Fleet downloads none."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from commands.access.clusters import read_clusters
from commands.access.repository import open_store
from commands.bundles.check import CheckOptions, charts_options, open_checker
from commands.bundles.common import bundler_of, exit_status, render_options
from commands.errors import InputError
from commands.options.clusters import cluster_options
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.repository import commit_options, repository_options
from commands.output.progress import progress

if TYPE_CHECKING:
    from packager.checks.check import Checker
    from packager.rendering.bundler import Batch
    from packager.rendering.vendored import VendoredChart


@click.command(
    short_help="Commit charts, so that Fleet downloads none.",
    epilog="""\b
Examples:
  caphv bundles vendor clusters/ --fetch --repo https://git.example.com/fleet.git
  caphv bundles vendor clusters/ --charts charts/ --folder fleet/

Exit status: 0 done or nothing to do, 1 a chart is not available, or clusters cannot be rendered,
2 usage error, unreadable input, or no helm.
""",
)
@cluster_options
@render_options
@repository_options
@charts_options
@commit_options
@output_option()
@fill(options=CheckOptions)
def vendor(options: CheckOptions) -> None:
    """Commit the charts that Fleet installs in the given clusters, once for all clusters, with
    their digests.

    The next push, or the packager, then copies the charts into the bundles, so that Fleet downloads
    none. Charts that were vendored before stay unchanged.
    """
    from commands.output import bundles as out
    from packager.contents.folders import compare_folders
    from packager.git.commit import Reason
    from packager.git.pruning import Pruning
    from packager.rendering import vendored

    if not (options.charts or options.fetch or options.chart_repo):
        raise click.UsageError("name the source of charts: --charts DIRECTORY, or --fetch")
    with progress() as step:
        selected = read_clusters(options, step)
        if not selected.clusters and not selected.input.unreadable:
            raise InputError(
                "no Cluster was given: instead of ClusterDefinitions, pass the manifests that "
                "`caphv packager sync` commits"
            )
        bundler = bundler_of(options, step)
        # A vendored chart may have any version, because Fleet does not download it.
        bundler.renderer.table = replace(bundler.renderer.table, known={})
        with open_store(options) as store, open_checker(options) as checker:
            snapshot = store.sync()
            batch = bundler.render(selected.clusters, snapshot.tree)
            step("reading charts")
            charts = _charts(batch, checker)

            def plan(current: Any) -> Any:
                all_charts = {**charts.available, **vendored.read(current.tree)}
                # Without charts, an empty index must not cause a commit.
                folder = vendored.folder_of(all_charts.values()) if all_charts else {}
                return compare_folders(current, folder, Pruning(complete=False, budget=0))

            try:
                reason = options.message or "Vendor charts, so that Fleet downloads none."
                result = store.commit(plan, Reason(reason))
            except ValueError as error:
                raise InputError(str(error)) from None
    click.echo(out.PUSHED[options.output](result), nl=False, color=out.colour())
    unavailable = [f"{name}: not available" for name in charts.missing]
    for line in (*unavailable, *out.problems(selected, batch)):
        click.echo(f"caphv bundles: {line}", err=True)
    sys.exit(exit_status(selected, is_different=bool(charts.missing or batch.failed)))


class _Charts(NamedTuple):
    """Available charts by name and version, and the names of unavailable charts."""

    available: dict[tuple[str, str], VendoredChart]
    missing: list[str]


def _charts(batch: Batch, checker: Checker) -> _Charts:
    """Return the charts that Fleet installs for the bundles. Raises `InputError`."""
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
    # Clusters share charts, and each chart is read only once.
    charts = {}
    missing = []
    for release in sorted(
        {release.chart: release for release in releases}.values(),
        key=lambda chart: str(chart.chart),
    ):
        ref = release.chart
        try:
            chart = checker.find(release)
            if chart is None:
                missing.append(str(ref))
                continue
            charts[ref.name, ref.version] = VendoredChart(
                name=ref.name, version=ref.version, repository=ref.repo, files=files_of(chart)
            )
        except HelmError as error:
            raise InputError(f"{ref}: {error}") from None
    return _Charts(charts, missing)
