"""`caphv backup`: all objects of clusters as files, for another management cluster."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from caphv.api import parking, remedies
from caphv.api.counting import counted, name_some
from caphv.api.object import key_of
from commands.access.management import management_client, run
from commands.errors import InputError
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.management import (
    ManagementOptions,
    ScopeOptions,
    Selection,
    clusters_argument,
    management_options,
    namespace_options,
    selection,
)
from commands.options.passphrase import passphrase_options, read_passphrase
from commands.output.data import print_data
from commands.output.echo import echo
from commands.output.progress import Step, patient_progress

if TYPE_CHECKING:
    from operations.backup.files import Backup


@click.command(
    short_help="Save clusters and everything they need as files.",
    epilog="""\b
Examples:
  caphv backup -A backups/2026-11-22                 all clusters
  caphv backup team-a/shop backups/shop --passphrase-file passphrase
  caphv backup -A backups/today --ip-pools           also save IPPools with addresses in use
  caphv backup -A backups/today --dry-run            only show what would be saved
  caphv restore backups/2026-11-22                   restore it

Exit status: 0 everything was saved, 1 objects that you may not read are missing, 2 nothing was
saved.
""",
)
@clusters_argument()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@namespace_options
@click.option(
    "--unencrypted",
    is_flag=True,
    help="Write Secrets in plain text: anyone who can read the files gets the credentials.",
)
@passphrase_options
@click.option(
    "--ip-pools",
    is_flag=True,
    help="Also save the IPPools that the clusters use; this reads Harvester.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be saved, and write nothing.")
@output_option()
@management_options
@fill(scope=ScopeOptions)
def backup(
    clusters: tuple[str, ...],
    directory: Path,
    passphrase_file: Path | None,
    *,
    unencrypted: bool,
    ip_pools: bool,
    dry_run: bool,
    output: str,
    scope: ScopeOptions,
) -> None:
    """Save clusters with their identities, ClusterClasses, templates and Secrets in a new directory
    DIR.

    The command changes nothing, pauses nothing, and also saves clusters with problems. It reads all
    objects as of one moment. The files are encrypted with a passphrase and readable only by you.

    A backup does not contain VMs, disks or the content of workload clusters, nor bundles, which are
    in Git. From Harvester it can contain only IPPools.
    """
    from operations.backup import files
    from operations.backup.sealing import Sealer

    if not (clusters or scope.namespace or scope.all_namespaces):
        raise click.UsageError(
            "name clusters, -n NAMESPACE or -A, and then DIR, the new directory: "
            f"{remedies.BACK_UP(cluster=shlex.quote(str(directory)))}"
        )
    chosen = selection(clusters, scope)
    if unencrypted and passphrase_file:
        raise click.UsageError("--unencrypted and --passphrase-file are mutually exclusive")
    # The passphrase is asked for before the work, and not for a dry run.
    sealer = None
    try:
        files.check_target(directory)
        if not unencrypted and not dry_run:
            sealer = Sealer(read_passphrase(passphrase_file, new=True))
        with patient_progress() as step:
            content = run(_read(scope, chosen, step, with_pools=ip_pools))
        if content.left_out and not content.clusters:
            raise InputError(
                f"Rancher provisions {name_some(content.left_out, 3)}, and nothing else is here: "
                "back up Rancher"
            )
        if not content.clusters:
            raise chosen.none_there()

        if output == "text":
            _show(content)
        _warn(content)
        count = 0 if dry_run else files.write(directory, content, sealer)
        if output == "text" and not dry_run:
            form = "encrypted. Keep the passphrase elsewhere"
            if sealer is None:
                form = "in plain text. Anyone who can read the files gets all Secrets"
            echo(f"Saved {counted(count, 'file')} to {directory}, {form}")
    except files.BackupError as error:
        raise InputError(str(error)) from None

    if output != "text":
        _report(content, output, directory, count)
    if content.unseen:
        click.echo("The backup is incomplete: your account may not read everything", err=True)
        sys.exit(1)


async def _read(
    management: ManagementOptions, chosen: Selection, step: Step, *, with_pools: bool
) -> Backup:
    """Read the chosen clusters, and the IPPools on their Harvesters if asked for."""
    from operations.backup.reading import read_backup

    async with management_client(management) as client:
        content = await read_backup(client, chosen.query(), step, with_pools=with_pools)
    chosen.require(content.cluster_keys())
    return content


def _show(content: Backup) -> None:
    """Show what is saved: clusters, numbers of objects, and references to absent objects."""
    from operations.backup.order import absent_in_use

    echo(f"Clusters: {', '.join(content.clusters)}")
    for kind, count in _counts(content).items():
        echo(f"  {count:>5}  {kind}")
    for harvester, pools in sorted((content.pools or {}).items()):
        echo(f"  {len(pools):>5}  IPPool of Harvester {harvester}")
    for name in absent_in_use(content):
        echo(f"  does not exist, although an object refers to it: {name}")


def _report(content: Backup, output: str, directory: Path, files: int) -> None:
    """Write what is saved as data.

    :param content: the backup
    :param output: the format
    :param directory: the directory of the files
    :param files: the number of files that were written, 0 for a dry run
    """
    from operations.backup.order import absent_in_use

    print_data(
        output,
        directory=str(directory),
        files=files,
        objects=_counts(content),
        absent=list(absent_in_use(content)),
        leftOut=content.left_out,
        unseen=list(map(str, content.unseen)),
        items=[{"cluster": cluster, "applied": bool(files)} for cluster in content.clusters],
    )


def _counts(content: Backup) -> dict[str, int]:
    """Return the number of objects of each kind."""
    return dict(sorted(Counter(identity.kind for identity in content.objects).items()))


def _warn(content: Backup) -> None:
    """Name on standard error what is not saved, or not whole, and clusters that stay parked."""
    from operations.backup.preflight import clusters_of_rancher

    for obj in content.objects.values():
        if obj["kind"] == "Cluster" and parking.concerns(obj):
            resume = remedies.RESUME_PARKED(ref=key_of(obj))
            note = f"a restore keeps it parked; to have it run, then {resume}"
            echo(f"parked: {key_of(obj)}: {note}", err=True)
    for cluster in content.left_out:
        echo(f"not saved: {cluster}: Rancher provisions it; back up Rancher", err=True)
    for cluster in clusters_of_rancher(content):
        echo(
            f"incomplete: {cluster}: Rancher provisions it, and its objects are not saved; a "
            "restore refuses this backup. Back up Rancher",
            err=True,
        )
    for unseen in content.unseen:
        echo(f"not saved: {unseen}", err=True)
