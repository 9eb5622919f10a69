"""`caphv tree`: a cluster with all that belongs to it, down to the disks on Harvester and the Nodes."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import click

from commands.options.harvesters import insecure_option
from commands.options.management import (
    clusters_argument,
    management_options,
    namespace_options,
    patient_progress,
    print_data,
    read_overview,
    selection,
)


@click.command(
    short_help="Show all that belongs to a cluster.",
    epilog="""\b
Examples:
  caphv tree production -n team-a
  caphv tree team-a/production --conditions
  caphv tree production --no-deep       without asking Harvester and the cluster itself

\b
Exit status: 0 nothing is wrong, 1 something is, 2 the management cluster cannot be read.
""",
)
@clusters_argument(required=True)
@namespace_options
@click.option("--deep/--no-deep", default=True, show_default=True, help="Ask Harvester and the workload cluster, too.")
@click.option("--conditions", is_flag=True, help="Show all conditions, not only those that say something is wrong.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@insecure_option
@management_options
def tree(clusters: tuple[str, ...], **flags: Any) -> None:
    """Show a cluster with its machines, VMs, hosts, disks, addresses, Nodes and bundles, with ages and conditions.

    Harvester and the workload cluster are read with the credentials in Secrets that you may read.
    """
    chosen = selection(clusters, flags)
    with patient_progress() as step:
        found = read_overview(flags, chosen, step, deep=flags["deep"]).overview
    from commands.output import overview
    from commands.output import tree as out

    if flags["output"] == "text":
        now = datetime.now(UTC)
        overview.show_provider(overview.console(), found, now)
        overview.show_causes(overview.console(), found, now)
        out.show(overview.console(), found.clusters, conditions=flags["conditions"])
    else:
        print_data(found, flags["output"])
    overview.show_unseen(found)
    sys.exit(1 if found.wrong else 0)
