"""`caphv bundles images`: what a mirror has to hold."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from commands.bundles.check import charts_options, open_checker
from commands.bundles.common import DIFFERENT, DONE, UNREADABLE, bundler_of, output, render_options
from commands.options.clusters import cluster_options, progress, read_clusters
from commands.options.repository import names_repository, open_store, repository_options
from commands.output.echo import echo


@click.command(
    short_help="List charts and images for a mirror.",
    epilog="""\b
Examples:
  caphv bundles images clusters/ --charts charts/                 charts, and their images
  caphv bundles images clusters/ --fetch -o images > images.txt   one image per line, for skopeo or crane
  caphv bundles images -o charts --repo https://git.example.com/fleet.git
                                       charts in the versions that the repository pins

\b
Exit status: 0 done, 1 images of a chart are unknown, or clusters cannot be rendered, 2 unreadable input, wrong usage,
or no helm.
""",
)
@cluster_options
@render_options
@repository_options
@charts_options
@output("table", "images", "charts", "json", "yaml")
def images(**flags: Any) -> None:
    """List the charts of clusters and the images in them, as a mirror of an air-gapped site needs them.

    Images are those of rendered charts (--charts, --fetch), or of their documented values if a chart renders none. They
    are named as at their origin, without the registry of the site. Images of Kubernetes itself are not among them.
    """
    from commands.output import bundles as out
    from commands.output.checks import IMAGES
    from packager.checks.check import Checker
    from packager.checks.images import charts_of

    with progress() as step:
        given = read_clusters(flags, step)
        bundler = bundler_of(flags, step)
        with contextlib.ExitStack() as stack:
            snapshot = stack.enter_context(open_store(flags)).sync() if names_repository(flags) else None
            batch = bundler.render(given.clusters, snapshot.tree if snapshot else {})
            needs_charts = flags["output"] != "charts"
            checker = stack.enter_context(open_checker(flags)) if needs_charts else Checker(None, None)
            step("reading charts")
            found = charts_of([(one.tree, one.settings) for one in batch.rendered if one.ok and one.settings], checker)
    click.echo(IMAGES[flags["output"]](found), nl=False)
    for one in found:
        if flags["output"] != "charts" and not one.source:
            reason = one.fault or "use --charts or --fetch"
            echo(f"caphv bundles: images of {one.chart} are unknown: {reason}", err=True)
    for line in out.problems(given, batch):
        click.echo(f"caphv bundles: {line}", err=True)
    unknown = flags["output"] != "charts" and not all(one.source for one in found)
    sys.exit(UNREADABLE if given.input.unreadable else DIFFERENT if unknown or batch.failed else DONE)
