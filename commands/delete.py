"""`caphv delete`: a cluster and what it has on Harvester, and what a deletion waits for."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from caphv.api import remedies
from caphv.api.counting import counted, name_some
from commands.access.changes import confirm
from commands.access.management import management_client, read_overview, run
from commands.errors import InputError
from commands.options.changes import ChangeOptions, change_options
from commands.options.groups import fill
from commands.options.management import (
    ManagementOptions,
    ScopeOptions,
    Selection,
    cluster_argument,
    management_options,
    selection,
)
from commands.output.data import print_data
from commands.output.echo import echo
from commands.output.progress import patient_progress

if TYPE_CHECKING:
    from caphv.api.object import Key
    from operations.change.deletion import Remains
    from operations.change.deletionreport import Leftover, PendingDeletion
    from operations.status.parts import Parts


@click.command(
    short_help="Delete a cluster, or explain what its deletion waits for.",
    epilog="""\b
Examples:
  caphv delete team-a/old --explain
  caphv delete team-a/old --dry-run
  caphv delete team-a/old
  caphv delete team-a/old --force       if its Harvester no longer answers

Exit status: 0 done, 1 aborted, or with --explain the deletion is stuck, 2 the management cluster
cannot be read, or Rancher provisions the cluster.
""",
)
@cluster_argument
@click.option(
    "--explain", is_flag=True, help="Explain what the deletion waits for, and change nothing."
)
@click.option(
    "--force",
    is_flag=True,
    help=(
        "Delete the cluster even if Harvester does not answer, and save a list of what "
        "may remain there."
    ),
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the list that --force saves.  [default: NAMESPACE-NAME-leftovers.yaml]",
)
@change_options
@management_options
@fill(change=ChangeOptions, scope=ScopeOptions)
def delete(
    cluster: str,
    save: Path | None,
    *,
    explain: bool,
    force: bool,
    change: ChangeOptions,
    scope: ScopeOptions,
) -> None:
    """Delete a Cluster with everything that belongs to it, on the management cluster and on
    Harvester.

    The command requests the deletion and does not wait for its end; --explain says what it waits
    for. With --force, the provider also completes the deletion if Harvester does not answer for a
    minute, and leaves behind what it cannot delete there. While Harvester answers, --force has no
    effect.
    """
    from operations.change.changes import ChangeError
    from operations.change.clusterparts import unread_kinds
    from operations.change.deletion import check_deletable, save_leftovers
    from operations.change.deletionreport import pending_deletions
    from operations.status.assembly import parts_of

    if explain and (force or change.dry_run):
        raise click.UsageError("--explain cannot be used with --force or --dry-run")
    chosen = selection((cluster,), scope)
    if explain:
        _explain_remains(chosen, scope, change)
    with patient_progress() as step:
        objects = read_overview(scope, chosen, step, deep=False).objects
    parts = next(parts for parts in parts_of(objects) if parts.key in chosen.keys)
    unread = unread_kinds(objects, parts.cluster)
    if force and unread.infrastructure:
        # The provider would wait for Harvester, and what it leaves there would not be listed.
        reasons = "; ".join(map(str, unread.infrastructure))
        raise InputError(
            f"--force needs all objects of the cluster, some cannot be read: {reasons}"
        )
    for unseen in unread.all():
        echo(f"not seen: {unseen}", err=True)

    if explain:
        waits = pending_deletions(parts, datetime.now(UTC))
        _explain(parts, waits, change)
        sys.exit(1 if any(wait.stuck for wait in waits) else 0)

    try:
        check_deletable(parts)
    except ChangeError as error:
        raise InputError(*error.problems) from None
    if change.is_text:
        _announce(parts, force=force)
    if change.dry_run:
        _report(parts, change, applied=False)
        return
    confirm(change, f"Delete cluster {parts.key}?")
    if force:
        # The list is saved before the deletion, because afterwards no object refers to the
        # leftovers.
        file = save or Path(f"{parts.key.namespace}-{parts.key.name}-leftovers.yaml")
        save_leftovers(parts, file)
        click.echo(
            f"saved a list of what may remain on Harvester to {file}", err=not change.is_text
        )
        click.echo(
            f"  to find it when Harvester answers again: {remedies.LIST_LEFTOVERS}",
            err=not change.is_text,
        )
    run(_delete(parts, scope, force=force))
    _report(parts, change, applied=True)
    click.echo(
        f"Deletion of cluster {parts.key} has begun. To see what it waits for: "
        f"{remedies.EXPLAIN_DELETION(ref=parts.key)}",
        err=not change.is_text,
    )


def _report(parts: Parts, change: ChangeOptions, *, applied: bool) -> None:
    """Write what is deleted as data, unless the output is text."""
    from operations.change.deletionreport import leftovers_of

    if not change.is_text:
        item = {
            "cluster": str(parts.key),
            "harvester": leftovers_of(parts),
            "applied": applied,
        }
        print_data(change.output, items=[item])


def _explain_remains(
    chosen: Selection, management: ManagementOptions, change: ChangeOptions
) -> None:
    """Show the remaining objects of a cluster whose Cluster was deleted, and end the command.

    Does nothing if the Cluster exists, or nothing remains.
    """
    from operations.change.deletion import read_remains
    from operations.change.deletionreport import pending_remains

    key = chosen.keys[0]

    async def read() -> Remains | None:
        async with management_client(management) as client:
            return await read_remains(client, key)

    remains = run(read())
    if remains is None:
        return
    if remains.parts is None:
        reasons = "; ".join(map(str, remains.unseen))
        raise InputError(
            f"Cluster {key} does not exist, and whether objects of it remain is unknown: {reasons}"
        )
    for unseen in remains.unseen:
        echo(f"not seen: {unseen}", err=True)

    waits = pending_remains(remains.parts, datetime.now(UTC))
    if change.is_text:
        echo(f"Cluster {key} no longer exists, but some of its objects do")
        _show_waits(key, waits, force=False)
    else:
        print_data(change.output, items=waits)
    sys.exit(1)


def _explain(parts: Parts, waits: Iterable[PendingDeletion], change: ChangeOptions) -> None:
    """Show what a deletion waits for."""
    from caphv.api.object import being_deleted
    from operations.status.remedies import resume_command

    if not change.is_text:
        print_data(change.output, items=waits)
        return
    if not being_deleted(parts.cluster):
        echo(f"Cluster {parts.key} is not being deleted")
    # While the Cluster is paused, --force deletes nothing either.
    _show_waits(parts.key, waits, force=not resume_command(parts.cluster))


def _show_waits(key: Key, deletions: Iterable[PendingDeletion], *, force: bool) -> None:
    """Write what each object waits for, and with `force` when a forced deletion would help."""
    from commands.output.overview import age

    now = datetime.now(UTC)
    for deletion in deletions:
        mark = "✗" if deletion.stuck else "…"
        since = f"  ({age(deletion.since, now)})" if deletion.since else ""
        echo(f"{mark} {deletion.object} waits for: {deletion.reason}{since}")
        if deletion.next_step:
            echo(f"  {deletion.next_step}")
        is_on_harvester = deletion.object.startswith("Harvester")
        if force and deletion.stuck and not deletion.paused and is_on_harvester:
            click.echo(f"  If its Harvester does not come back: {remedies.FORCE_DELETION(ref=key)}")


def _announce(parts: Parts, *, force: bool) -> None:
    """Show the objects that will be deleted or may remain, and pauses that stop the deletion."""
    from caphv.api.object import being_deleted, text_at
    from operations.change.deletionreport import forcible, leftovers_of
    from operations.status.parts import resume_commands
    from operations.status.remedies import resume_command

    echo(f"Cluster {parts.key}: {counted(len(parts.machines), 'machine')}")
    if resume_command(parts.cluster):
        echo(
            "! it is paused: no controller deletes anything until you resume it: "
            f"{resume_commands(parts)}"
        )
    elif command := resume_commands(parts):
        echo(
            "! its HarvesterCluster is paused: VMs are deleted; load balancer and HarvesterCluster "
            "stay until you"
        )
        echo(f"  resume it: {command}")

    # A HarvesterCluster that does not exist, or cannot be read, does not tell the server.
    server = text_at(parts.harvester_cluster, "spec", "server")
    harvester = f"Harvester {server}" if server else "Harvester"
    for line in _count_by_kind(leftovers_of(parts)):
        echo(f"  {'may remain' if force else 'deletes'} on {harvester}: {line}")
    if force:
        click.echo(
            f"  sets annotation caphv.io/force-delete on {counted(len(forcible(parts)), 'object')}"
        )
    if being_deleted(parts.cluster):
        click.echo("  its deletion was already requested")


def _count_by_kind(leftovers: Iterable[Leftover]) -> Iterable[str]:
    """Yield a line for each kind: the number of objects, and the names of the first three."""
    objects = list(leftovers)
    for kind, count in Counter(obj.kind for obj in objects).items():
        names = [obj.name for obj in objects if obj.kind == kind]
        yield f"{counted(count, kind)}: {name_some(names, 3)}"


async def _delete(parts: Parts, management: ManagementOptions, *, force: bool) -> None:
    from operations.change.deletion import delete_cluster

    async with management_client(management) as client:
        await delete_cluster(client, parts, force=force)
