"""`caphv pools`: owners of the addresses of IPPools, and the release of those that leaked."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from caphv.api.counting import counted
from commands.options.changes import confirm
from commands.options.clusters import InputError, Step
from commands.options.harvesters import (
    HarvesterClient,
    harvester_clients,
    harvester_namespace_options,
    harvester_option,
    insecure_option,
    namespace_of,
)
from commands.options.management import (
    management_client,
    management_options,
    patient_progress,
    print_data,
    run,
)
from commands.output.echo import echo

if TYPE_CHECKING:
    from caphv.runtime.client import ApiClient
    from overview.objects import Unseen
    from overview.poolreader import Machines
    from overview.pools import PoolReport


@click.group(
    epilog="""\b
Examples:
  caphv pools audit
  caphv pools release --dry-run
"""
)
def pools() -> None:
    """Addresses of Harvester's IPPools against machines and load balancers."""


def _options(command: Any) -> Any:
    for add in (
        harvester_option,
        harvester_namespace_options,
        insecure_option,
        management_options,
        click.argument("names", metavar="[POOL]...", nargs=-1),
    ):
        command = add(command)
    return command


@pools.command(
    short_help="List the entries of pools with their owners.",
    epilog="""\b
Examples:
  caphv pools audit                      all pools of all Harvesters that clusters use
  caphv pools audit machines --wrong     entries of one pool that no machine holds
  caphv pools audit -o json

\b
Exit status: 0 nothing to repair, 1 addresses have leaked or counts are wrong, else 2 if something cannot be read.
""",
)
@_options
@click.option("--wrong", is_flag=True, help="Only entries whose owner does not exist, or is not known.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
def audit(names: tuple[str, ...], **flags: Any) -> None:
    """Compare the entries of IPPools with machines, load balancers and VMs, and name what has leaked.

    Machines of all namespaces are compared: an entry counts as leaked only when its machine can be seen not to exist.
    """
    with patient_progress() as step:
        found = run(_audit(names, flags, step))
    from commands.output import pools as out
    from commands.output.overview import console

    if flags["output"] == "text":
        out.show(console(), found.reports, only_wrong=flags["wrong"])
    else:
        print_data(found.reports, flags["output"])
    out.show_unseen(found.unseen)
    sys.exit(1 if any(report.wrong for report in found.reports) else 2 if found.unseen else 0)


@pools.command(
    short_help="Release addresses that have leaked, and correct the counts.",
    epilog="""\b
Examples:
  caphv pools release --dry-run
  caphv pools release machines --yes

\b
Exit status: 0 all done, or (with --dry-run) shown, 1 aborted or failed, 2 something cannot be read.
""",
)
@_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would be released, and change nothing.")
def release(names: tuple[str, ...], **flags: Any) -> None:
    """Release addresses that this management cluster reserved for machines and load balancers that no longer exist.

    Addresses that a VM or Service still uses, that another management cluster reserved, or that carry no record stay,
    and `caphv pools audit` lists them. One write per pool corrects entries, counts and marks together, and fails as a
    whole when the pool was changed meanwhile.
    """
    from commands.output import pools as out

    with patient_progress() as step:
        found = run(_audit(names, flags, step))
    out.show_unseen(found.unseen)
    invalid = [report for report in found.reports if report.error]
    for report in invalid:
        echo(f"IPPool {report.name} on {report.harvester}: {report.error}", err=True)
    plans = [report for report in found.reports if report.wrong and not report.error]
    done = True
    if plans:
        out.show_plan(plans)
        if not flags["dry_run"]:
            confirm(flags, "Write this to Harvester?")
            done = run(_release(plans, flags))
    elif found.unseen or invalid:
        echo("Nothing to release in what can be read")
    else:
        echo("Nothing to release: no address has leaked, and all counts are right")
    sys.exit(1 if invalid or not done else 2 if found.unseen else 0)


@dataclass(frozen=True, slots=True)
class _Found:
    reports: tuple[PoolReport, ...]
    unseen: tuple[Unseen, ...]


async def _audit(names: Iterable[str], flags: dict[str, Any], step: Step) -> _Found:
    from caphv.runtime.errors import ApiError, Unreachable
    from overview import reader
    from overview.poolreader import read_machines, read_pools

    async with management_client(flags) as management:
        step("reading machines")
        machines = await read_machines(management, namespace_of(flags))
        async with harvester_clients(management, flags) as (harvesters, hidden):
            unseen, reports = [*machines.unseen, *hidden], []
            for harvester in harvesters:
                step(f"reading pools of {harvester.client.server}")
                try:
                    found = await read_pools(harvester.client, machines, harvester.namespaces)
                except (ApiError, Unreachable) as error:
                    unseen.append(reader.unseen(f"Harvester {harvester.client.server}", error))
                    continue
                unseen += found.unseen
                reports += [each for each in found.reports() if not names or each.name in names]
    if not reports:
        wanted = f"no IPPool {', '.join(names)}" if names else "no IPPool"
        raise InputError("; ".join([f"{wanted} can be read on any Harvester", *map(str, unseen)]))
    return _Found(tuple(reports), tuple(unseen))


async def _release(plans: list[PoolReport], flags: dict[str, Any]) -> bool:
    """Release pool by pool, and print each result at once. Return whether all could be released."""
    from overview.poolreader import read_machines

    async with management_client(flags) as management:
        machines = await read_machines(management, namespace_of(flags))
        async with harvester_clients(management, flags) as (harvesters, _):
            by_server = {harvester.client.server: harvester for harvester in harvesters}
            return all(
                [await _release_one(management, by_server.get(plan.harvester), plan, machines) for plan in plans]
            )


async def _release_one(
    management: ApiClient, harvester: HarvesterClient | None, plan: PoolReport, machines: Machines
) -> bool:
    from caphv.runtime.errors import ApiError, Unreachable
    from overview.poolreader import apply_repair

    if harvester is None:  # while the command asked
        error = "no cluster leads there any more: name its kubeconfig with --harvester-kubeconfig"
        echo(f"IPPool {plan.name} on {plan.harvester}: {error}", err=True)
        return False
    try:
        report = await apply_repair(management, harvester.client, plan.name, machines, harvester.namespaces)
    except (ApiError, Unreachable) as failure:
        echo(f"IPPool {plan.name} on {plan.harvester}: {failure}", err=True)
        return False
    count = len(report.leaked) if report else 0
    echo(f"IPPool {plan.name}: released {counted(count, 'address')}")
    return True
