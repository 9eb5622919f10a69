"""Pick the objects of one cluster from all objects that were read, and name what was not read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from caphv.api import resources
from caphv.api.object import Key, Obj, key_of
from operations.change.changes import ChangeError
from operations.read.management import control_plane_kinds
from operations.read.objects import ManagementObjects, Unseen, by_cluster
from operations.status.assembly import cluster_of, parts_of
from operations.status.check import Check, skipped
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


class Unread(NamedTuple):
    """The kinds of a cluster's objects that could not be read, with reasons."""

    control_plane: list[Unseen]
    deployments: list[Unseen]
    machines: list[Unseen]
    infrastructure: list[Unseen]
    """HarvesterClusters and HarvesterMachines."""

    def all(self) -> list[Unseen]:
        """Return all of them."""
        return [*self.control_plane, *self.deployments, *self.machines, *self.infrastructure]

    def checks(self, cluster: Key) -> list[Check]:
        """Return a check for each kind, which says that the other checks may miss something."""
        return [skipped("access", f"Cluster {cluster}", str(unseen)) for unseen in self.all()]


def unread_kinds(objects: ManagementObjects, cluster: Obj) -> Unread:
    """Return what could not be read. An absent object of these kinds may exist.

    :param objects: the objects that were read
    :param cluster: the Cluster
    """

    def unread(*kinds: str) -> list[Unseen]:
        return [unseen for unseen in objects.unseen if unseen.what in kinds]

    return Unread(
        unread(*(f"{kind}.{group}" for group, kind in control_plane_kinds([cluster]))),
        unread(f"machinedeployments.{resources.CLUSTER_API_GROUP}"),
        unread(f"machines.{resources.CLUSTER_API_GROUP}"),
        unread(str(resources.HARVESTER_CLUSTERS), str(resources.HARVESTER_MACHINES)),
    )


def require_read(cluster: Key, unread: Iterable[Unseen]) -> None:
    """Raise `ChangeError` if kinds that a change depends on could not be read."""
    if reasons := "; ".join(map(str, unread)):
        raise ChangeError([f"not all objects of cluster {cluster} can be read: {reasons}"])
