"""`caphv move`: clusters to another management cluster, without a restart of a VM."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.options.changes import Duration, change_options, confirm
from commands.options.clusters import InputError
from commands.options.management import (
    Selection,
    management_client,
    management_options,
    namespace_options,
    patient_progress,
    print_data,
    run,
    selection,
)

if TYPE_CHECKING:
    from caphv.runtime.client import ApiClient
    from overview.backup.files import Backup
    from overview.backup.moving import VirtualMachineState
    from overview.backup.writing import Restore
    from overview.doctor.model import Check

_T = TypeVar("_T")
_PAUSE_SECONDS = 60.0
_POLL_SECONDS = 1.0


@click.command(
    short_help="Move clusters to another management cluster.",
    epilog="""\b
Examples:
  caphv move team-a/production --to-kubeconfig new-management.yaml --dry-run
  caphv move team-a/production --to-kubeconfig new-management.yaml
  caphv move -n team-a --to-kubeconfig new-management.yaml --yes      all clusters of a namespace

\b
Exit status: 0 moved, or (with --dry-run) possible, 1 aborted or not completed, 2 a management cluster cannot be read.
""",
)
@click.argument("clusters", metavar="[CLUSTER]...", nargs=-1)
@namespace_options
@click.option("--to-kubeconfig", default="", help="Kubeconfig of the new management cluster.")
@click.option("--to-context", default="", help="Context of that kubeconfig.")
@click.option(
    "--timeout", type=Duration(), default="10m", show_default=True, metavar="TIME", help="Longest wait for adoption."
)
@click.option("--force", is_flag=True, help="Move them although a check failed.")
@change_options
@management_options
def move(clusters: tuple[str, ...], **flags: Any) -> None:
    """Move clusters with all their objects to another management cluster; their VMs keep running.

    The clusters are paused, created paused on the target and read back. Then the pause ends there, and the provider of
    the target adopts VMs, disks and addresses. Only when Harvester says that each VM belongs to the target, the objects
    are deleted on the source, without an effect on Harvester. ClusterClasses, identities, namespaces and templates that
    other clusters own, too, stay there. Interrupted or repeated, the command continues where it ended.
    """
    if not (flags["to_kubeconfig"] or flags["to_context"]):
        raise click.UsageError("name the new management cluster with --to-kubeconfig or --to-context")
    chosen = selection(clusters, flags)
    with patient_progress() as step:
        step("comparing the management clusters")
        found = run(_prepare(chosen, flags))
    _show(found, flags)
    failed = [check for check in found.checks if check.result == "error"]
    if failed and not (flags["force"] or flags["dry_run"]):
        click.echo("Not changed: a check failed. Correct it, or give --force to move them nevertheless.", err=True)
        sys.exit(1)
    if flags["dry_run"]:
        sys.exit(1 if failed else 0)
    confirm(flags, f"Move {', '.join(found.backup.clusters)} to {found.target.server}?")
    run(_move(found, chosen, flags))


@dataclass(slots=True)
class _Found:
    backup: Backup
    target: Restore
    checks: list[Check]
    vms: dict[str, VirtualMachineState]


async def _prepare(chosen: Selection, flags: dict[str, Any]) -> _Found:
    from overview.backup.moving import vm_states

    backup = await _read(chosen, flags)
    if not backup.clusters:
        raise InputError("no such cluster on the source; all namespaces: -A")
    target = await _compare(backup, flags)
    async with management_client(flags) as source:
        vms = await vm_states(source, backup)
    return _Found(backup, target, list(_checks(backup, target, vms)), vms)


async def _read(chosen: Selection, flags: dict[str, Any]) -> Backup:
    from overview.backup.moving import as_moved
    from overview.backup.reading import read_backup
    from overview.query import Query

    async with management_client(flags) as source:
        return as_moved(await read_backup(source, Query(chosen.namespace, frozenset(chosen.keys))))


async def _compare(backup: Backup, flags: dict[str, Any]) -> Restore:
    from overview.backup.writing import prepare

    async with _target(flags) as client:
        return await prepare(client, backup)


def _target(flags: dict[str, Any]) -> Any:
    return management_client({"kubeconfig": flags["to_kubeconfig"], "context": flags["to_context"]})


def _checks(backup: Backup, target: Restore, vms: dict[str, VirtualMachineState]) -> Any:
    from overview.backup.moving import expected_vms, is_resumed
    from overview.backup.order import Action, missing_of
    from overview.doctor.model import Check, Result, ok

    subject = f"management cluster {target.server}"
    origin = backup.origin
    if origin and origin.uid and origin.uid == target.uid:
        yield Check("target", subject, Result.ERROR, "source and target are the same", "Name another --to-kubeconfig")
    for problem in target.problems:
        yield Check("kinds", subject, Result.ERROR, problem, "Install the same providers as on the source")
    different = [step.identity for step in target.steps() if step.action is Action.DIFFERENT]
    for identity in different:
        message = f"{identity} exists there and is different"
        yield Check("objects", subject, Result.ERROR, message, "Delete or rename it on the target")
    if is_resumed(target):
        yield ok("resumed", subject, "the clusters run there already: an interrupted move is completed")
        return
    for what, why in {**missing_of(backup), **dict.fromkeys(backup.unseen, "it may not be read")}.items():
        yield Check("source", "source", Result.ERROR, f"{what}: {why}", "Use an account that may read it")
    lost = sorted(set(expected_vms(backup)) - set(vms))
    if lost:
        remedy = "Check Harvester and the identity: caphv doctor. Adoption could not be verified"
        yield Check("harvester", "source", Result.ERROR, f"the VM of {', '.join(lost)} cannot be read", remedy)
    else:
        yield ok("harvester", "source", f"Harvester shows all {len(vms)} VMs of machines")


def _show(found: _Found, flags: dict[str, Any]) -> None:
    from commands.output.changes import show_checks
    from overview.backup.moving import owned, shared
    from overview.model import as_json

    deleted, kept = owned(found.backup), [str(identity) for identity in shared(found.backup)]
    counts = Counter(step.identity.kind for step in found.target.steps())
    if flags["output"] != "text":
        content = {
            "clusters": list(found.backup.clusters),
            "objects": dict(sorted(counts.items())),
            "shared": kept,
        }
        print_data({**content, "target": found.target.server, "checks": as_json(tuple(found.checks))}, flags["output"])
        return
    show_checks(found.checks)
    click.echo(f"moves {', '.join(found.backup.clusters)} to {found.target.server}:")
    for kind, count in sorted(counts.items()):
        click.echo(f"  {count:>5}  {kind}")
    for name in kept:
        click.echo(f"shared, stays on the source: {name}")
    click.echo(f"deletes {len(deleted)} objects on the source afterwards; {len(found.vms)} VMs keep running")


async def _move(found: _Found, chosen: Selection, flags: dict[str, Any]) -> None:
    from overview.backup import writing
    from overview.backup.moving import delete_source, harvester_objects, is_resumed, not_paused_yet, owned, pause

    async with management_client(flags) as source:
        clusters = found.target.kinds["cluster.x-k8s.io", "Cluster"]
        await pause(source, clusters, found.backup, found.target.uid)
    _say("paused on the source", flags)

    waiting: list[str] = []

    async def paused() -> bool:
        nonlocal waiting
        found.backup = await _read(chosen, flags)
        waiting = not_paused_yet(harvester_objects(found.backup))
        return not waiting

    if not await _until(paused, _PAUSE_SECONDS) and not flags["force"]:
        _stop(f"the provider of the source does not confirm the pause of {', '.join(waiting[:3])}: does it run?")
    restore = await _compare(found.backup, flags)
    async with _target(flags) as target:
        if not is_resumed(restore):
            failed = await writing.create(target, restore) or await writing.verify(target, restore)
            if failed and not flags["force"]:
                _stop("; ".join(failed))
            _say(f"created {len(restore.backup.objects)} objects on the target, and read them back", flags)
        if failed := await writing.unpause(target, restore):
            _stop("; ".join(failed))
        await _adopted(target, found, restore, flags)
    async with management_client(flags) as source:
        steps = [step for step in restore.steps() if step.identity in found.backup.objects]
        failed = await delete_source(source, restore.kinds, steps, owned(found.backup))
    if failed:
        _stop(f"adopted by the target, and not deleted on the source: {'; '.join(failed)}")
    _say("deleted on the source. Follow the clusters on the target: caphv status -A --watch", flags)


async def _adopted(target: ApiClient, found: _Found, restore: Restore, flags: dict[str, Any]) -> None:
    """Wait until Harvester says that all VMs belong to the target, and that none was replaced or restarted."""
    from overview.backup.moving import vm_states

    now: dict[str, VirtualMachineState] = {}

    async def all_adopted() -> bool:
        nonlocal now
        now = await vm_states(target, found.backup)
        return all(name in now and now[name].management_cluster == restore.uid for name in found.vms)

    if not await _until(all_adopted, flags["timeout"]):
        left = [name for name in found.vms if name not in now or now[name].management_cluster != restore.uid]
        _stop(f"the target has not adopted the VMs of {', '.join(left)}: check its provider, caphv status there")
    changed = [
        name
        for name, before in found.vms.items()
        if (now[name].uid, now[name].instance) != (before.uid, before.instance)
    ]
    if changed:
        _stop(f"the VMs of {', '.join(changed)} were replaced or restarted meanwhile")
    _say(f"the target has adopted {len(now)} VMs; none was restarted", flags)


async def _until(condition: Callable[[], Coroutine[Any, Any, bool]], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110 - it depends on three servers
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        return False
    return True


def _say(text: str, flags: dict[str, Any]) -> None:
    click.echo(text, err=flags["output"] != "text")


def _stop(why: str) -> None:
    click.echo(f"Error: {why}", err=True)
    click.echo(
        "The clusters are paused on the source, where nothing was lost. Correct it and run this again.", err=True
    )
    sys.exit(1)
