"""`caphv status`: a line for each cluster, and for whatever is wrong the cause and the next step."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from commands.options.clusters import InputError, Step
from commands.options.management import (
    Selection,
    management_client,
    management_options,
    namespace_options,
    patient_progress,
    run,
    selection,
)

if TYPE_CHECKING:
    from overview.model import Overview


@click.command(
    short_help="Show clusters, what is wrong with them, and what to do.",
    epilog="""\b
Examples:
  caphv status                          clusters of the current namespace
  caphv status -A                       all clusters
  caphv status production -n team-a     one of them
  caphv status -A -o json | jq '.clusters[] | select(.wrong)'

\b
Exit status: 0 nothing is wrong, 1 something is, 2 the management cluster cannot be read.
""",
)
@click.argument("clusters", metavar="[CLUSTER]...", nargs=-1)
@namespace_options
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@management_options
def status(clusters: tuple[str, ...], **flags: Any) -> None:
    """Show a line for each cluster on Harvester, and for whatever is wrong the cause and the next step.

    CLUSTER is a name, or NAMESPACE/NAME. Everything is read with your kubeconfig and your rights; what you may not read
    is named on standard error.
    """
    chosen = selection(clusters, flags)
    with patient_progress() as step:
        found = run(_read(flags, chosen, step))
    _write(found, chosen, flags)
    sys.exit(1 if found.wrong else 0)


async def _read(flags: dict[str, Any], chosen: Selection, step: Step) -> Overview:
    from datetime import UTC, datetime

    from overview.assembly import overview_of
    from overview.reader import read_management

    async with management_client(flags) as client:
        objects = await read_management(client, chosen.namespace, step)
    return choose(overview_of(objects, datetime.now(UTC)), chosen)


def choose(found: Overview, chosen: Selection) -> Overview:
    """Keep the clusters that are meant. Raises `InputError` when one of them does not exist."""
    missing = chosen.missing({cluster.key for cluster in found.clusters})
    if missing:
        raise InputError(f"no such cluster on Harvester: {', '.join(missing)}")
    return replace(found, clusters=tuple(cluster for cluster in found.clusters if chosen.takes(cluster.key)))


def _write(found: Overview, chosen: Selection, flags: dict[str, Any]) -> None:
    from commands.output import overview as out
    from overview.model import as_json

    if flags["output"] == "text":
        if not found.clusters:
            where = f"in namespace {chosen.namespace}; all namespaces: -A" if chosen.namespace else "here"
            click.echo(f"No clusters on Harvester {where}", err=True)
        else:
            out.show(out.console(), found, with_namespace=not chosen.namespace)
    elif flags["output"] == "json":
        click.echo(json.dumps(as_json(found), indent=2, ensure_ascii=False))
    else:
        import yaml

        click.echo(yaml.safe_dump(as_json(found), sort_keys=False, allow_unicode=True), nl=False)
    out.show_unseen(found)
