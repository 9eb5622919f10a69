"""`caphv pools`: owners of the addresses of IPPools, and the release of those that leaked."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from caphv.api import resources
from caphv.api.counting import counted
from commands.access.changes import confirm
from commands.access.harvesters import harvester_clients
from commands.access.management import management_client, run
from commands.errors import InputError
from commands.options.changes import ChangeOptions, change_options
from commands.options.completion import complete_on_harvester
from commands.options.formats import output_option
from commands.options.groups import fill, with_options
from commands.options.harvesters import (
    HarvesterOptions,
    harvester_namespace_options,
    harvester_option,
    insecure_option,
    namespace_of,
)
from commands.options.management import management_options
from commands.output.data import print_data
from commands.output.echo import echo
from commands.output.progress import Step, patient_progress

if TYPE_CHECKING:
    from caphv.runtime.client import ApiClient
    from operations.capacity.addresspools import PoolReport
    from operations.read.harvesterclient import HarvesterClient
    from operations.read.objects import Unseen
    from operations.read.owners import OwnerObjects


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions(HarvesterOptions, ChangeOptions):
    """The Harvesters whose addresses to release, and how to ask and report."""


@click.group(
    epilog="""\b
Examples:
  caphv pools audit
  caphv pools release --dry-run
"""
)
def pools() -> None:
    """Audit the addresses of Harvester's IPPools, and release leaked ones."""


def _options(command: Any) -> Any:
    return with_options(
        command,
        harvester_option,
        harvester_namespace_options,
        insecure_option,
        management_options,
        click.argument(
            "names",
            metavar="[POOL]...",
            nargs=-1,
            shell_complete=complete_on_harvester(resources.IP_POOLS),
        ),
    )


@pools.command(
    short_help="List the addresses of IPPools with their owners.",
    epilog="""\b
Examples:
  caphv pools audit                      all pools of all Harvesters that clusters use
  caphv pools audit machines --wrong     addresses of one pool that no machine holds
  caphv pools audit -o json

Exit status: 0 nothing to repair, 1 addresses have leaked or counts are wrong, 2 nothing to repair,
but something cannot be read.
""",
)
@_options
@click.option(
    "--wrong", is_flag=True, help="Only list addresses whose owner does not exist or is unknown."
)
@output_option()
@fill(options=HarvesterOptions)
def audit(names: tuple[str, ...], *, wrong: bool, output: str, options: HarvesterOptions) -> None:
    """Compare the addresses of IPPools with machines, load balancers and VMs, and list those that
    have leaked.

    The command reads the machines of all namespaces. An address counts as leaked only if the
    command can see that its machine does not exist.
    """
    with patient_progress() as step:
        result = run(_audit(names, options, step))

    # Imported after the question to the servers, to keep help and errors of usage fast.
    from commands.output import pools as out
    from commands.output.overview import console

    if output == "text":
        out.show(console(), result.reports, only_wrong=wrong)
    else:
        print_data(output, items=result.reports, unseen=list(map(str, result.unseen)))
    out.show_unseen(result.unseen)

    # What is wrong weighs more than what could not be read.
    if any(report.wrong for report in result.reports):
        sys.exit(1)
    sys.exit(2 if result.unseen else 0)


@pools.command(
    short_help="Release leaked addresses, and correct the counts.",
    epilog="""\b
Examples:
  caphv pools release --dry-run
  caphv pools release machines --yes

Exit status: 0 done or nothing to do, 1 aborted or failed, 2 something cannot be read.
""",
)
@_options
@change_options
@fill(options=ReleaseOptions)
def release(names: tuple[str, ...], *, options: ReleaseOptions) -> None:
    """Release addresses that this management cluster reserved for machines and load balancers that
    no longer exist.

    The command keeps addresses that a VM or Service still uses, that another management cluster
    reserved, or that have no record; `caphv pools audit` lists them. It corrects the addresses,
    counts and marks of a pool in one write, which fails if the pool was changed meanwhile.
    """
    from commands.output import pools as out

    with patient_progress() as step:
        result = run(_audit(names, options, step))
    out.show_unseen(result.unseen)

    # A pool with invalid ranges has no counts that could be corrected.
    invalid = [report for report in result.reports if report.error]
    for report in invalid:
        echo(f"IPPool {report.name} on {report.harvester}: {report.error}", err=True)

    plans = [report for report in result.reports if report.wrong and not report.error]
    released = [False] * len(plans)
    if plans and options.is_text:
        out.show_plan(plans)
    if plans and not options.dry_run:
        confirm(options, "Make these changes on Harvester?")
        released = run(_release(plans, options))

    if not options.is_text:
        _report(result, plans, released, options.output)
    elif not plans and (result.unseen or invalid):
        echo("Nothing to release, but something cannot be read")
    elif not plans:
        echo("Nothing to release: no address has leaked, and all counts are correct")
    if invalid or not (options.dry_run or all(released)):
        sys.exit(1)
    sys.exit(2 if result.unseen else 0)


