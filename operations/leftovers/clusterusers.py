"""Which VMs still need what a HarvesterCluster made for them: pure decisions.

After a move that is not finished, or a restore of a management cluster to an older state, VMs are
at work whose owners do not exist. They need their load balancer, account and IPPool.
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
    """Return where the VMs are for which a cluster has an object, None if that is not known."""
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
    """Return a VM that may belong to the cluster of an object, empty if there is none.

    :param resource: the kind of the object
    :param obj: an object on Harvester
    :param vms: VMs on this Harvester, without those that are deleted before the object
    :param verdicts: what is known of these VMs
    :param owners: what the management cluster has
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
        is_unclear = not label or verdicts[key_of(vm)] is not Verdict.HELD
        if label in own_labels or (is_unclear and _has_same_origin(vm, owner)):
            return f"{resources.VIRTUAL_MACHINES.kind} {key_of(vm)}"
    return ""


def _has_same_origin(vm: Obj, owner: Owner) -> bool:
    """Whether a VM was made from the namespace of an owner: it may be of that cluster.

    So may one that was moved from there, whose machine may have another namespace now.
    """
    if owner.management_cluster in former_clusters(vm):
        return True
    made_by = recorded_owner(vm)
    return made_by is not None and (made_by.management_cluster, made_by.namespace) == (
        owner.management_cluster,
        owner.namespace,
    )


def _labels_of_others(owner: Owner, owners: OwnerObjects) -> frozenset[str]:
    """Return the labels of VMs whose HarvesterClusters exist and are others than this owner."""
    return frozenset(
        cluster_label(Key(key.namespace, clusterapi.cluster_name(cluster) or key.name))
        for key, cluster in owners.clusters.items()
        if key != Key(owner.namespace, owner.name)
    )
