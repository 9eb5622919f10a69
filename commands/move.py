"""`caphv move`: clusters to another management cluster, without a restart of a VM."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from caphv.api.counting import counted, name_some
from commands.access.changes import confirm
from commands.access.management import management_client, run
from commands.errors import InputError
from commands.options.changes import ChangeOptions, change_options, timeout_option
from commands.options.groups import fill
from commands.options.harvesters import insecure_option
from commands.options.management import (
    ManagementOptions,
    ScopeOptions,
    Selection,
    clusters_argument,
    management_options,
    namespace_options,
    selection,
)
from commands.output.data import print_data
from commands.output.echo import echo
from commands.output.progress import patient_progress

if TYPE_CHECKING:
    from operations.change.move import MovePlan, Sides

_PAUSED = (
    "The clusters are paused on the source, where nothing was lost. Correct the cause and run the "
    "command again."
)
_INTERRUPTED = (
    "Interrupted. Clusters may be paused on the source, where nothing was lost. Run the "
    "command again to continue."
)
_MAYBE_PAUSED = _PAUSED.replace("The clusters are", "Clusters may be")


@dataclass(frozen=True, kw_only=True)
class MoveOptions(ScopeOptions, ChangeOptions):
    """Source and target of a move; `timeout` limits the wait for the adoption, in seconds."""

    to_kubeconfig: str
    to_context: str
    timeout: float
    force: bool

    @property
    def target(self) -> ManagementOptions:
        """The new management cluster."""
        return ManagementOptions(kubeconfig=self.to_kubeconfig, context=self.to_context)


@click.command(
    short_help="Move clusters to another management cluster.",
    epilog="""\b
Examples:
  caphv move team-a/production --to-kubeconfig new-management.yaml --dry-run
  caphv move team-a/production --to-kubeconfig new-management.yaml
  caphv move -n team-a --to-kubeconfig new-management.yaml --yes      all clusters of a namespace

