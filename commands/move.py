"""`caphv move`: clusters to another management cluster, without a restart of a VM."""

from __future__ import annotations

import asyncio
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
    "The clusters are paused on the source, where nothing was lost. Correct it and run this again."
)
_INTERRUPTED = (
    "Interrupted. Clusters may be paused on the source, where nothing was lost: run this again to "
    "continue."
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

\b
Exit status: 0 moved, or (with --dry-run) possible, 1 aborted or not completed, 2 a management \
cluster cannot be read,
and nothing was changed.
""",
)
@clusters_argument()
@namespace_options
@click.option("--to-kubeconfig", default="", help="Kubeconfig of the new management cluster.")
@click.option("--to-context", default="", help="Context of that kubeconfig.")
@timeout_option("10m", "Maximum time to wait for adoption.")
@click.option(
    "--force",
    is_flag=True,
    help=(
        "Move them although a VM is absent, a shared ConfigMap differs, the target refuses a dry "
        "run or the pause is not confirmed."
    ),
)
@change_options
@insecure_option
@management_options
@fill(options=MoveOptions)
def move(clusters: tuple[str, ...], options: MoveOptions) -> None:
    """Move clusters with all their objects to another management cluster; their VMs keep running.

    The clusters are paused, created paused on the target and read back. Then the pause ends there,
    and the provider of the target adopts VMs, disks and addresses. Only when Harvester says that
    each VM belongs to the target, the objects are deleted on the source, without an effect on
    Harvester. ClusterClasses, identities, namespaces and templates that other clusters own, too,
    stay there. Interrupted or repeated, the command continues where it ended.
    """
    from operations.backup.preflight import blocking_errors

    if not (options.to_kubeconfig or options.to_context):
        raise click.UsageError(
            "name the new management cluster with --to-kubeconfig or --to-context"
        )
    chosen = selection(clusters, options)
    with patient_progress() as step:
        step("comparing the management clusters")
        plan = run(_prepare(chosen, options))
    _show(plan, options)

    failed = blocking_errors(plan.checks, force=options.force)
    if options.dry_run:
        sys.exit(1 if failed else 0)
    if failed:
        remedy = "Correct it, or override it with --force"
        if blocking_errors(failed, force=True):
            remedy = "Correct it"
        echo(f"Not changed: a check failed. {remedy}.", err=True)
        sys.exit(1)

    confirm(options, f"Move {', '.join(plan.backup.clusters)} to {plan.target.server}?")
    # Do not move clusters that are created after the checks and the user's consent.
    keys = chosen.keys or tuple(sorted(plan.backup.cluster_keys()))
    run(_move(plan, replace(chosen, keys=keys), options), _INTERRUPTED)


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
    from commands.output.changes import show_checks
    from operations.backup.movedobjects import objects_to_delete, shared_objects
    from operations.status.model import as_json

    kept = [str(identity) for identity in shared_objects(plan.backup)]
    counts = Counter(step.identity.kind for step in plan.target.steps())
    if not change.is_text:
        content = {
            "clusters": list(plan.backup.clusters),
            "objects": dict(sorted(counts.items())),
            "shared": kept,
            "target": plan.target.server,
            "checks": as_json(tuple(plan.checks)),
        }
        print_data(content, change.output)
        return

    show_checks(plan.checks)
    echo(f"moves {', '.join(plan.backup.clusters)} to {plan.target.server}:")
    for kind, count in sorted(counts.items()):
        echo(f"  {count:>5}  {kind}")
    for name in kept:
        echo(f"shared, stays on the source: {name}")
    running = counted(len(plan.vms.states), "VM keeps", "VMs keep")
    deleted = counted(len(objects_to_delete(plan.backup)), "object")
    echo(f"deletes {deleted} on the source afterwards; {running} running")


async def _move(plan: MovePlan, chosen: Selection, options: MoveOptions) -> None:
    """Move the clusters. If the move fails, say whether they are paused and what to do."""
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
        except asyncio.CancelledError:  # an interrupt
            echo(_PAUSED, err=True)
            raise
