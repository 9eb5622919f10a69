"""`caphv restore`: clusters from a backup on a management cluster, with their VMs as they run."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caphv.api import remedies
from caphv.api.counting import counted
from commands.options.changes import confirm
from commands.options.clusters import InputError
from commands.options.management import management_client, management_options, patient_progress, run
from commands.options.passphrase import passphrase_options, read_passphrase
from commands.output.echo import echo

if TYPE_CHECKING:
    from overview.backup.files import Backup
    from overview.backup.writing import Restore


@click.command(
    short_help="Restore clusters from a backup; their VMs keep running.",
    epilog="""\b
Examples:
  caphv restore backups/2026-11-22 --dry-run
  caphv restore backups/2026-11-22 --kubeconfig new-management.yaml
  caphv restore backups/shop --yes --old-management-cluster-stopped --passphrase-file passphrase

\b
Exit status: 0 restored, or (with --dry-run) possible, 1 aborted, failed or still paused, or (with --dry-run) parts are
missing, objects differ or are refused, 2 the backup or the management cluster cannot be read, or the restore is
refused.
""",
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@passphrase_options
@click.option(
    "--unencrypted",
    is_flag=True,
    help="Restore a backup that is not encrypted. Anyone with write access to its files decides what is restored.",
)
@click.option("--incomplete", is_flag=True, help="Restore a backup although parts of it are missing.")
@click.option(
    "--keep-existing", is_flag=True, help="Keep objects that exist and are different from those of the backup."
)
@click.option(
    "--accept-differences", is_flag=True, help="End the pause although objects differ from the backup when read back."
)
@click.option(
    "--old-management-cluster-stopped",
    "stopped",
    is_flag=True,
    help="Confirm that the old management cluster is stopped, and end the pause without asking.",
)
@click.option("-y", "--yes", is_flag=True, help="Create the objects without asking; they stay paused.")
@click.option("--dry-run", is_flag=True, help="Show what would be created, and change nothing.")
@management_options
def restore(directory: Path, **flags: Any) -> None:
    """Create the objects of a backup in DIR on a management cluster, and have the provider adopt their VMs.

    Everything is created paused and is read back. The pause ends when you confirm that the old management cluster is
    stopped: two management clusters with the same machines would delete each other's VMs. VMs, disks and addresses stay
    as they are. Interrupted or repeated, the command continues where it ended.
    """
    from overview.backup import files
    from overview.backup.writing import is_paused_by_us

    if flags["unencrypted"] and flags["passphrase_file"]:
        raise click.UsageError("--unencrypted and --passphrase-file exclude each other")

    try:
        passphrase = None if flags["unencrypted"] else lambda: read_passphrase(flags["passphrase_file"])
        backup = files.read(directory, passphrase)
    except files.BackupError as error:
        raise InputError(str(error)) from None
    whole = _show_missing(backup, flags)
    with patient_progress() as step:
        step("comparing with the management cluster")
        found = run(_prepare(backup, flags))
    pending, different = _show(found, flags)
    if flags["dry_run"]:
        accepted = _show_refused(found, flags)
        sys.exit(0 if whole and not different and accepted else 1)
    if not pending and not is_paused_by_us(found):
        echo("Nothing to do: all objects exist, and none is paused by this restore")
        return
    if pending:
        confirm(flags, f"Create {counted(pending, 'object')}, paused, on {found.server}?")
    with patient_progress() as step:
        step(f"creating {counted(pending, 'object')}")
        failed = run(_create(found, flags))
    if failed:
        _fail(failed, f"{counted(len(failed), 'object')} could not be created. Correct this and run the command again")
    with patient_progress() as step:
        step("reading all objects back")
        failed = run(_verify(found, flags))
    if failed and not flags["accept_differences"]:
        remedy = "Correct it and run the command again, or accept it with --accept-differences"
        _fail(failed, f"What was created differs from the backup, and stays paused. {remedy}")
    echo(f"Verified {counted(len(backup.objects), 'object')}; differences: {len(failed)}")
    _resume(found, flags)


def _resume(found: Restore, flags: dict[str, Any]) -> None:
    """End the pause, once the user confirms that the old management cluster is stopped."""
    from overview.backup.writing import unpause

    origin = found.backup.origin
    old = f"{origin.server} (uid of kube-system: {origin.uid or 'unknown'})" if origin else "the one of the backup"
    same = bool(origin and origin.uid and origin.uid == found.uid)
    if not same and not flags["stopped"]:
        echo(f"Old management cluster: {old}")
        if flags["yes"] or not sys.stdin.isatty():
            echo(
                "All clusters stay paused. Stop the old management cluster, then run the command again with "
                "--old-management-cluster-stopped"
            )
            sys.exit(1)
        if not click.confirm("Is it stopped, or are its provider and clusters deleted?"):
            echo("All clusters stay paused. Run the command again when it is stopped")
            sys.exit(1)

    async def end() -> list[str]:
        async with management_client(flags) as client:
            return await unpause(client, found)

    if failed := run(end()):
        _fail(failed, "Some objects are still paused. Run the command again")
    echo(f"Restored: the provider adopts the VMs now. Follow it: {remedies.FOLLOW_ALL}")


def _show_missing(backup: Backup, flags: dict[str, Any]) -> bool:
    """Say what the backup lacks; answer whether it can be restored as it is.

    If not, the command ends here, except for a dry run, which shows the rest, too.
    """
    from overview.backup.order import missing_of

    if origin := backup.origin:
        echo(f"Backup of {origin.created} from {origin.server}: {', '.join(backup.clusters)}")
    missing = missing_of(backup)
    for what, why in missing.items():
        echo(f"missing: {what} ({why})", err=True)
    for each in backup.unseen:
        echo(f"was not saved: {each}", err=True)
    if missing and not flags["incomplete"]:
        _refuse(
            f"the backup is not whole, {len(missing)} of its parts are missing: add the files, or restore what "
            "there is with --incomplete",
            flags,
        )
        return False
    return True


def _show(found: Restore, flags: dict[str, Any]) -> tuple[int, bool]:
    """Say what would be done; answer how many objects would be created, and whether others are in the way.

    If so, the command ends here, except for a dry run.
    """
    from overview.backup.order import Action, were_being_deleted

    for problem in found.problems:
        echo(f"Error: {problem}", err=True)
    if found.problems:
        raise InputError(f"{found.server} is not ready for this backup")
    steps = found.steps()
    for action in Action:
        counts = Counter(step.identity.kind for step in steps if step.action is action)
        if counts:
            echo(f"{counted(sum(counts.values()), 'object')}: {action}")
            for kind, count in sorted(counts.items()):
                echo(f"  {count:>5}  {kind}")
    for identity in were_being_deleted(steps):
        echo(f"note: {identity} was being deleted. It is restored; delete it again afterwards")
    pending = sum(step.action is Action.CREATE for step in steps)
    different = [step.identity for step in steps if step.action is Action.DIFFERENT]
    if not different or flags["keep_existing"]:
        return pending, False
    for identity in different:
        echo(f"Error: {identity} exists and is different", err=True)
    _refuse("delete these objects, or keep them as they are with --keep-existing", flags)
    return pending, True


def _show_refused(found: Restore, flags: dict[str, Any]) -> bool:
    """Try the creation of all objects as dry runs, and say what is refused; answer whether nothing is."""
    from overview.backup.dryrun import DryRun, try_creation

    async def tried() -> DryRun:
        async with management_client(flags) as client:
            return await try_creation(client, found)

    result = run(tried())
    for text in result.refused:
        echo(f"Error: refused: {text}", err=True)
    if result.namespaces:
        names = ", ".join(result.namespaces)
        echo(f"creates namespace {names}; their objects are validated when they are created, not before")
    return not result.refused


def _refuse(message: str, flags: dict[str, Any]) -> None:
    """End the command with a message; a dry run only shows it."""
    error = InputError(message)
    if not flags["dry_run"]:
        raise error
    error.show()


async def _prepare(backup: Backup, flags: dict[str, Any]) -> Restore:
    from overview.backup.writing import prepare

    async with management_client(flags) as client:
        return await prepare(client, backup)


async def _create(found: Restore, flags: dict[str, Any]) -> list[str]:
    from overview.backup.writing import create

    async with management_client(flags) as client:
        return await create(client, found)


async def _verify(found: Restore, flags: dict[str, Any]) -> list[str]:
    from overview.backup.writing import verify

    async with management_client(flags) as client:
        return await verify(client, found)


def _fail(failed: list[str], summary: str) -> None:
    for line in failed:
        echo(f"Error: {line}", err=True)
    echo(summary, err=True)
    sys.exit(1)
