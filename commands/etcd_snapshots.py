"""`caphv etcd snapshots`: the snapshots that RKE2 and K3s took of a cluster's etcd."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from commands.access.management import run
from commands.access.workload import workload_client
from commands.errors import InputError
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.harvesters import insecure_option
from commands.options.management import (
    ManagementOptions,
    ScopeOptions,
    cluster_argument,
    management_options,
    selection,
)
from commands.output.data import print_data
from commands.output.progress import patient_progress

if TYPE_CHECKING:
    from caphv.api.object import Key
    from operations.read.etcdsnapshots import EtcdSnapshot


@click.command(
    short_help="List the snapshots of a cluster's etcd.",
    epilog="""\b
Examples:
  caphv etcd snapshots team-a/production
  caphv etcd snapshots team-a/production -o json | jq -r '.items[] | select(.s3).location'

Exit status: 0 there are snapshots, and all can be restored, 1 otherwise, 2 the workload cluster
cannot be read.
""",
)
@cluster_argument
@output_option()
@insecure_option
@management_options
@fill(scope=ScopeOptions)
def snapshots(cluster: str, *, output: str, scope: ScopeOptions) -> None:
    """List the snapshots that RKE2 or K3s took of a cluster's etcd, the newest first.

    Each copy of a snapshot has a line: the file on a control plane machine, and the object in the
    S3 store. A `failed` copy was not written; a `lost` copy was on a machine that no longer exists.
    The command reads ETCDSnapshotFiles in the workload cluster, whose API server must answer.
    """
    key = selection((cluster,), scope).keys[0]
    with patient_progress() as step:
        step("reading the workload cluster")
        etcd_snapshots = run(_read(scope, key))
    from commands.output import etcdsnapshots as out

    if output == "text":
        out.show(etcd_snapshots)
    else:
        print_data(output, items=etcd_snapshots)
    good = etcd_snapshots and not any(snapshot.wrong for snapshot in etcd_snapshots)
    sys.exit(0 if good else 1)


async def _read(management: ManagementOptions, key: Key) -> tuple[EtcdSnapshot, ...]:
    """Read the snapshots. Raises `InputError`."""
    from caphv.runtime.errors import NotFound, RequestError
    from operations.read.etcdsnapshots import read_snapshots

    async with workload_client(management, key) as client:
        try:
            return await read_snapshots(client)
        except NotFound:
            raise InputError(
                f"cluster {key} records no snapshots: RKE2 and K3s do since v1.28.4, kubeadm takes "
                "none"
            ) from None
        except RequestError as error:
            raise InputError(
                f"the workload cluster cannot be read: {error}. Snapshots are in the S3 store, or "
                "on control plane machines in /var/lib/rancher/rke2/server/db/snapshots or "
                "/var/lib/rancher/k3s/server/db/snapshots"
            ) from None
