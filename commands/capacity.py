"""`caphv capacity`: what is free on Harvester."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commands.access.harvesters import harvester_clients
from commands.access.management import management_client, run
from commands.errors import InputError
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.harvesters import (
    HarvesterOptions,
    harvester_namespace_options,
    harvester_option,
    insecure_option,
)
from commands.options.management import management_options
from commands.output.data import print_data
from commands.output.progress import Step, patient_progress

if TYPE_CHECKING:
    from operations.capacity.free import Capacity
    from operations.read.objects import Unseen


@click.command(
    short_help="Show the free capacity of Harvester.",
    epilog="""\b
Examples:
  caphv capacity
  caphv capacity -n team-a --hosts
  caphv capacity --harvester-kubeconfig harvester.yaml     with an administrator's rights
  caphv capacity -o json | jq '.items[].pools[] | select(.free < 5)'

Exit status: 0 done, 2 no Harvester can be read.
""",
)
@harvester_namespace_options
@harvester_option
@click.option("--hosts", is_flag=True, help="Also show each host.")
@output_option()
@insecure_option
@management_options
@fill(options=HarvesterOptions)
def capacity(*, hosts: bool, output: str, options: HarvesterOptions) -> None:
    """Show the free capacity of each Harvester that clusters use: hosts, zones, addresses, quotas
    and storage.

    CPU and memory are counted as the scheduler counts them: by the requests of all Pods, which
    include VMs of other namespaces. If hosts do not report them, the command counts only the VMs
    that the identity may see, and says so. Quotas and storage need an administrator's kubeconfig.
    """
    with patient_progress() as step:
        capacities, unseen = run(_read(options, step))

    from commands.output import capacity as out

    if output == "text":
        out.show(capacities, hosts=hosts)
    else:
        print_data(output, items=capacities, unseen=list(map(str, unseen)))
    out.show_unseen(unseen)


async def _read(options: HarvesterOptions, step: Step) -> tuple[list[Capacity], list[Unseen]]:
    """Return the capacity of each Harvester, and the parts that cannot be read.

    Raises `InputError` when no Harvester can be read.
    """
    from caphv.runtime.errors import RequestError
    from operations.capacity.free import capacity_of
    from operations.capacity.reading import read_by_accounts
    from operations.read.management import unseen

    capacities = []
    hidden = []
    async with (
        management_client(options) as management,
        harvester_clients(management, options) as (harvesters, errors),
    ):
        hidden += errors

        # A Harvester that does not answer must not hide the others.
        for harvester in harvesters:
            step(f"reading {harvester.server}")
            try:
                objects = await read_by_accounts(harvester)
            except RequestError as error:
                hidden.append(unseen(f"Harvester {harvester.server}", error))
                continue
            capacities.append(capacity_of(objects))
            hidden += objects.harvester.unseen

    if not capacities:
        hint = "no Harvester can be read: name its kubeconfig with --harvester-kubeconfig"
        raise InputError("; ".join([hint, *map(str, hidden)]))
    return capacities, hidden
