"""`caphv leftovers`: what clusters and machines that no longer exist left on Harvester."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from caphv.api.counting import counted
from commands.access.changes import confirm
from commands.access.harvesters import harvester_clients
from commands.access.management import management_client, run
from commands.errors import InputError
from commands.options.changes import ChangeOptions, change_options, timeout_option
from commands.options.groups import fill
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
    from operations.leftovers.decision import LeftoverReport
    from operations.leftovers.release import Deletion
    from operations.read.objects import Unseen


@click.command(
    short_help="Find and delete what deleted clusters left on Harvester.",
    epilog="""\b
Examples:
  caphv leftovers                          on all Harvesters that clusters use
  caphv leftovers --wrong                  only what this management cluster left
  caphv leftovers --harvester-kubeconfig harvester.yaml
                                           all namespaces, even of a Harvester without clusters
  caphv leftovers -o json | jq '.items[].objects[] | select(.verdict == "leaked")'
  caphv leftovers --delete --dry-run       what would be deleted
  caphv leftovers --delete
  caphv leftovers --delete --running       also VMs that are not stopped, or are parked

Exit status: 0 no leftovers, 1 leftovers, 2 no leftovers, but something cannot be read. With
--delete: 0 no leftovers remain, 1 aborted or leftovers remain, 2 as without --delete.
""",
)
@harvester_namespace_options
@harvester_option
@click.option("--delete", is_flag=True, help="Delete the leftovers, after a confirmation.")
@timeout_option(
    "5m",
    "With --delete: maximum time to wait until the objects of each kind, such as VMs, are deleted.",
)
@click.option(
    "--running",
    is_flag=True,
    help="Include VMs that are not stopped, or are parked, with what their clusters use.",
)
@click.option(
    "--wrong",
    is_flag=True,
    help="Only list what this management cluster left behind, even if it is in use.",
)
@change_options
@insecure_option
@management_options
@fill(change=ChangeOptions, options=HarvesterOptions)
def leftovers(
    *,
    delete: bool,
    timeout: float,
    running: bool,
    wrong: bool,
    change: ChangeOptions,
    options: HarvesterOptions,
) -> None:
    """List objects on Harvester whose owner no longer exists, and delete those of deleted clusters.

    The provider records the owner of everything that it creates on Harvester: the management
    cluster, and the HarvesterCluster or HarvesterMachine by namespace, name and UID. These are VMs,
    disks, Secrets, load balancers, Services, IPPools and their addresses, and the accounts of cloud
    providers with their bindings. An object is left over ("leaked") if its record names this
    management cluster, the owner no longer exists and would have created an object of this name,
    and nothing else uses the object. A copied record, as on disks that Harvester restored from a
    backup, proves nothing. Load balancers and volumes that guests created are left over if they
    provably belong to a cluster that no longer exists; volumes also need the reclaim policy Delete.

    --delete deletes only leftovers, including the data on disks. Objects of other management
    clusters and objects that were created by hand are only listed. Right before each deletion, the
    command reads the object, its record and its owner again.

    A VM that is not stopped, or is parked, counts as in use, and so does what its cluster needs,
    unless you pass --running. After `clusterctl move`, or after a restore of the management cluster
    to an older state, such VMs have no owner here until they are adopted.

    The identities of clusters see only their own namespaces; an administrator's kubeconfig sees
    all.
    """
    if (change.yes or change.dry_run) and not delete:
        raise click.UsageError("--yes and --dry-run need --delete")
    from commands.output import leftovers as out
    from commands.output.pools import show_unseen

    with patient_progress() as step:
        result = run(_read(options, step, include_running=running))
    if not delete:
        if change.is_text:
            out.show(result.reports, only_wrong=wrong)
        else:
            reports = [out.filtered(report, only_wrong=wrong) for report in result.reports]
            print_data(change.output, items=reports, unseen=list(map(str, result.unseen)))
        show_unseen(result.unseen)
        sys.exit(1 if any(report.wrong for report in result.reports) else 2 if result.unseen else 0)

    plans = [report for report in result.reports if report.wrong]
    if change.is_text:
        out.show(
            [report for report in result.reports if report.wrong or report.in_use], only_wrong=True
        )
    show_unseen(result.unseen)
    is_done = _delete_plans(plans, change, options, timeout, include_running=running)
    if change.is_text and not plans:
        echo(
            "No leftovers were found, but something cannot be read"
            if result.unseen
            else "No leftovers to delete"
        )
    sys.exit(1 if not is_done else 2 if result.unseen else 0)


@dataclass(frozen=True, slots=True)
class _Leftovers:
    reports: tuple[LeftoverReport, ...]
    unseen: tuple[Unseen, ...]


async def _read(options: HarvesterOptions, step: Step, *, include_running: bool) -> _Leftovers:
    """Return the leftovers of each Harvester. Raises `InputError` if none can be read."""
    from caphv.runtime.errors import RequestError
    from operations.leftovers.decision import examine
    from operations.leftovers.reading import read_state
    from operations.read.management import unseen
    from operations.read.owners import read_owners

    async with management_client(options) as management:
        step("reading HarvesterClusters and HarvesterMachines")
        owners = await read_owners(management, namespace_of(options))

        async with harvester_clients(management, options) as (harvesters, hidden):
            not_read = [*owners.unseen, *hidden]
            reports = []
            for harvester in harvesters:
                step(f"reading {harvester.server}")
                try:
                    state, unread = await read_state(
                        harvester, owners, include_running=include_running
                    )
                except RequestError as error:
                    not_read.append(unseen(f"Harvester {harvester.server}", error))
                    continue
                not_read += unread
                reports.append(examine(state))

    if not reports:
        hint = "no Harvester can be read: name its kubeconfig with --harvester-kubeconfig"
        raise InputError("; ".join([hint, *map(str, not_read)]))
    return _Leftovers(tuple(reports), tuple(not_read))


def _delete_plans(
    plans: list[LeftoverReport],
    change: ChangeOptions,
    options: HarvesterOptions,
    timeout: float,
    *,
    include_running: bool,
) -> bool:
    """Ask, and delete what is left over. Return whether nothing remains.

    :param plans: what is left over on each Harvester
    :param change: how to ask and report
    :param options: the Harvesters
    :param timeout: seconds to wait for the objects of a kind
    :param include_running: whether to delete VMs that are not stopped
    """
    deletions: list[Deletion] = []

    def report(deletion: Deletion) -> None:
        deletions.append(deletion)
        if change.is_text:
            message = f": {deletion.message}" if deletion.message else ""
            echo(f"{deletion.object}: {deletion.outcome}{message}", err=not deletion.done)

    try:
        if plans and not change.dry_run:
            confirm(change, _question(plans))
            run(
                _delete(plans, options, timeout, report, include_running=include_running),
                "Interrupted. What is listed above is done; run the command again to continue",
            )
    finally:
        # Also what was done before an interruption.
        if not change.is_text:
            print_data(change.output, items=plans if change.dry_run else deletions)
    return all(deletion.done for deletion in deletions)


def _question(plans: Iterable[LeftoverReport]) -> str:
    """Return the question for a deletion, with the number of VMs and disks whose data is lost."""
    from operations.leftovers.decision import ADDRESS, CLAIMS, VMS

    kinds = [obj.kind for plan in plans for obj in plan.leaked]
    others = sum(kind not in (VMS.kind, CLAIMS.kind, ADDRESS) for kind in kinds)
    numbers = (
        (kinds.count(VMS.kind), "VM"),
        (kinds.count(CLAIMS.kind), "disk with its data", "disks with their data"),
        (others, "other object"),
    )
    deleted = ", ".join(counted(*number) for number in numbers if number[0])
    addresses = kinds.count(ADDRESS)
    parts = [f"delete {deleted}" if deleted else ""]
    parts.append(f"release {counted(addresses, 'address')}" if addresses else "")
    question = " and ".join(filter(None, parts)) or "correct the counts of pools"
    return f"{question[0].upper()}{question[1:]} on Harvester?"


async def _delete(
    plans: Iterable[LeftoverReport],
    options: HarvesterOptions,
    timeout: float,
    report: Callable[[Deletion], None],
    *,
    include_running: bool,
) -> None:
    """Delete what is left over, Harvester by Harvester.

    :param plans: what is left over on each Harvester
    :param options: the Harvesters
    :param timeout: seconds to wait for the objects of a kind
    :param report: called with each outcome
    :param include_running: whether to delete VMs that are not stopped
    """
    from operations.leftovers.deletion import LeftoverDeleter
    from operations.leftovers.release import Deletion, Outcome

    async with (
        management_client(options) as management,
        harvester_clients(management, options) as (harvesters, _),
    ):
        by_server = {harvester.server: harvester for harvester in harvesters}
        for plan in plans:
            harvester = by_server.get(plan.harvester)
            if harvester is None:  # while the command asked
                why = "no cluster uses it any more: name its kubeconfig with --harvester-kubeconfig"
                report(Deletion(plan.harvester, f"Harvester {plan.harvester}", Outcome.FAILED, why))
                continue
            deleter = LeftoverDeleter(
                management,
                harvester,
                namespace_of(options),
                report,
                seconds=timeout,
                include_running=include_running,
            )
            await deleter.delete(plan)
