"""`caphv delete`: a cluster and what it has on Harvester; what a deletion waits for, and how to end one that cannot."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caphv.api import remedies
from caphv.api.counting import counted
from commands.options.changes import confirm
from commands.options.management import (
    Selection,
    cluster_argument,
    management_client,
    management_options,
    patient_progress,
    read_overview,
    run,
    selection,
)
from commands.output.echo import echo

if TYPE_CHECKING:
    from caphv.api.object import Key
    from overview.deletionreport import Leftover, PendingDeletion
    from overview.diagnosis import Parts
    from overview.objects import ManagementObjects


@click.command(
    short_help="Delete a cluster, or say what its deletion waits for.",
    epilog="""\b
Examples:
  caphv delete team-a/old --explain
  caphv delete team-a/old --dry-run
  caphv delete team-a/old
  caphv delete team-a/old --force       when its Harvester does not answer any more

\b
Exit status: 0 done, 1 aborted, or (with --explain) the deletion is stuck, 2 the management cluster cannot be read.
""",
)
@cluster_argument
@click.option("--explain", is_flag=True, help="Change nothing; say what the deletion waits for.")
@click.option(
    "--force",
    is_flag=True,
    help="Delete the cluster even if Harvester does not answer, and save a list of what may remain there.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for that list.  [default: NAMESPACE-NAME-leftovers.yaml]",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@management_options
def delete(cluster: str, **flags: Any) -> None:
    """Delete a Cluster with all that belongs to it, on the management cluster and on Harvester.

    With --force the provider leaves behind what it cannot delete on a Harvester that does not answer. While Harvester
    answers, --force changes nothing: everything is deleted as usual.
    """
    if flags["explain"] and (flags["force"] or flags["dry_run"]):
        raise click.UsageError("--explain changes nothing: give it alone")
    chosen = selection((cluster,), {**flags, "all_namespaces": False})
    from overview.assembly import parts_of
    from overview.deletionreport import pending_deletions

    if flags["explain"]:
        _explain_remains(chosen, flags)
    with patient_progress() as step:
        objects = read_overview(flags, chosen, step, deep=False).objects
    parts = next(each for each in parts_of(objects) if each.key in chosen.keys)
    if flags["explain"]:
        waits = pending_deletions(parts, datetime.now(UTC))
        _explain(parts, waits)
        sys.exit(1 if any(wait.stuck for wait in waits) else 0)
    _announce(parts, force=flags["force"])
    if flags["dry_run"]:
        return
    confirm(flags, f"Delete cluster {parts.key}?")
    if flags["force"]:
        _save(parts, flags["save"] or Path(f"{parts.key.namespace}-{parts.key.name}-leftovers.yaml"))
    run(_delete(parts, flags))
    click.echo(
        f"Deletion of cluster {parts.key} has begun. What it waits for: {remedies.EXPLAIN_DELETION(ref=parts.key)}"
    )


def _explain_remains(chosen: Selection, flags: dict[str, Any]) -> None:
    """Explain what is left of a cluster without its Cluster object, and end the command; else do nothing."""
    from caphv.api.object import key_of
    from overview.deletionreport import pending_remains, remains_of
    from overview.reader import read_management

    key = chosen.keys[0]

    async def read() -> ManagementObjects:
        async with management_client(flags) as client:
            return await read_management(client, key.namespace)

    objects = run(read())
    left = None if key in map(key_of, objects.clusters) else remains_of(objects, key)
    if left is None:
        return
    echo(f"Cluster {key} no longer exists, and objects of it do")
    waits = pending_remains(left, datetime.now(UTC))
    _show_waits(key, waits, force=False)
    sys.exit(1)


def _explain(parts: Parts, waits: Iterable[PendingDeletion]) -> None:
    from caphv.api.object import being_deleted
    from overview.remedies import resume_command

    if not being_deleted(parts.cluster):
        echo(f"Cluster {parts.key} is not being deleted")
    # While the Cluster is paused, --force deletes nothing either.
    _show_waits(parts.key, waits, force=not resume_command(parts.cluster))


def _show_waits(key: Key, waits: Iterable[PendingDeletion], *, force: bool) -> None:
    from commands.output.overview import age

    now = datetime.now(UTC)
    for wait in waits:
        mark = "✗" if wait.stuck else "…"
        since = f"  ({age(wait.since, now)})" if wait.since else ""
        echo(f"{mark} {wait.object} waits for: {wait.reason}{since}")
        if wait.next_step:
            echo(f"  {wait.next_step}")
        if wait.stuck and force and not wait.paused and wait.object.startswith("Harvester"):
            click.echo(f"  If its Harvester does not come back: {remedies.FORCE_DELETION(ref=key)}")


def _announce(parts: Parts, *, force: bool) -> None:
    from caphv.api.object import being_deleted
    from overview.deletionreport import forcible, leftovers_of
    from overview.diagnosis import resume_commands
    from overview.remedies import resume_command

    echo(f"Cluster {parts.key}: {counted(len(parts.machines), 'machine')}")
    if resume_command(parts.cluster):
        echo(f"! it is paused: no controller deletes anything until you resume it: {resume_commands(parts)}")
    elif command := resume_commands(parts):
        echo("! its HarvesterCluster is paused: VMs are deleted; load balancer and HarvesterCluster stay until you")
        echo(f"  resume it: {command}")
    server = ((parts.harvester_cluster or {}).get("spec") or {}).get("server")
    for line in _lines(leftovers_of(parts)):
        echo(f"  {'may remain' if force else 'deletes'} on Harvester {server}: {line}")
    if force:
        click.echo(f"  sets annotation caphv.io/force-delete on {counted(len(forcible(parts)), 'object')}")
    if being_deleted(parts.cluster):
        click.echo("  its deletion was requested before")


def _lines(left: Iterable[Leftover]) -> Iterable[str]:
    found = list(left)
    for kind, count in Counter(each.kind for each in found).items():
        names = [each.name for each in found if each.kind == kind]
        more = f" and {count - 3} more" if count > 3 else ""
        yield f"{count} {kind}: {', '.join(names[:3])}{more}"


def _save(parts: Parts, file: Path) -> None:
    """Add the list of what may remain to the file before anything is forced: afterwards no object knows it any more.

    A further run adds a YAML document: objects that the first one lists may no longer exist by then.
    """
    import yaml

    from overview.deletionreport import leftovers_of
    from overview.model import as_json

    spec = (parts.harvester_cluster or {}).get("spec") or {}
    content = {
        "cluster": str(parts.key),
        "harvester": str(spec.get("server") or ""),
        "objects": as_json(leftovers_of(parts)),
    }
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as target:
        if os.fstat(target.fileno()).st_size:
            target.write("\n")  # its last line may not end with one
        yaml.safe_dump(content, target, sort_keys=False, allow_unicode=True, explicit_start=True)
    click.echo(f"saved what may remain on Harvester to {file}")


async def _delete(parts: Parts, flags: dict[str, Any]) -> None:
    """Delete the Cluster, and force what belongs to it. Raises `ApiError`, `Unreachable`.

    In this order: a deletion that is refused or interrupted leaves no annotation on objects of a cluster that lives.
    """
    from caphv.api import resources
    from caphv.api.names import FORCE_DELETE_ANNOTATION
    from caphv.api.object import being_deleted, key_of, uid_of
    from caphv.runtime.errors import NotFound
    from overview.deletionreport import forcible
    from overview.reader import kinds_of

    annotation = {"metadata": {"annotations": {FORCE_DELETE_ANNOTATION: "true"}}}
    kinds = {"HarvesterMachine": resources.HARVESTER_MACHINES, "HarvesterCluster": resources.HARVESTER_CLUSTERS}
    async with management_client(flags) as client:
        if not being_deleted(parts.cluster):
            clusters = (await kinds_of(client))["clusters"]
            with suppress(NotFound):  # deleted meanwhile
                await client.delete(clusters, parts.key.name, parts.key.namespace, uid=uid_of(parts.cluster))
        for kind, obj in forcible(parts) if flags["force"] else ():
            key = key_of(obj)
            with suppress(NotFound):
                await client.patch(kinds[kind], key.name, key.namespace, annotation)
