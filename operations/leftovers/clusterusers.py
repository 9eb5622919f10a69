"""Decide which VMs still need what the provider created for their HarvesterCluster. No I/O.

During a move, or after the restore of a management cluster to an older state, VMs run whose owners
do not exist. They need their load balancer, account and IPPool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from caphv.api import clusterapi, names, resources
from caphv.api.guestparts import former_clusters
from caphv.api.labels import cluster_label
from caphv.api.object import CLUSTER_ROLE_BINDINGS, Key, Obj, Resource, key_of, labels_of
from caphv.api.ownership import Owner, recorded_owner
from operations.capacity.addresspools import Verdict
from operations.leftovers.guests import owner_of
from operations.leftovers.naming import cluster_names
from operations.read.owners import OwnerObjects


def target_namespaces(resource: Resource, obj: Obj) -> frozenset[str] | None:
    """Return the namespaces of the VMs that may need an object of a cluster; None if unknown."""
    if resource is CLUSTER_ROLE_BINDINGS:
        subjects = obj.get("subjects") or ()
        return frozenset(str(subject.get("namespace") or "") for subject in subjects)
    namespace = key_of(obj).namespace
    return frozenset({namespace}) if namespace else None


def cluster_user(
    resource: Resource,
    obj: Obj,
    vms: Iterable[Obj],
    verdicts: Mapping[Key, Verdict],
    owners: OwnerObjects,
) -> str:
    """Return a VM that may belong to the cluster of an object; empty if there is none.

    :param resource: the kind of the object
    :param obj: an object on Harvester
    :param vms: VMs on this Harvester, without those that are deleted before the object
    :param verdicts: the verdicts on these VMs
    :param owners: possible owners on the management cluster
    """
    owner = owner_of(obj)
    if owner is None or owner.kind != resources.HARVESTER_CLUSTERS.kind:
        return ""

    namespaces = target_namespaces(resource, obj)
    own_labels = {cluster_label(Key(owner.namespace, name)) for name in cluster_names(owner)}
    other_labels = _labels_of_others(owner, owners)
    for vm in vms:
        if namespaces is not None and key_of(vm).namespace not in namespaces:
            continue
        label = labels_of(vm).get(names.CLUSTER_LABEL, "")
        if label in other_labels:
            continue
        has_unclear_owner = not label or verdicts[key_of(vm)] is not Verdict.HELD
        if label in own_labels or (has_unclear_owner and _has_same_origin(vm, owner)):
            return f"{resources.VIRTUAL_MACHINES.kind} {key_of(vm)}"
    return ""


def _has_same_origin(vm: Obj, owner: Owner) -> bool:
    """Return whether a VM was created from the namespace of an owner, or moved from there.

    It may belong to that owner's cluster. After a move, its machine may be in another namespace.
    """
    if owner.management_cluster in former_clusters(vm):
        return True
    creator = recorded_owner(vm)
    if creator is None or creator.management_cluster != owner.management_cluster:
        return False
    return creator.namespace == owner.namespace


def _labels_of_others(owner: Owner, owners: OwnerObjects) -> frozenset[str]:
    """Return the cluster labels of the existing HarvesterClusters other than this owner."""
    return frozenset(
        cluster_label(Key(key.namespace, clusterapi.cluster_name(cluster) or key.name))
        for key, cluster in owners.clusters.items()
        if key != Key(owner.namespace, owner.name)
    )
