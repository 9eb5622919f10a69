"""`caphv tree`: a cluster with all that belongs to it, down to disks on Harvester and Nodes."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from commands.access.management import read_overview
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.harvesters import insecure_option
from commands.options.management import (
    ScopeOptions,
    clusters_argument,
    management_options,
    namespace_options,
    selection,
)
from commands.output.data import fields_of, print_data
from commands.output.progress import patient_progress


@click.command(
    short_help="Show a cluster with its machines, VMs, disks and Nodes.",
    epilog="""\b
Examples:
  caphv tree production -n team-a
  caphv tree team-a/production --conditions
  caphv tree production --no-deep       only the management cluster

Exit status: 0 no problem, 1 a problem, 2 the management cluster cannot be read.
""",
)
@clusters_argument(required=True)
@namespace_options
@click.option(
    "--deep/--no-deep",
    default=True,
    show_default=True,
    help="Also read from Harvester and the workload cluster.",
)
@click.option(
    "--conditions",
    is_flag=True,
    help="Show all conditions, not only those that report a problem.",
)
@output_option()
@insecure_option
@management_options
@fill(scope=ScopeOptions)
def tree(
    clusters: tuple[str, ...], *, deep: bool, conditions: bool, output: str, scope: ScopeOptions
) -> None:
    """Show clusters with their machines, VMs, hosts, disks, addresses, Nodes and bundles, with ages
    and conditions.

    The command reads from Harvester and the workload cluster with the credentials in Secrets that
    you may read.
    """
    chosen = selection(clusters, scope)
    with patient_progress() as step:
        overview = read_overview(scope, chosen, step, deep=deep).overview

    # Imported on demand, to keep help fast.
    from commands.output import overview as out
    from commands.output import tree as out_tree

    if output == "text":
        now = datetime.now(UTC)
        out.show_provider(out.console(), overview, now)
        out.show_causes(out.console(), overview, now)
        out_tree.show(out.console(), overview.clusters, conditions=conditions)
    else:
        print_data(output, **fields_of(overview, items="clusters"))
    out.show_unseen(overview)
    sys.exit(1 if overview.wrong else 0)
