"""`caphv restore`: clusters from a backup on a management cluster, with their VMs as they run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from caphv.api import remedies
from caphv.api.counting import counted, name_some
from commands.access.changes import confirm
from commands.access.management import management_client, run
from commands.errors import CommandError, InputError
from commands.options.changes import ChangeOptions
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.management import ManagementOptions, management_options
from commands.options.passphrase import passphrase_options, read_passphrase
from commands.output.data import print_data
from commands.output.echo import echo
from commands.output.progress import patient_progress

if TYPE_CHECKING:
    from operations.backup.files import Backup
    from operations.backup.order import Step
    from operations.backup.writing import Restore

_INTERRUPTED = "Interrupted. Restored clusters may be paused. Run the command again to continue."


@dataclass(frozen=True, kw_only=True)
class RestoreOptions(ManagementOptions, ChangeOptions):
    """Options of a restore; `stopped` confirms that the old management cluster does not run."""

    passphrase_file: Path | None
    unencrypted: bool
    incomplete: bool
    keep_existing: bool
    accept_differences: bool
    stopped: bool
    show_ip_pools: bool
    harvester_server: str

    def say(self, text: str) -> None:
        """Write a line for people: to standard error if the output is data."""
        echo(text, err=not self.is_text)


@click.command(
    short_help="Restore clusters from a backup; their VMs keep running.",
    epilog="""\b
Examples:
  caphv restore backups/2026-11-22 --dry-run
  caphv restore backups/2026-11-22 --kubeconfig new-management.yaml
  caphv restore backups/2026-11-22 --show-ip-pools > pools.yaml
  caphv restore backups/shop --yes --old-management-cluster-stopped --passphrase-file passphrase

