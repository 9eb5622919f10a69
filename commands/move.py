"""`caphv move`: clusters to another management cluster, without a restart of a VM."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from caphv.api import remedies
from caphv.api.counting import counted
from commands.options.changes import Duration, change_options, confirm
from commands.options.clusters import InputError
from commands.options.harvesters import insecure_option
from commands.options.management import (
    Selection,
    clusters_argument,
    management_client,
    management_options,
    namespace_options,
    patient_progress,
    print_data,
    run,
    selection,
)
from commands.output.echo import echo

if TYPE_CHECKING:
    from caphv.runtime.client import ApiClient
    from overview.backup.adoption import VirtualMachines
    from overview.backup.files import Backup
    from overview.backup.writing import Restore
    from overview.doctor.model import Check

_T = TypeVar("_T")
_PAUSE_SECONDS = 60.0
_POLL_SECONDS = 1.0
_PAUSED = "The clusters are paused on the source, where nothing was lost. Correct it and run this again."
_INTERRUPTED = "Interrupted. Clusters may be paused on the source, where nothing was lost: run this again to continue."
_PERHAPS_PAUSED = _PAUSED.replace("The clusters are", "Clusters may be")


@click.command(
    short_help="Move clusters to another management cluster.",
    epilog="""\b
Examples:
  caphv move team-a/production --to-kubeconfig new-management.yaml --dry-run
  caphv move team-a/production --to-kubeconfig new-management.yaml
  caphv move -n team-a --to-kubeconfig new-management.yaml --yes      all clusters of a namespace

