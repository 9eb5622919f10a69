"""Delete a cluster. With force, its objects are deleted even if Harvester does not answer."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import yaml

from caphv.api import remedies, resources
from caphv.api.names import FORCE_DELETE_ANNOTATION
from caphv.api.object import Key, being_deleted, key_of, text_at, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from operations.change.changes import ChangeError
from operations.change.clusterparts import unread_kinds
from operations.change.deletionreport import forcible, leftovers_of, remains_of
from operations.read import management
from operations.read.objects import Unseen
from operations.status.model import as_json
from operations.status.parts import Parts, is_of_rancher

_FORCIBLE_KINDS = {
    "HarvesterMachine": resources.HARVESTER_MACHINES,
    "HarvesterCluster": resources.HARVESTER_CLUSTERS,
}


class Remains(NamedTuple):
    """What remains of a cluster whose Cluster object was deleted, as far as it can be read."""

    parts: Parts | None
    """The objects that were read; None if there are none."""
    unseen: list[Unseen]
    """Kinds that could not be read, of which objects may remain."""


async def read_remains(client: ApiClient, key: Key) -> Remains | None:
    """Return the remaining objects of a cluster whose Cluster object was deleted.

    Return None if the Cluster exists or nothing remains. Raises `ApiError`, `Unreachable`.
    """
    objects = await management.read_management(client, key.namespace)
    if key in map(key_of, objects.clusters):
        return None

    parts = remains_of(objects, key)
    unread = unread_kinds(objects, cluster={})
    unseen = [*unread.machines, *unread.infrastructure]
    return Remains(parts, unseen) if parts or unseen else None


def check_deletable(parts: Parts) -> None:
    """Raise `ChangeError` if Rancher would recreate the Cluster, without its VMs and disks.

    A cluster that is already being deleted passes.
    """
    if is_of_rancher(parts) and not being_deleted(parts.cluster):
        remedy = remedies.DELETE_OBJECT(
            kind=str(resources.RANCHER_CLUSTERS),
            name=parts.key.name,
            namespace=parts.key.namespace,
        )
        problem = (
            f"Rancher provisions cluster {parts.key} and would recreate it, without its VMs and "
            f"disks: delete it in Rancher, or with {remedy}"
        )
        raise ChangeError([problem])


async def delete_cluster(client: ApiClient, parts: Parts, *, force: bool) -> None:
    """Delete the Cluster.

    With `force`, its HarvesterMachines and HarvesterCluster get annotation `force-delete`. Raises
    `ApiError`, `Unreachable`; `ChangeError` for a cluster that Rancher provisions.
    """
    check_deletable(parts)

    # Delete the Cluster first: if that is refused or interrupted, no object of a cluster in use may
    # have the annotation.
    if not being_deleted(parts.cluster):
        clusters = (await management.kinds_of(client))["clusters"]
        with suppress(NotFound):  # deleted meanwhile
            uid = uid_of(parts.cluster)
            await client.delete(clusters, parts.key.name, parts.key.namespace, uid=uid)

    if not force:
        return
    annotation = {"metadata": {"annotations": {FORCE_DELETE_ANNOTATION: "true"}}}
    for kind, obj in forcible(parts):
        key = key_of(obj)
        with suppress(NotFound):
            await client.patch(_FORCIBLE_KINDS[kind], key.name, key.namespace, annotation)


def save_leftovers(parts: Parts, file: Path) -> None:
    """Append the list of objects that may remain on Harvester to a file. Raises `OSError`.

    Call it before the deletion, because afterwards no object refers to them.
    """
    content = {
        "cluster": str(parts.key),
        "harvester": text_at(parts.harvester_cluster, "spec", "server"),
        "objects": as_json(leftovers_of(parts)),
    }
    # Append a YAML document in each run, because objects in the first list may no longer exist in
    # the next run.
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as target:
        if os.fstat(target.fileno()).st_size:
            target.write("\n")  # its last line may not end with one
        yaml.safe_dump(content, target, sort_keys=False, allow_unicode=True, explicit_start=True)
