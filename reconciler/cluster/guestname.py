"""Require that clusters in one target namespace on Harvester have different names.

When the cloud provider of a guest requests a load balancer, Harvester finds the VMs by the name of
the cluster. A second cluster with the same name would be created without error, but its Services of
type LoadBalancer would never get an address.

If the other cluster belongs to another management cluster, it may even have the same namespace.
Then our label cannot tell their VMs apart, and the load balancer of each control plane would
select the VMs of both.
"""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.labels import cluster_label
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, at, key_of, labels_of
from caphv.api.ownership import recorded_owner, wants_adoption
from reconciler.blocked import Blocked
from reconciler.caches import cluster_name
from reconciler.cluster.scope import ClusterScope
from reconciler.machine.guestlabels import guest_cluster_name
from reconciler.machine.placement import CLUSTER_LABEL
from reconciler.triggers import Delay, Watched

# Seconds until the next check, because no watch reports that another cluster no longer exists.
_RECHECK = 60.0


def require_unique_name(scope: ClusterScope) -> None:
    """Raise `Blocked` for a new cluster if another one has its name in the target namespace."""
    # A cluster that has run, or has machines, is not blocked. `caphv doctor` warns about it.
    if scope.draft.fields.get("initialization") or scope.context.caches.machines_of(scope.cluster):
        return
    holder = next(_holders(scope), "")
    if holder:
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.CLUSTER_NAME_TAKEN,
            f"{holder} has name {scope.cluster_key.name} in namespace {scope.target_namespace} on "
            "Harvester, too, which then gives LoadBalancer Services of one of them no address: "
            "recreate this cluster with another name or targetNamespace",
            Watched.SELF,
            Watched.MACHINES,
            Delay(_RECHECK),
            warn=True,
        )


def _holders(scope: ClusterScope) -> Iterator[str]:
    """Yield other clusters with this name, here and on other management clusters."""
    sessions = scope.context.sessions
    server = scope.require_session().server
    for obj in scope.context.caches.harvester_clusters.store:
        has_name = cluster_name(obj) == scope.cluster_key.name and key_of(obj) != scope.key
        if not has_name or at(obj, "spec", "targetNamespace") != scope.target_namespace:
            continue
        session = sessions.of(key_of(obj))
        if session and session.server == server and _is_first(obj, scope.obj):
            yield f"HarvesterCluster {key_of(obj)}"

    # Clusters of other management clusters are visible only by their VMs.
    label = cluster_label(scope.cluster_key)
    for vm in scope.namespace().vms.store.by_index("guest", guest_cluster_name(scope.cluster_key)):
        if labels_of(vm).get(CLUSTER_LABEL, label) != label:
            yield f"the cluster of VirtualMachine {key_of(vm)}"
        elif owner := _other_owner(scope, vm):
            yield f"the cluster of VirtualMachine {key_of(vm)} ({owner})"


def _other_owner(scope: ClusterScope, vm: Obj) -> str:
    """Return to what a VM with this cluster's label belongs, empty if it may become ours.

    A cluster without machines gets here, so machines that were moved or restored exist no longer.
    """
    owner = recorded_owner(vm)
    if owner is None or wants_adoption(scope.obj):
        return ""  # The Go provider created it, or a user wants this cluster to adopt it.
    name = f"{owner.kind} {owner.namespace}/{owner.name}"
    if owner.management_cluster != scope.context.management_cluster:
        return f"{name} of another management cluster"
    exists = scope.context.caches.harvester_machines.get(owner.namespace, owner.name)
    return "" if exists else f"{name}, which no longer exists"


def _is_first(other: Obj, obj: Obj) -> bool:
    """Return whether another cluster keeps the name, because it has run or is older."""
    if at(other, "status", "initialization", "provisioned"):
        return True
    return _age(other) < _age(obj)


def _age(obj: Obj) -> tuple[str, Key]:
    """Return a sort key by which older clusters come first, and which no two clusters share."""
    return str(obj["metadata"].get("creationTimestamp") or ""), key_of(obj)