Exit status: 0 restored, 1 aborted, failed or still paused, 2 the backup or the management cluster
cannot be read, or the restore is refused. With --dry-run: 0 the restore is possible, 1 parts are
missing, or objects differ or are refused.
""",
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@passphrase_options
@click.option(
    "--unencrypted",
    is_flag=True,
    help=(
        "Restore a backup that is not encrypted: anyone who can write to its files "
        "decides what is restored."
    ),
)
@click.option(
    "--incomplete", is_flag=True, help="Restore the backup even if parts of it are missing."
)
@click.option(
    "--keep-existing",
    is_flag=True,
    help="Keep existing objects that differ from the backup.",
)
@click.option(
    "--accept-differences",
    is_flag=True,
    help="End the pause even if created objects differ from the backup.",
)
@click.option(
    "--old-management-cluster-stopped",
    "stopped",
    is_flag=True,
    help="Confirm that the old management cluster is stopped, and end the pause without asking.",
)
@click.option(
    "--show-ip-pools",
    is_flag=True,
    help="Print the IPPools of the backup as manifests for Harvester, and restore nothing.",
)
@click.option(
    "--harvester-server",
    default="",
    metavar="URL",
    help=(
        "With --show-ip-pools: URL of the Harvester whose IPPools to print, if the "
        "backup has several."
    ),
)
@click.option(
    "-y", "--yes", is_flag=True, help="Create the objects without asking; they stay paused."
)
@click.option("--dry-run", is_flag=True, help="Show what would be created, and change nothing.")
@output_option()
@management_options
@fill(options=RestoreOptions)
def restore(directory: Path, options: RestoreOptions) -> None:
    """Restore the clusters of a backup in DIR on a management cluster, whose provider adopts their
    VMs.

    The command creates all objects paused and reads them back. It ends the pause when you confirm
    that the old management cluster is stopped, because two management clusters with the same
    machines would delete each other's VMs. VMs, disks and addresses stay as they are. After an
    interruption, run the command again to continue.
    """
    from operations.backup.order import Action
    from operations.backup.writing import is_paused_by_us

    backup = _read_backup(directory, options)
    if options.show_ip_pools:
        if not options.is_text:
            raise click.UsageError("--show-ip-pools writes manifests: leave out --output")
        _show_pools(backup, options.harvester_server)
        return
    if options.harvester_server:
        raise click.UsageError("--harvester-server needs --show-ip-pools")

    # A dry run reports all problems. Otherwise the first problem ends the command.
    is_complete = _show_missing(backup, options)
    with patient_progress() as step:
        step("comparing with the management cluster")
        plan = run(_prepare(backup, options))
    # Read back, objects that were created would be the same as those of the backup.
    steps = plan.steps()
    _show_plan(plan, options)
    pending = sum(step.action is Action.CREATE for step in steps)
    is_different = _refuse_differences(plan, options)
    if options.dry_run:
        refused = _try_creation(plan, options)
        _report(plan, steps, options, refused=refused)
        sys.exit(0 if is_complete and not is_different and not refused else 1)
    if not pending and not is_paused_by_us(plan):
        options.say("Nothing to do: all objects exist, and none is paused by this restore")
        _report(plan, steps, options)
        return

    # After an interrupted restore, all objects may exist, so that only their pause must end.
    if pending:
        confirm(options, f"Create {counted(pending, 'object')}, paused, on {plan.server}?")
    with patient_progress() as step:
        step(f"creating {counted(pending, 'object')}")
        failed = run(_create(plan, options), _INTERRUPTED)
    if failed:
        number = counted(len(failed), "object")
        _fail(failed, f"{number} could not be created. Correct the cause and run the command again")

    with patient_progress() as step:
        step("reading all objects back")
        failed = run(_verify(plan, options), _INTERRUPTED)
    if failed and not options.accept_differences:
        remedy = (
            "Correct them and run the command again, or accept the differences with "
            "--accept-differences"
        )
        _fail(failed, f"Created objects differ from the backup, and all stay paused. {remedy}")
    options.say(f"Verified {counted(len(backup.objects), 'object')}; differences: {len(failed)}")
    is_running = _resume(plan, options)
    _report(plan, steps, options, applied=True, paused=not is_running)
    if not is_running:
        sys.exit(1)


def _read_backup(directory: Path, options: RestoreOptions) -> Backup:
    """Read a backup. Raises `InputError`, `click.UsageError`."""
    from operations.backup import files

    if options.unencrypted and options.passphrase_file:
        raise click.UsageError("--unencrypted and --passphrase-file are mutually exclusive")
    passphrase = None if options.unencrypted else lambda: read_passphrase(options.passphrase_file)
    try:
        return files.read(directory, passphrase)
    except files.BackupError as error:
        raise InputError(str(error)) from None


def _report(
    plan: Restore,
    steps: Sequence[Step],
    options: RestoreOptions,
    *,
    applied: bool = False,
    paused: bool = False,
    refused: Sequence[str] = (),
) -> None:
    """Write the restore as data, unless the output is text.

    :param plan: the restore
    :param steps: the steps before the restore
    :param options: the format
    :param applied: whether objects were created
    :param paused: whether the restored clusters stay paused
    :param refused: objects that a dry run refuses, with the reason
    """
    from operations.backup.order import Action

    if options.is_text:
        return
    items = [
        {
            "object": str(step.identity),
            "action": step.action,
            "wrong": step.action is Action.DIFFERENT and not options.keep_existing,
            "applied": applied and step.action is Action.CREATE,
        }
        for step in steps
    ]
    print_data(
        options.output,
        server=plan.server,
        clusters=plan.backup.clusters,
        paused=paused,
        refused=refused,
        unseen=plan.backup.unseen,
        items=items,
    )


def _show_pools(backup: Backup, server: str) -> None:
    """Write the IPPools of one Harvester as manifests, and name those that are missing.

    :param backup: the backup
    :param server: the URL of the Harvester; empty if there is only one
    """
    from operations.backup.pools import absence_of, manifests_of

    if backup.pools is None:
        raise InputError("the backup has no IPPools: it was made without --ip-pools")
    servers = sorted(backup.pools.keys() | backup.missing_pools.keys())
    if server and server not in servers:
        raise InputError(f"the backup has no IPPools of {server}, but of: {', '.join(servers)}")
    # Created on another Harvester, pools would give out addresses that are in use.
    if not server and len(servers) > 1:
        raise InputError(
            f"the backup has IPPools of several Harvesters, {', '.join(servers)}: choose one with "
            "--harvester-server"
        )

    url = server or next(iter(servers), "")
    missing = [
        f"IPPool {name} ({reason})"
        for name, reason in sorted(backup.missing_pools.get(url, {}).items())
    ]
    hidden = absence_of(backup.unseen, url)
    if not missing and not hidden and not servers:
        raise InputError("the clusters of the backup use no IPPools")
    for text in missing:
        echo(f"missing: {text}", err=True)
    for text in hidden:
        echo(f"was not saved: {text}", err=True)

    if pools := backup.pools.get(url):
        click.echo(manifests_of(url, pools), nl=False)
    if missing or hidden:
        sys.exit(1)


def _resume(plan: Restore, options: RestoreOptions) -> bool:
    """End the pause, once the user confirms that the old management cluster is stopped.

    Return whether it was ended.
    """
    from operations.backup.writing import unpause

    origin = plan.backup.origin
    old = "the one of the backup"
    if origin:
        old = f"{origin.server} (uid of kube-system: {origin.uid or 'unknown'})"
    # If the backup is restored where it was made, no other management cluster can interfere.
    is_same = bool(origin and origin.uid and origin.uid == plan.uid)
    if not is_same and not options.stopped:
        options.say(f"Old management cluster: {old}")
        if options.yes or not sys.stdin.isatty():
            options.say(
                "All clusters stay paused. Stop the old management cluster, then run the command "
                "again with --old-management-cluster-stopped"
            )
            return False
        question = "Is it stopped, or are its provider and clusters deleted?"
        if not click.confirm(question, err=not options.is_text):
            options.say("All clusters stay paused. Run the command again when it is stopped")
            return False

    async def unpause_all() -> list[str]:
        async with management_client(options) as client:
            return await unpause(client, plan)

    if failed := run(unpause_all(), _INTERRUPTED):
        _fail(failed, "Some objects are still paused. Run the command again")
    options.say(f"Restored. The provider now adopts the VMs. Follow it: {remedies.FOLLOW_ALL}")
    return True


def _show_missing(backup: Backup, options: RestoreOptions) -> bool:
    """Show the missing objects of the backup; return whether it can be restored as it is.

    If not, the command ends here. Only a dry run continues and shows the rest.
    """
    from operations.backup.order import missing_of
    from operations.backup.preflight import clusters_of_rancher

    if origin := backup.origin:
        options.say(
            f"Backup of {origin.created} from {origin.server}: {', '.join(backup.clusters)}"
        )
    missing = missing_of(backup)
    for name, reason in missing.items():
        echo(f"missing: {name} ({reason})", err=True)
    for unseen in backup.unseen:
        echo(f"was not saved: {unseen}", err=True)
    for server, pools in backup.missing_pools.items():
        for name, reason in pools.items():
            echo(f"missing: IPPool {name} of Harvester {server} ({reason})", err=True)

    of_rancher = clusters_of_rancher(backup)
    if of_rancher:
        _refuse(
            f"Rancher provisions {name_some(of_rancher, 3)}, and the backup has no objects of "
            "Rancher: restore Rancher and these clusters from a backup of Rancher",
            options,
        )
        return False
    if missing and not options.incomplete:
        _refuse(
            f"the backup is incomplete, {len(missing)} of its parts are missing: add the files, or "
            "restore the rest with --incomplete",
            options,
        )
        return False
    return not backup.missing_pools


def _show_plan(plan: Restore, options: RestoreOptions) -> None:
    """Show the plan. Raises `InputError` for a management cluster that is not ready for it."""
    from operations.backup.order import Action, requested_deletions

    for problem in plan.problems:
        echo(f"Error: {problem}", err=True)
    if plan.problems:
        raise InputError(f"{plan.server} is not ready for this backup")

    steps = plan.steps()
    for action in Action:
        counts = Counter(step.identity.kind for step in steps if step.action is action)
        if counts:
            options.say(f"{counted(sum(counts.values()), 'object')}: {action}")
            for kind, count in sorted(counts.items()):
                options.say(f"  {count:>5}  {kind}")
    for identity in requested_deletions(steps):
        options.say(
            f"note: {identity} was being deleted. It is restored; delete it again afterwards"
        )


def _refuse_differences(plan: Restore, options: RestoreOptions) -> bool:
    """Return whether existing objects differ, unless they are to stay as they are.

    If objects differ, the command ends here, except for a dry run.
    """
    from operations.backup.order import Action

    different = [step.identity for step in plan.steps() if step.action is Action.DIFFERENT]
    if not different or options.keep_existing:
        return False
    for identity in different:
        echo(f"Error: {identity} exists and is different", err=True)
    _refuse("delete these objects, or keep them as they are with --keep-existing", options)
    return True


def _try_creation(plan: Restore, options: RestoreOptions) -> Sequence[str]:
    """Create all objects in dry runs; show and return refusals."""
    from operations.backup.dryrun import DryRun, try_creation

    async def try_all() -> DryRun:
        async with management_client(options) as client:
            return await try_creation(client, plan)

    result = run(try_all())
    for text in result.refused:
        echo(f"Error: refused: {text}", err=True)
    if result.namespaces:
        names = ", ".join(result.namespaces)
        options.say(
            f"creates new namespaces: {names}; objects in them are validated only when they are "
            "created"
        )
    return result.refused


def _refuse(message: str, options: RestoreOptions) -> None:
    """End the command with a message; a dry run only shows it."""
    error = InputError(message)
    if not options.dry_run:
        raise error
    error.show()


async def _prepare(backup: Backup, options: RestoreOptions) -> Restore:
    from operations.backup.writing import prepare

    async with management_client(options) as client:
        return await prepare(client, backup)


async def _create(plan: Restore, options: RestoreOptions) -> list[str]:
    from operations.backup.writing import create

    async with management_client(options) as client:
        return await create(client, plan)


async def _verify(plan: Restore, options: RestoreOptions) -> list[str]:
    """Read all objects back, and return the differences. Raises `CommandError`."""
    from caphv.runtime.errors import RequestError
    from operations.backup.writing import verify

    async with management_client(options) as client:
        try:
            return await verify(client, plan)
        except RequestError as error:
            # By its exit status, an error of a request says that nothing was changed.
            raise CommandError(
                f"created objects cannot be read back, and all stay paused: {error}. Run the "
                "command again"
            ) from None


def _fail(failed: list[str], summary: str) -> None:
    for line in failed:
        echo(f"Error: {line}", err=True)
    echo(summary, err=True)
    sys.exit(1)
