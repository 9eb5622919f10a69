"""The name that a cluster has on Harvester: guests in one target namespace must have different ones.

Harvester finds the VMs of a guest by the name of its cluster when its cloud provider asks for a load balancer. A second
cluster of the name would be created without error, and its Services of type LoadBalancer would never get an address.
"""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, key_of, labels_of
from reconciler.caches import cluster_name
from reconciler.cluster.scope import ClusterScope
from reconciler.machine.guestlabels import guest_cluster_name
from reconciler.machine.placement import CLUSTER_LABEL, cluster_label
from reconciler.status import Blocked
from reconciler.triggers import Delay, Watched

# No watch reports that another cluster has left.
_RECHECK = 60.0


def require_unique_name(scope: ClusterScope) -> None:
    """Raise `Blocked` for a new cluster whose name another one has in its target namespace.

    A cluster that has run, or has machines, is left alone: `caphv doctor` warns of it.
    """
    if scope.draft.fields.get("initialization") or scope.context.caches.machines_of(scope.cluster):
        return
    holder = next(_holders(scope), "")
    if holder:
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.CLUSTER_NAME_TAKEN,
            f"{holder} has name {scope.cluster_key.name} in namespace {scope.target_namespace} on Harvester, too, "
            "which then gives LoadBalancer Services of one of them no address: recreate this cluster with another name "
            "or targetNamespace",
            Watched.SELF,
            Delay(_RECHECK),
            warn=True,
        )


def _holders(scope: ClusterScope) -> Iterator[str]:
    """Other clusters that have the name, on this management cluster and by the VMs of others."""
    sessions, server = scope.context.sessions, scope.connected().server
    for obj in scope.context.caches.harvester_clusters.store:
        same = cluster_name(obj) == scope.cluster_key.name and key_of(obj) != scope.key
        if not same or (obj.get("spec") or {}).get("targetNamespace") != scope.target_namespace:
            continue
        session = sessions.of(key_of(obj))
        if session and session.server == server and _is_first(obj, scope.obj):
            yield f"HarvesterCluster {key_of(obj)}"

    own = cluster_label(scope.cluster_key)
    for vm in scope.namespace().vms.store.by_index("guest", guest_cluster_name(scope.cluster_key)):
        if labels_of(vm).get(CLUSTER_LABEL, own) != own:
            yield f"the cluster of VirtualMachine {key_of(vm)}"


def _is_first(other: Obj, obj: Obj) -> bool:
    """Whether another cluster keeps the name: it has run, or is older."""
    if ((other.get("status") or {}).get("initialization") or {}).get("provisioned"):
        return True
    ages = [(str(each["metadata"].get("creationTimestamp") or ""), key_of(each)) for each in (other, obj)]
    return ages[0] < ages[1]