Exit status: 0 moved, or with --dry-run the move is possible, 1 aborted or incomplete, 2 a
management cluster cannot be read, and nothing was changed.
""",
)
@clusters_argument()
@namespace_options
@click.option(
    "--to-kubeconfig",
    default="",
    metavar="FILE",
    help=(
        "Kubeconfig of the target management cluster.  [default: KUBECONFIG, else ~/.kube/config]"
    ),
)
@click.option(
    "--to-context",
    default="",
    metavar="NAME",
    help="Context in that kubeconfig.  [default: the current one]",
)
@timeout_option("10m", "Maximum time to wait until the target has adopted the VMs.")
@click.option(
    "--force",
    is_flag=True,
    help=(
        "Move the clusters even if a VM does not exist, a shared ConfigMap differs, "
        "the target refuses a dry run or the pause is not confirmed."
    ),
)
@change_options
@insecure_option
@management_options
@fill(options=MoveOptions)
def move(clusters: tuple[str, ...], options: MoveOptions) -> None:
    """Move clusters with all their objects to another management cluster; their VMs keep running.

    The command pauses the clusters, creates them paused on the target and reads them back. Then it
    ends the pause on the target, whose provider adopts VMs, disks and addresses. It deletes the
    objects on the source only when Harvester confirms that each VM belongs to the target; this does
    not affect Harvester. ClusterClasses, identities, namespaces and templates that other clusters
    own as well stay on the source. After an interruption, run the command again to continue.
    """
    from operations.backup.preflight import blocking_errors

    if not (options.to_kubeconfig or options.to_context):
        raise click.UsageError(
            "name the target management cluster with --to-kubeconfig or --to-context"
        )
    chosen = selection(clusters, options)
    with patient_progress() as step:
        step("comparing the management clusters")
        plan = run(_prepare(chosen, options))
    _show(plan, options)

    failed = blocking_errors(plan.checks, force=options.force)
    if options.dry_run or failed:
        _report(plan, options, applied=False)
    if options.dry_run:
        sys.exit(1 if failed else 0)
    if failed:
        remedy = "Correct the cause, or override it with --force"
        if blocking_errors(failed, force=True):
            remedy = "Correct the cause"
        echo(f"Nothing was changed: a check failed. {remedy}.", err=True)
        sys.exit(1)

    confirm(options, f"Move {', '.join(plan.backup.clusters)} to {plan.target.server}?")
    # Do not move clusters that are created after the checks and the user's consent.
    keys = chosen.keys or tuple(sorted(plan.backup.cluster_keys()))
    run(_move(plan, replace(chosen, keys=keys), options), _INTERRUPTED)
    _report(plan, options, applied=True)


async def _prepare(chosen: Selection, options: MoveOptions) -> MovePlan:
    """Read the clusters, compare them with the target, and run all checks. Raises `InputError`."""
    from operations.backup import writing
    from operations.change.move import find_clusters, plan_move, read_source

    async with _clients(options) as sides:
        backup = await read_source(sides.source, chosen.query())
        if not backup.clusters:
            # If the user named clusters, this reports the absent ones by name.
            chosen.require(set())
            if backup.left_out:
                raise InputError(
                    f"Rancher provisions {name_some(backup.left_out, 3)}: these are not moved"
                )
            raise chosen.none_there()

        target = await writing.prepare(sides.target, backup)
        chosen.require(await find_clusters(sides.target, backup, target, chosen.keys))
        return await plan_move(sides, backup, target)


@asynccontextmanager
async def _clients(options: MoveOptions) -> AsyncIterator[Sides]:
    """Lend clients for both management clusters."""
    from operations.change.move import Sides

    # The source comes first, because its error matters more to the user.
    async with (
        management_client(options) as source,
        management_client(options.target) as target,
    ):
        yield Sides(source, target)


def _show(plan: MovePlan, change: ChangeOptions) -> None:
    """Write the checks and what the move will do, unless the output is data."""
    from commands.output.changes import show_checks
    from operations.backup.movedobjects import objects_to_delete, shared_objects

    if not change.is_text:
        return
    show_checks(plan.checks)
    echo(f"moves {', '.join(plan.backup.clusters)} to {plan.target.server}:")
    for kind, count in _counts(plan).items():
        echo(f"  {count:>5}  {kind}")
    for identity in shared_objects(plan.backup):
        echo(f"shared, stays on the source: {identity}")
    running = counted(len(plan.vms.states), "VM keeps", "VMs keep")
    deleted = counted(len(objects_to_delete(plan.backup)), "object")
    echo(f"deletes {deleted} on the source afterwards; {running} running")


def _report(plan: MovePlan, change: ChangeOptions, *, applied: bool) -> None:
    """Write the plan as data, unless the output is text."""
    from operations.backup.movedobjects import shared_objects

    if change.is_text:
        return
    print_data(
        change.output,
        items=[{"cluster": cluster, "applied": applied} for cluster in plan.backup.clusters],
        target=plan.target.server,
        objects=_counts(plan),
        shared=list(map(str, shared_objects(plan.backup))),
        checks=plan.checks,
    )


def _counts(plan: MovePlan) -> dict[str, int]:
    """Return the number of objects of each kind that are moved."""
    return dict(sorted(Counter(step.identity.kind for step in plan.target.steps()).items()))


async def _move(plan: MovePlan, chosen: Selection, options: MoveOptions) -> None:
    """Move the clusters. If the move fails, say whether they are paused and what to do.

    The caller says so after an interrupt, which may come before the pause.
    """
    from operations.change.move import Move, MoveError

    def report(text: str) -> None:
        echo(text, err=not options.is_text)

    async with _clients(options) as sides:
        move_ = Move(
            sides=sides,
            plan=plan,
            query=chosen.query(),
            force=options.force,
            timeout=options.timeout,
            report=report,
        )
        try:
            await move_.run()
        except MoveError as error:
            for problem in error.problems:
                echo(f"Error: {problem}", err=True)
            echo(_MAYBE_PAUSED if error.maybe_paused else _PAUSED, err=True)
            sys.exit(1)