def _report(
    audit: _Audit, plans: Sequence[PoolReport], released: Sequence[bool], output: str
) -> None:
    """Write the pools that are released as data."""
    from operations.status.model import as_json

    items = [
        {**as_json(plan), "applied": applied} for plan, applied in zip(plans, released, strict=True)
    ]
    print_data(output, unseen=list(map(str, audit.unseen)), items=items)


@dataclass(frozen=True, slots=True)
class _Audit:
    reports: tuple[PoolReport, ...]
    unseen: tuple[Unseen, ...]


async def _audit(names: Iterable[str], options: HarvesterOptions, step: Step) -> _Audit:
    """Compare the pools with these names, or all, with their owners. Raises `InputError`."""
    from caphv.runtime.errors import RequestError
    from operations.capacity.poolreader import read_pools
    from operations.read import management as reader
    from operations.read.owners import read_owners

    async with management_client(options) as management:
        step("reading machines")
        owners = await read_owners(management, namespace_of(options))

        # One Harvester that does not answer must not hide the pools of the others.
        async with harvester_clients(management, options) as (harvesters, hidden):
            unseen = [*owners.unseen, *hidden]
            reports = []
            for harvester in harvesters:
                step(f"reading pools of {harvester.server}")
                try:
                    pool_state = await read_pools(harvester, owners)
                except RequestError as error:
                    unseen.append(reader.unseen(f"Harvester {harvester.server}", error))
                    continue
                unseen += pool_state.unseen
                reports += [
                    report for report in pool_state.reports() if not names or report.name in names
                ]

    read = {report.name for report in reports}
    missing = [name for name in dict.fromkeys(names) if name not in read]
    if missing or not reports:
        what = " ".join(filter(None, ["no IPPool", ", ".join(missing)]))
        raise InputError("; ".join([f"{what} can be read on any Harvester", *map(str, unseen)]))
    return _Audit(tuple(reports), tuple(unseen))


async def _release(plans: list[PoolReport], options: ReleaseOptions) -> list[bool]:
    """Release pool by pool, and print each result at once. Return which could be released."""
    from operations.read.owners import read_owners

    async with management_client(options) as management:
        # Read again: a machine may have been created while the user was asked.
        owners = await read_owners(management, namespace_of(options))
        async with harvester_clients(management, options) as (harvesters, _):
            by_server = {harvester.server: harvester for harvester in harvesters}
            return [
                await _release_pool(
                    management,
                    by_server.get(plan.harvester),
                    plan,
                    owners,
                    to_stderr=not options.is_text,
                )
                for plan in plans
            ]


async def _release_pool(
    management: ApiClient,
    harvester: HarvesterClient | None,
    plan: PoolReport,
    owners: OwnerObjects,
    *,
    to_stderr: bool,
) -> bool:
    """Release what has leaked from a pool, and print the result. Return whether it succeeded.

    :param management: the management cluster
    :param harvester: the Harvester of the pool, None if no cluster uses it now
    :param plan: the pool as it was audited
    :param owners: all objects that may hold addresses
    :param to_stderr: whether the result goes to the standard error, because the output is data
    """
    from caphv.runtime.errors import RequestError
    from operations.capacity.poolreader import apply_repair

    if harvester is None:  # while the command asked
        error = "no cluster uses it any more: name its kubeconfig with --harvester-kubeconfig"
        echo(f"IPPool {plan.name} on {plan.harvester}: {error}", err=True)
        return False
    try:
        report = await apply_repair(management, harvester, plan.name, owners)
    except RequestError as failure:
        echo(f"IPPool {plan.name} on {plan.harvester}: {failure}", err=True)
        return False
    count = len(report.leaked) if report else 0
    echo(f"IPPool {plan.name}: released {counted(count, 'address')}", err=to_stderr)
    return True
