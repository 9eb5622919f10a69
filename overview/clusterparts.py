"""The objects of one cluster among all that were read."""

from __future__ import annotations

from datetime import UTC, datetime

from caphv.api.object import Key, Obj, key_of
from overview.assembly import cluster_of, parts_of
from overview.changes import ChangeError
from overview.diagnosis import Parts
from overview.model import Cluster
from overview.objects import ManagementObjects, by_cluster


def parts_and_deployments(objects: ManagementObjects, key: Key) -> tuple[Parts, list[Obj]]:
    """Return the objects of a cluster and its MachineDeployments. Raises `ChangeError` if there is no such cluster."""
    parts = next((each for each in parts_of(objects) if each.key == key), None)
    if parts is None:
        raise ChangeError([f"cluster {key} does not exist"])
    return parts, sorted(by_cluster(objects.machine_deployments).get(key, ()), key=key_of)


def cluster_and_parts(objects: ManagementObjects, key: Key) -> tuple[Parts, list[Obj], Cluster]:
    """Return the objects of a cluster and its model. Raises `ChangeError` if there is no such cluster."""
    parts, deployments = parts_and_deployments(objects, key)
    return parts, deployments, cluster_of(parts, deployments, datetime.now(UTC))
