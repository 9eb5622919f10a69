"""`caphv park` and `caphv resume`: stop all machines of clusters, and start them again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from caphv.api import remedies
from caphv.api.object import Key
from commands.access.changes import apply_plan, confirm, plan_item, until_done
from commands.access.management import management_client, run
from commands.errors import CommandError, InputError
from commands.options.changes import ChangeOptions, WaitOptions, change_options, wait_options
from commands.options.completion import complete_harvesters
from commands.options.groups import fill, with_options
from commands.options.harvesters import insecure_option
from commands.options.management import (
    ScopeOptions,
    Selection,
    clusters_argument,
    management_options,
    namespace_option,
    selection,
)
from commands.output.data import print_data
from commands.output.echo import echo
from commands.output.progress import Step, patient_progress

if TYPE_CHECKING:
    from caphv.runtime.client import ApiClient
    from operations.change.changes import Plan
    from operations.read.objects import ManagementObjects

_Command = TypeVar("_Command", bound=Callable[..., Any])
_TARGETS = "name clusters, or a Harvester with --all-on"


@dataclass(frozen=True, kw_only=True)
class ParkOptions(ScopeOptions, ChangeOptions, WaitOptions):
    """Which clusters to park or resume, whether to ignore checks, and how to ask and wait."""

    all_on: str
    force: bool


def _park_options(command: _Command) -> _Command:
    """Add the options of `ParkOptions`, and the argument for clusters."""
    return with_options(
        command,
        management_options,
        insecure_option,
        change_options,
        wait_options("30m"),
        click.option("--force", is_flag=True, help="Park or resume even if a check fails."),
        click.option(
            "--all-on",
            default="",
            shell_complete=complete_harvesters,
            metavar="HARVESTER",
            help=(
                "All clusters on one Harvester: its host name or URL, or NAMESPACE/NAME of an "
                "identity Secret."
            ),
        ),
        namespace_option(
            "Namespace of the clusters.  [default: the context's; with --all-on all namespaces]"
        ),
        clusters_argument(),
    )


@click.command(
    short_help="Stop all machines of clusters; disks, addresses and objects stay.",
    epilog="""\b
Examples:
  caphv park team-a/staging --wait
  caphv park --all-on harvester.example.com --wait     before you shut its hosts down
  caphv park team-a/staging --dry-run                  only run the checks

Exit status: 0 done or nothing to do, 1 a check failed, aborted or timed out, 2 usage error or a
server cannot be read.
""",
)
@_park_options
@fill(options=ParkOptions)
def park(clusters: tuple[str, ...], options: ParkOptions) -> None:
    """Stop all machines of clusters in the right order; disks, addresses and objects stay.

    The provider pauses the Cluster, drains and stops the workers, stops the control plane with the
    etcd leader last, and checks that all volumes are detached. It continues even if you interrupt
    the command. With --all-on and --wait, the command ends with the steps that shut the hosts down.

    The command sets annotation caphv.io/park, which overrides a schedule (caphv.io/park-schedule).
    """
    _carry_out(_prepare(clusters, options, park=True), options, park=True)


@click.command(
    short_help="Start parked clusters again.",
    epilog="""\b
Examples:
  caphv resume team-a/staging --wait
  caphv resume --all-on harvester.example.com --wait   after you started its hosts