\b
Exit status: 0 moved, or (with --dry-run) possible, 1 aborted or not completed, 2 a management cluster cannot be read,
and nothing was changed.
""",
)
@clusters_argument()
@namespace_options
@click.option("--to-kubeconfig", default="", help="Kubeconfig of the new management cluster.")
@click.option("--to-context", default="", help="Context of that kubeconfig.")
@click.option(
    "--timeout",
    type=Duration(),
    default="10m",
    show_default=True,
    metavar="TIME",
    help="Maximum time to wait for adoption.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Move them although a VM is absent, a shared ConfigMap differs, the target refuses a dry run or the pause is "
    "not confirmed.",
)
@change_options
@insecure_option
@management_options
def move(clusters: tuple[str, ...], **flags: Any) -> None:
    """Move clusters with all their objects to another management cluster; their VMs keep running.

    The clusters are paused, created paused on the target and read back. Then the pause ends there, and the provider of
    the target adopts VMs, disks and addresses. Only when Harvester says that each VM belongs to the target, the objects
    are deleted on the source, without an effect on Harvester. ClusterClasses, identities, namespaces and templates that
    other clusters own, too, stay there. Interrupted or repeated, the command continues where it ended.
    """
    from overview.backup.preflight import stopping

    if not (flags["to_kubeconfig"] or flags["to_context"]):
        raise click.UsageError("name the new management cluster with --to-kubeconfig or --to-context")
    chosen = selection(clusters, flags)
    with patient_progress() as step:
        step("comparing the management clusters")
        found = run(_prepare(chosen, flags))
    _show(found, flags)
    failed = stopping(found.checks, force=flags["force"])
    if flags["dry_run"]:
        sys.exit(1 if failed else 0)
    if failed:
        remedy = "Correct it" if stopping(failed, force=True) else "Correct it, or override it with --force"
        echo(f"Not changed: a check failed. {remedy}.", err=True)
        sys.exit(1)
    confirm(flags, f"Move {', '.join(found.backup.clusters)} to {found.target.server}?")
    # A cluster that is created from now on was not checked, nor agreed to.
    keys = chosen.keys or tuple(sorted(found.backup.cluster_keys()))
    run(_move(found, replace(chosen, keys=keys), flags), _INTERRUPTED)


@dataclass(slots=True)
class _Found:
    backup: Backup
    target: Restore
    checks: list[Check]
    vms: VirtualMachines


async def _prepare(chosen: Selection, flags: dict[str, Any]) -> _Found:
    from overview.backup.adoption import read_vms
    from overview.backup.moving import is_resumed
    from overview.backup.preflight import checks, stopping

    backup = await _read(chosen, flags)
    if not backup.clusters:
        chosen.require(set())
        raise InputError(f"no clusters in namespace {chosen.namespace}; all namespaces: -A")
    target = await _compare(backup, flags)
    await _require(chosen, backup, target, flags)
    async with management_client(flags) as source:
        vms = await read_vms(source, backup)
    found = checks(backup, target, vms)
    if not stopping(found, force=True) and not is_resumed(target):
        found += await _tried(target, flags)
    return _Found(backup, target, found, vms)


async def _tried(target: Restore, flags: dict[str, Any]) -> list[Check]:
    from overview.backup.dryrun import try_creation
    from overview.backup.preflight import creation_checks

    async with _target(flags) as client:
        return creation_checks(target, await try_creation(client, target))


async def _read(chosen: Selection, flags: dict[str, Any]) -> Backup:
    from overview.backup.moving import as_moved
    from overview.backup.reading import read_backup
    from overview.query import Query

    async with management_client(flags) as source:
        backup = await read_backup(source, Query(chosen.namespace, frozenset(chosen.keys)))
    return as_moved(backup, chosen.keys)


async def _compare(backup: Backup, flags: dict[str, Any]) -> Restore:
    from overview.backup.writing import prepare

    async with _target(flags) as client:
        return await prepare(client, backup)


async def _require(chosen: Selection, backup: Backup, target: Restore, flags: dict[str, Any]) -> None:
    """Raise `InputError` unless each named cluster is on the source, or on the target after an interrupted move."""
    from overview.backup.moving import moved_before

    known, clusters = backup.cluster_keys(), target.kinds.get(("cluster.x-k8s.io", "Cluster"))
    absent = [key for key in chosen.keys if key not in known]
    if absent and clusters:
        async with _target(flags) as client:
            known |= await moved_before(client, clusters, absent)
    chosen.require(known)


def _target(flags: dict[str, Any]) -> Any:
    return management_client({"kubeconfig": flags["to_kubeconfig"], "context": flags["to_context"]})


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
    echo(f"moves {', '.join(found.backup.clusters)} to {found.target.server}:")
    for kind, count in sorted(counts.items()):
        echo(f"  {count:>5}  {kind}")
    for name in kept:
        echo(f"shared, stays on the source: {name}")
    running = counted(len(found.vms.states), "VM keeps", "VMs keep")
    echo(f"deletes {counted(len(deleted), 'object')} on the source afterwards; {running} running")


async def _move(found: _Found, chosen: Selection, flags: dict[str, Any]) -> None:
    """Move the clusters. From the first pause on, whatever ends this says that they are paused, and what to do."""
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import KubeconfigError
    from overview.reader import NoClusterApiError

    try:
        await _moved(found, chosen, flags)
    except (ApiError, Unreachable, KubeconfigError, NoClusterApiError) as error:
        _stop(f"a request failed: {error}")
    except asyncio.CancelledError:  # an interrupt
        echo(_PAUSED, err=True)
        raise


async def _moved(found: _Found, chosen: Selection, flags: dict[str, Any]) -> None:
    restore = await _paused(found, chosen, flags)
    await _created(restore, flags)
    async with _target(flags) as target:
        await _adopted(target, found, restore, flags)
    await _deleted(await _compare(restore.backup, flags), flags)
    _say(f"deleted on the source. Follow the clusters on the target: {remedies.FOLLOW_ALL}", flags)


async def _paused(found: _Found, chosen: Selection, flags: dict[str, Any]) -> Restore:
    """Pause the clusters, and return them as they are from then on, compared and checked again."""
    from caphv.runtime.errors import ApiError, Unreachable
    from overview.backup.moving import harvester_objects, not_paused_yet, pause
    from overview.backup.preflight import checks, stopping

    async with management_client(flags) as source:
        try:
            await pause(source, found.target.kinds["cluster.x-k8s.io", "Cluster"], found.backup, found.target.uid)
        except (ApiError, Unreachable) as error:
            _stop(f"not all clusters could be paused: {error}", state=_PERHAPS_PAUSED)
    _say("paused on the source", flags)
    backup, waiting = found.backup, list[str]()

    async def paused() -> bool:
        nonlocal backup, waiting
        backup = await _read(chosen, flags)
        waiting = not_paused_yet(harvester_objects(backup))
        return not waiting

    if not await _until(paused, _PAUSE_SECONDS) and not flags["force"]:
        _stop(f"the provider of the source does not confirm the pause of {', '.join(waiting[:3])}: does it run?")
    restore = await _compare(backup, flags)
    if failed := stopping(checks(backup, restore, found.vms), force=flags["force"]):
        _stop(*(f"{check.message}. {check.remedy}" for check in failed))
    return restore


async def _created(restore: Restore, flags: dict[str, Any]) -> None:
    """Create everything on the target, compare it, and end the pause there."""
    from overview.backup import writing
    from overview.backup.moving import is_resumed

    async with _target(flags) as target:
        if not is_resumed(restore):
            if failed := await writing.create(target, restore) or await writing.verify(target, restore):
                _stop(*failed)
            _say(f"created {counted(len(restore.backup.objects), 'object')} on the target, and read them back", flags)
        if failed := await writing.unpause(target, restore):
            _stop(*failed)


async def _adopted(target: ApiClient, found: _Found, restore: Restore, flags: dict[str, Any]) -> None:
    """Wait until Harvester says that all VMs belong to the target, and that none was replaced or restarted."""
    from overview.backup.adoption import VirtualMachines, read_vms

    now, left = VirtualMachines(), ["all machines"]

    async def all_adopted() -> bool:
        nonlocal now, left
        now = await read_vms(target, restore.backup)
        left = now.not_adopted(found.vms, restore.uid)
        return not left

    if not await _until(all_adopted, flags["timeout"]):
        _stop(f"the target has not adopted the VMs of {', '.join(left)}: check its provider, caphv status there")
    if changed := now.changed(found.vms):
        _stop(f"the VMs of {', '.join(changed)} were replaced or restarted meanwhile")
    _say(f"the target has adopted {counted(len(now.states), 'VM')}; none was restarted", flags)


async def _deleted(target: Restore, flags: dict[str, Any]) -> None:
    """Delete on the source what exists on the target, which was read again for that."""
    from overview.backup.moving import absent_on, delete_source, owned

    if absent := absent_on(target):
        names = ", ".join(map(str, absent))
        _stop(
            f"does not exist on the target: {names}. If it was deleted there, delete it here, too: first its finalizers"
        )
    async with management_client(flags) as source:
        failed = await delete_source(source, target.kinds, target.steps(), owned(target.backup))
    if failed:
        _stop(f"adopted by the target, and not deleted on the source: {'; '.join(failed)}")


async def _until(condition: Callable[[], Coroutine[Any, Any, bool]], seconds: float) -> bool:
    """Wait for a condition; a server that does not answer is asked again. Raises `ApiError`, `Unreachable`."""
    from caphv.runtime.errors import ApiError, ServerFault, TooManyRequests, Unreachable

    failure: ApiError | Unreachable | None = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    if await condition():
                        return True
                    failure = None
                except (Unreachable, ServerFault, TooManyRequests) as error:
                    failure = error
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        if failure:
            raise failure from None
        return False


def _say(text: str, flags: dict[str, Any]) -> None:
    echo(text, err=flags["output"] != "text")


def _stop(*errors: str, state: str = _PAUSED) -> None:
    for error in errors:
        echo(f"Error: {error}", err=True)
    echo(state, err=True)
    sys.exit(1)
