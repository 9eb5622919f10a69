"""`caphv backup`: all objects of clusters as files, for another management cluster."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caphv.api import remedies
from caphv.api.counting import counted
from commands.options.clusters import InputError, Step
from commands.options.management import (
    Selection,
    clusters_argument,
    management_client,
    management_options,
    namespace_options,
    patient_progress,
    run,
    selection,
)
from commands.options.passphrase import passphrase_options, read_passphrase
from commands.output.echo import echo

if TYPE_CHECKING:
    from overview.backup.files import Backup


@click.command(
    short_help="Save clusters with all that they need as files.",
    epilog="""\b
Examples:
  caphv backup -A backups/2026-11-22                 all clusters
  caphv backup team-a/shop backups/shop --passphrase-file passphrase
  caphv backup -A backups/today --dry-run            show what would be saved
  caphv restore backups/2026-11-22                   restore it

\b
Exit status: 0 everything was saved, 1 what you may not read is missing, 2 nothing was saved.
""",
)
@clusters_argument()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@namespace_options
@click.option(
    "--unencrypted",
    is_flag=True,
    help="Write Secrets in plain text. Anyone who can read the files gets the credentials.",
)
@passphrase_options
@click.option("--dry-run", is_flag=True, help="Show what would be saved, and write nothing.")
@management_options
def backup(clusters: tuple[str, ...], directory: Path, **flags: Any) -> None:
    """Save clusters with their identities, classes, templates and Secrets into the new directory DIR.

    Nothing is changed or paused, and clusters with problems are saved, too. Objects are read as of one moment. Files
    are encrypted with a passphrase and readable only by you. VMs, disks and the content of workload clusters are not
    part of it, nor are bundles: Git has them.
    """
    from overview.backup import files
    from overview.backup.sealing import Sealer

    if not (clusters or flags["namespace"] or flags["all_namespaces"]):
        raise click.UsageError(
            f"name clusters, -n NAMESPACE or -A, and then DIR, the new directory: {remedies.BACK_UP(cluster=directory)}"
        )
    chosen = selection(clusters, flags)
    if flags["unencrypted"] and flags["passphrase_file"]:
        raise click.UsageError("--unencrypted and --passphrase-file exclude each other")
    sealer = None
    try:
        files.check_target(directory)
        if not flags["unencrypted"] and not flags["dry_run"]:
            sealer = Sealer(read_passphrase(flags["passphrase_file"], new=True))
        with patient_progress() as step:
            found = run(_read(flags, chosen, step))
        if not found.clusters:
            raise InputError(f"no clusters in namespace {chosen.namespace}; all namespaces: -A")
        _show(found)
        if not flags["dry_run"]:
            count = files.write(directory, found, sealer)
            form = "encrypted. Keep the passphrase elsewhere"
            if sealer is None:
                form = "in plain text. Everybody who can read the files gets all Secrets"
            echo(f"Saved {counted(count, 'file')} to {directory}, {form}")
    except files.BackupError as error:
        raise InputError(str(error)) from None
    if found.unseen:
        click.echo("The backup is not complete: your account may not read all of it", err=True)
        sys.exit(1)


async def _read(flags: dict[str, Any], chosen: Selection, step: Step) -> Backup:
    from overview.backup.reading import read_backup
    from overview.query import Query

    async with management_client(flags) as client:
        found = await read_backup(client, Query(chosen.namespace, frozenset(chosen.keys)), step)
    chosen.require(found.cluster_keys())
    return found


def _show(found: Backup) -> None:
    """Say what is saved: clusters, numbers of objects, and references that lead nowhere."""
    echo(f"Clusters: {', '.join(found.clusters)}")
    for kind, count in sorted(Counter(identity.kind for identity in found.objects).items()):
        echo(f"  {count:>5}  {kind}")
    for name in sorted(found.absent):
        echo(f"  does not exist, although an object refers to it: {name}")
    for each in found.unseen:
        echo(f"not saved: {each}", err=True)