Exit status: 0 done or nothing to do, 1 a check failed, aborted or timed out, 2 usage error or a
server cannot be read.
""",
)
@_park_options
@fill(options=ParkOptions)
def resume(clusters: tuple[str, ...], options: ParkOptions) -> None:
    """Start parked clusters: the control plane first, then the workers.

    Before any change, the command checks that Harvester answers and that its hosts are ready. The
    provider ends the pause of the Cluster only when the Nodes of all machines are ready, so that no
    health check replaces a machine.

    A cluster that its schedule (caphv.io/park-schedule) would park now stays up until you remove
    annotation caphv.io/park.
    """
    _carry_out(_prepare(clusters, options, park=False), options, park=False)


@dataclass(frozen=True)
class _Prepared:
    """The clusters, each by its key, and their plans."""

    clusters: Selection
    plans: list[Plan]


def _prepare(clusters: Sequence[str], options: ParkOptions, *, park: bool) -> _Prepared:
    """Read the chosen clusters, and plan the change of each. Raises `InputError`."""
    from operations.change.changes import ChangeError

    if bool(clusters) is bool(options.all_on):
        raise click.UsageError(_TARGETS)
    chosen = Selection(options.namespace) if options.all_on else selection(clusters, options)
    try:
        with patient_progress() as step:
            return run(_plan(chosen, options, step, park=park))
    except ChangeError as error:
        raise InputError(*error.problems) from None


async def _plan(chosen: Selection, options: ParkOptions, step: Step, *, park: bool) -> _Prepared:
    """Return the clusters with their plans. Raises `ChangeError`."""
    from dataclasses import replace

    from caphv.api.identities import describe, identity_of
    from caphv.api.object import key_of
    from operations.change.clusterparts import unread_kinds
    from operations.change.parking import plan_park, plan_resume
    from operations.read.harvester import read_harvesters
    from operations.read.management import read_management
    from operations.status.assembly import parts_of

    async with management_client(options) as client:
        objects = await read_management(client, chosen.namespace, step)
        clusters = chosen
        if options.all_on:
            keys = await _clusters_on(client, objects, options, park=park)
            clusters = replace(chosen, keys=keys)
        parts_by_key = {parts.key: parts for parts in parts_of(objects)}
        clusters.require(set(parts_by_key), map(key_of, objects.clusters))
        selected = [parts_by_key[key] for key in dict.fromkeys(clusters.keys)]

        def with_access(plan: Plan) -> Plan:
            unread = unread_kinds(objects, parts_by_key[plan.cluster].cluster)
            return replace(plan, checks=(*plan.checks, *unread.checks(plan.cluster)))

        if park:
            return _Prepared(clusters, [with_access(plan_park(parts)) for parts in selected])

        infrastructures = [parts.harvester_cluster for parts in selected if parts.harvester_cluster]
        harvesters = await read_harvesters(client, infrastructures, step)

    plans = []
    for parts in selected:
        infrastructure = parts.harvester_cluster or {}
        identity = describe(identity_of(infrastructure))
        why = "; ".join(str(unseen) for unseen in harvesters.unseen if identity in unseen.what)
        plans.append(with_access(plan_resume(parts, harvesters.of(infrastructure), why)))
    return _Prepared(clusters, plans)


async def _clusters_on(
    client: ApiClient, objects: ManagementObjects, options: ParkOptions, *, park: bool
) -> tuple[Key, ...]:
    """Return the clusters on a Harvester, and name those that are left out.

    Raises `ChangeError`, also if clusters with an identity that cannot be read would keep running
    on hosts that the user then shuts down.
    """
    from caphv.api.object import being_deleted, key_of
    from caphv.api.resources import HARVESTER_CLUSTERS
    from operations.change.changes import ChangeError
    from operations.change.parking import clusters_on, unknown_clusters
    from operations.read.accounts import read_accounts

    accounts, unread = await read_accounts(client, objects.harvester_clusters)
    hidden = [unseen for unseen in objects.unseen if unseen.what == str(HARVESTER_CLUSTERS)]
    reasons = list(map(str, [*hidden, *unread]))
    try:
        keys = clusters_on(objects, accounts, options.all_on)
    except ChangeError as error:
        raise ChangeError([*error.problems, *reasons]) from None

    deleted = {key_of(obj) for obj in objects.clusters if being_deleted(obj)}
    unknown = set(unknown_clusters(objects, accounts, options.all_on)) - {*keys, *deleted}
    if unknown and park and not options.force:
        names = ", ".join(map(str, sorted(unknown)))
        problem = (
            f"{names}: also on this Harvester, but without a usable identity. Correct it, or park "
            "the other clusters with --force"
        )
        raise ChangeError([problem, *reasons])
    for key in sorted(unknown):
        echo(f"skipped {key}: its identity cannot be used", err=True)

    remaining = []
    for key in keys:
        if key in deleted:
            echo(f"skipped {key}: it is being deleted", err=True)
        else:
            remaining.append(key)
    return tuple(remaining)


def _carry_out(prepared: _Prepared, options: ParkOptions, *, park: bool) -> None:
    """Show the plans, ask, apply them, and wait.

    Exits with status 1 if a check failed, or a cluster could not be changed.
    """
    plans = prepared.plans
    changed = [plan for plan in plans if plan.changes]
    is_forbidden = any(plan.errors for plan in changed) and not options.force
    _show(plans, options)

    if is_forbidden or options.dry_run or not changed:
        _report(plans, options)
    if is_forbidden:
        echo(
            "Nothing was changed: a check failed. Correct the cause, or override it with --force.",
            err=True,
        )
        sys.exit(1)
    if options.dry_run:
        return

    if changed:
        names = ", ".join(str(plan.cluster) for plan in changed)
        confirm(options, f"{'Park' if park else 'Resume'} {names}?")
        applied = _apply(changed, options)
        _report(plans, options, applied)
        if len(applied) < len(changed):
            sys.exit(1)
    if options.wait:
        _wait(prepared.clusters, options, park=park)
    elif changed and options.is_text:
        follow = (
            remedies.FOLLOW(ref=changed[0].cluster) if len(changed) == 1 else remedies.FOLLOW_ALL
        )
        click.echo(f"{'Parking' if park else 'Resuming'}. Follow it: {follow}")
    if park and options.all_on and options.is_text:
        if options.wait:
            _show_checklist(prepared.clusters.keys, options)
        else:
            click.echo(
                "For the steps that shut the hosts down, run this command again with --wait."
            )


def _show(plans: Sequence[Plan], options: ParkOptions) -> None:
    from commands.output import changes as out

    for plan in plans if options.is_text else ():
        out.show(plan)


def _apply(plans: Sequence[Plan], options: ParkOptions) -> set[Key]:
    """Apply the plans, and return the clusters that were changed.

    An error of one cluster, such as a missing right, must not keep the others from being parked.
    Raises `CommandError` if no cluster was changed.
    """
    applied = set()
    errors = []
    for plan in plans:
        try:
            apply_plan(plan, options)
        except CommandError as error:
            errors.append(error)
        else:
            applied.add(plan.cluster)

    if not applied:
        raise errors[0]
    for failure in errors:
        failure.show()
    for key in sorted({plan.cluster for plan in plans} - applied):
        echo(f"not changed: {key}", err=True)
    return applied


def _report(plans: Sequence[Plan], options: ParkOptions, applied: Set[Key] = frozenset()) -> None:
    """Write the plans, with the clusters that were changed, as data, unless the output is text."""
    if options.is_text:
        return
    items = [plan_item(plan, applied=plan.cluster in applied) for plan in plans]
    print_data(options.output, items=items)


def _wait(clusters: Selection, options: ParkOptions, *, park: bool) -> None:
    """Show the progress until all clusters are done; exit with status 1 after the timeout."""
    from commands.output.clusterprogress import ClustersProgress
    from operations.change.clusterparts import parts_and_deployments
    from operations.change.parking import progress_of

    progress = ClustersProgress(clusters.keys, to_stderr=not options.is_text)

    async def step(objects: ManagementObjects) -> bool:
        for key in clusters.keys:
            progress.say(key, progress_of(parts_and_deployments(objects, key)[0], park=park))
        return progress.has_ended()

    verb = "park" if park else "resume"
    interrupted = f"Interrupted. The provider continues to {verb} without this command."
    all_clusters = Key(clusters.namespace, "")  # an empty name means the whole namespace
    in_time = run(until_done(options, all_clusters, step, options.timeout), interrupted)
    if in_time and progress.is_done():
        return
    progress.explain(in_time=in_time)
    sys.exit(1)


def _show_checklist(keys: Sequence[Key], options: ParkOptions) -> None:
    """Write the manual steps that shut down the hosts."""
    from operations.change.parking import host_checklist

    scope = f" -n {options.namespace}" if options.namespace else ""
    resume_command = remedies.RESUME_ALL(harvester=options.all_on, scope=scope)
    echo("\nTo shut the hosts down:")
    for number, line in enumerate(host_checklist(options.all_on, keys, resume_command), start=1):
        echo(f"{number:>3}. {line}")
