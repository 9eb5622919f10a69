"""`caphv bundles images`: what a mirror has to hold."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import click

from commands.bundles.check import CheckOptions, charts_options, open_checker
from commands.bundles.common import exit_status, render_options, rendered_clusters
from commands.options.clusters import cluster_options
from commands.options.formats import DATA_FORMATS, output_option
from commands.options.groups import fill
from commands.options.repository import repository_options
from commands.output.echo import echo
from commands.output.progress import progress


@click.command(
    short_help="List charts and images for a mirror.",
    epilog="""\b
Examples:
  caphv bundles images clusters/ --charts charts/                 charts and their images
  caphv bundles images clusters/ --fetch -o images > images.txt   one image per line, for skopeo \
or crane
  caphv bundles images -o charts --repo https://git.example.com/fleet.git
                                       charts in the versions that the repository pins

Exit status: 0 done, 1 images of a chart are unknown, or clusters cannot be rendered, 2 usage
error, unreadable input, or no helm.
""",
)
@cluster_options
@render_options
@repository_options
@charts_options
@output_option(*DATA_FORMATS, "images", "charts")
@fill(options=CheckOptions)
def images(options: CheckOptions) -> None:
    """List the charts and images of clusters, for the mirror of an air-gapped site.

    The images are those of rendered charts (--charts, --fetch), or of the documented values of a
    chart that renders none. They have the names of their origin, without the registry of the site.
    Images of Kubernetes itself are not included.
    """
    from commands.output import bundles as out
    from commands.output.bundle_checks import IMAGES
    from packager.checks.check import Checker
    from packager.checks.images import charts_of

    needs_charts = options.output != "charts"
    with (
        progress() as step,
        rendered_clusters(options, step) as (selected, batch, _),
        open_checker(options) if needs_charts else nullcontext(Checker(None, None)) as checker,
    ):
        step("reading charts")
        charts = charts_of(
            [
                (result.tree, result.settings)
                for result in batch.rendered
                if result.ok and result.settings
            ],
            checker,
        )
    click.echo(IMAGES[options.output](charts), nl=False)
    for chart in charts:
        if needs_charts and not chart.source:
            reason = chart.fault or "use --charts or --fetch"
            echo(f"caphv bundles: images of {chart.chart} are unknown: {reason}", err=True)
    for line in out.problems(selected, batch):
        click.echo(f"caphv bundles: {line}", err=True)
    unknown = needs_charts and not all(chart.source for chart in charts)
    sys.exit(exit_status(selected, is_different=bool(unknown or batch.failed)))
