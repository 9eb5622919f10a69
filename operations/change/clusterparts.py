"""Pick the objects of one cluster from all objects that were read."""

from __future__ import annotations

from datetime import UTC, datetime

from caphv.api.object import Key, Obj, key_of
from operations.change.changes import ChangeError
from operations.read.objects import ManagementObjects, by_cluster
from operations.status.assembly import cluster_of, parts_of
from operations.status.model import Cluster
from operations.status.parts import Parts


def parts_and_deployments(objects: ManagementObjects, key: Key) -> tuple[Parts, list[Obj]]:
    """Return the objects of a cluster and its MachineDeployments.

    Raises `ChangeError` if there is no such cluster.
    """
    for parts in parts_of(objects):
        if parts.key == key:
            deployments = by_cluster(objects.machine_deployments).get(key, ())
            return parts, sorted(deployments, key=key_of)
    raise ChangeError([f"cluster {key} does not exist"])


def cluster_and_parts(objects: ManagementObjects, key: Key) -> tuple[Parts, list[Obj], Cluster]:
    """Return the objects of a cluster, its MachineDeployments and its model.

    Raises `ChangeError` if there is no such cluster.
    """
    parts, deployments = parts_and_deployments(objects, key)
    return parts, deployments, cluster_of(parts, deployments, datetime.now(UTC))
