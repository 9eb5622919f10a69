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
@click.option(
    "--deep/--no-deep",
    default=True,
    show_default=True,
    help="Ask Harvester and the workload cluster, too.",
)
@click.option(
    "--conditions",
    is_flag=True,
    help="Show all conditions, not only those that say something is wrong.",
)
@output_option()
@insecure_option
@management_options
@fill(scope=ScopeOptions)
def tree(
    clusters: tuple[str, ...], *, deep: bool, conditions: bool, output: str, scope: ScopeOptions
) -> None:
    """Show a cluster with its machines, VMs, hosts, disks, addresses, Nodes and bundles, with ages
    and conditions.

    Harvester and the workload cluster are read with the credentials in Secrets that you may read.
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
