"""Pick the objects of one cluster from all objects that were read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from caphv.api.object import Key, Obj, key_of
from operations.change.changes import ChangeError
from operations.read.objects import ManagementObjects, by_cluster
from operations.status.assembly import cluster_of, parts_of
from operations.status.model import Cluster
from operations.status.parts import Parts


class PartsAndDeployments(NamedTuple):
    """The objects of a cluster, and its MachineDeployments, sorted by name."""

    parts: Parts
    deployments: list[Obj]


class ClusterAndParts(NamedTuple):
    """The objects of a cluster, its MachineDeployments and its model."""

    parts: Parts
    deployments: list[Obj]
    cluster: Cluster


def parts_and_deployments(objects: ManagementObjects, key: Key) -> PartsAndDeployments:
    """Return the objects of a cluster and its MachineDeployments.

    Raises `ChangeError` if there is no such cluster.
    """
    for parts in parts_of(objects):
        if parts.key == key:
            deployments = by_cluster(objects.machine_deployments).get(key, ())
            return PartsAndDeployments(parts, sorted(deployments, key=key_of))
    raise ChangeError([f"cluster {key} does not exist"])


def cluster_and_parts(objects: ManagementObjects, key: Key) -> ClusterAndParts:
    """Return the objects of a cluster, its MachineDeployments and its model.

    Raises `ChangeError` if there is no such cluster.
    """
    parts, deployments = parts_and_deployments(objects, key)
    cluster = cluster_of(parts, deployments, datetime.now(UTC))
    return ClusterAndParts(parts, deployments, cluster)
