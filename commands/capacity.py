"""`caphv capacity`: what is free on Harvester."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commands.options.clusters import InputError, Step
from commands.options.harvesters import (
    harvester_clients,
    harvester_namespace_options,
    harvester_option,
    insecure_option,
)
from commands.options.management import management_client, management_options, patient_progress, print_data, run

if TYPE_CHECKING:
    from overview.capacity import Capacity
    from overview.objects import Unseen


@click.command(
    short_help="Show what is free on Harvester: hosts, zones, addresses, quotas, storage.",
    epilog="""\b
Examples:
  caphv capacity
  caphv capacity -n team-a --hosts
  caphv capacity --harvester-kubeconfig harvester.yaml     with an administrator's rights
  caphv capacity -o json | jq '.items[].pools[] | select(.free < 5)'

\b
Exit status: 0 shown, 2 no Harvester can be read.
""",
)
@harvester_namespace_options
@harvester_option
@click.option("--hosts", is_flag=True, help="Show each host.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@insecure_option
@management_options
def capacity(**flags: Any) -> None:
    """Show what is free on each Harvester that clusters use.

    CPU and memory count by the requests of all Pods, VMs of other namespaces included, as the scheduler counts them. A
    Harvester whose hosts do not report them shows only VMs that the identity may see, and says so. Quotas and storage
    need an administrator's kubeconfig.
    """
    with patient_progress() as step:
        found, hidden = run(_read(flags, step))
    from commands.output import capacity as out

    if flags["output"] == "text":
        out.show(found, hosts=flags["hosts"])
    else:
        print_data(tuple(found), flags["output"])
    out.show_unseen(hidden)


async def _read(flags: dict[str, Any], step: Step) -> tuple[list[Capacity], list[Unseen]]:
    from caphv.runtime.errors import ApiError, Unreachable
    from overview.capacity import capacity_of
    from overview.capacityreader import read_capacity
    from overview.reader import unseen

    found, hidden = [], []
    async with management_client(flags) as management, harvester_clients(management, flags) as (harvesters, errors):
        hidden += errors
        for harvester in harvesters:
            step(f"reading {harvester.client.server}")
            try:
                objects = await read_capacity(harvester.client, harvester.namespaces)
            except (ApiError, Unreachable) as error:
                hidden.append(unseen(f"Harvester {harvester.client.server}", error))
                continue
            found.append(capacity_of(objects))
            hidden += objects.harvester.unseen
    if not found:
        raise InputError("; ".join(["no Harvester can be read", *map(str, hidden)]))
    return found, hidden
