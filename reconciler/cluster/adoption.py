"""Adopt or refuse objects of a cluster on Harvester, and delete only objects that it owns.

After a move, the VM of a machine proves that the cluster owns its objects, because the machine
carries the uid of the VM, and the VM has the same former owner. After `caphv restore`, an
annotation names the former identity of the cluster. Without either proof, the user has to set
annotation `caphv.io/adopt`.
"""

from __future__ import annotations

from caphv.api import names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, annotations_of, at, being_deleted, key_of, uid_of
from caphv.api.ownership import (
    Ownership,
    has_former_owner,
    names_vm,
    ownership_of,
    record,
    same_name,
    wants_adoption,
)
from caphv.runtime.cache import Informer
from caphv.runtime.errors import NotFound
from reconciler.blocked import Blocked
from reconciler.cluster.scope import ClusterScope
from reconciler.triggers import Trigger, Watched


def is_foreign(scope: ClusterScope, obj: Obj) -> bool:
    """Return whether an object belongs to another owner, and this cluster may not adopt it."""
    return ownership_of(obj, scope.owner) is Ownership.FOREIGN and not may_adopt(scope, obj)


def may_delete(scope: ClusterScope, obj: Obj) -> bool:
    """Return whether a deletion may include a LoadBalancer or Service with this cluster's name.

    Only clusters of the Go provider have such objects without a record, and their endpoint is not
    external. With an external endpoint, the object may be the user's own load balancer.
    """
    if is_foreign(scope, obj):
        return False
    is_recorded = ownership_of(obj, scope.owner) is not Ownership.UNRECORDED
    return is_recorded or at(scope.obj, "spec", "loadBalancerConfig", "ipamType") != "none"


def may_adopt(scope: ClusterScope, obj: Obj) -> bool:
    """Return whether the cluster may adopt an object of another owner.

    It may if the user allows it, or if the object belonged to the cluster before.
    """
    # Check tenants first, because annotations that a tenant writes on its own objects prove nothing
    # about objects of other tenants.
    if scope.context.belongs_to_another_tenant(obj, scope.owner):
        return False
    if wants_adoption(scope.obj) or has_former_owner(obj, scope.obj, scope.owner):
        return True
    return _was_moved(scope, obj)


def _was_moved(scope: ClusterScope, obj: Obj) -> bool:
    """Return whether the record names this cluster under another uid, and a VM proves it.

    The proof is a machine of the cluster that has a VM of the same owner, as after `clusterctl
    move` or a restored backup.
    """
    # The uid of the VM is the proof. An endpoint proves nothing, because users can copy it.
    former = annotations_of(obj).get(names.OWNER_CLUSTER_ANNOTATION)
    if not former or not same_name(obj, scope.owner):
        return False

    vms = scope.namespace().vms
    for machine in scope.context.caches.machines_of(scope.cluster):
        vm = vms.get(scope.target_namespace, machine["metadata"]["name"])
        owner = scope.context.owner(resources.HARVESTER_MACHINES.kind, machine)
        if vm is None or being_deleted(vm) or not names_vm(machine, vm, owner):
            continue
        # The reconcile of the machine may have adopted the VM already.
        clusters = (former, owner.management_cluster)
        vm_cluster = annotations_of(vm).get(names.OWNER_CLUSTER_ANNOTATION)
        if same_name(vm, owner) and vm_cluster in clusters:
            return True
    return False


async def adopt_or_refuse(
    scope: ClusterScope,
    informer: Informer,
    obj: Obj,
    condition: ConditionType,
    reason: Reason,
    *triggers: Trigger,
) -> Obj:
    """Return the object with the cluster's record, after writing the record if it is missing.

    Raises `Blocked` if the object has another owner.

    :param scope: the cluster
    :param informer: the cache of the object
    :param obj: the object on Harvester
    :param condition: the condition that reports another owner
    :param reason: the reason of the condition then
    :param triggers: triggers for a retry; by default a change of the load balancer
    """
    subject = f"{informer.resource.kind} {key_of(obj)}"
    if is_foreign(scope, obj):
        owner = annotations_of(obj).get(names.OWNER_ANNOTATION, "another owner")
        remedy = "rename this HarvesterCluster"
        if not scope.context.belongs_to_another_tenant(obj, scope.owner):
            remedy = (
                "rename this HarvesterCluster, or, if the object belongs to this cluster, set "
                f'annotation {names.ADOPT_ANNOTATION}: "true" on the HarvesterCluster'
            )
        raise Blocked(
            condition,
            reason,
            f"{subject} on Harvester belongs to {owner}; {remedy}",
            Watched.SELF,
            *(triggers or (Watched.LOAD_BALANCER,)),
            warn=True,
        )

    if ownership_of(obj, scope.owner) is Ownership.OURS:
        return obj
    # The version is a precondition, because two management clusters may adopt the object at once.
    metadata = obj["metadata"]
    patch = {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "annotations": record(scope.owner),
        }
    }
    adopted = await scope.require_session().client.patch(
        informer.resource, metadata["name"], metadata.get("namespace", ""), patch
    )
    informer.observe(adopted)
    scope.event("Adopted", f"adopted {subject} on Harvester")
    return adopted


async def delete(scope: ClusterScope, informer: Informer, name: str) -> None:
    """Delete an object of the cluster. Raises `Blocked` until it has been deleted."""
    # Ask Harvester, too, because a watch that has just connected may not have delivered the object.
    namespace = scope.target_namespace
    obj = informer.get(namespace, name) or await informer.read(namespace, name)
    if obj is None or not may_delete(scope, obj):
        return

    key = key_of(obj)
    if not being_deleted(obj):
        try:
            # The uid is a precondition, because another object may have the name meanwhile.
            answer = await scope.require_session().client.delete(
                informer.resource, key.name, key.namespace, uid=uid_of(obj)
            )
        except NotFound:
            informer.forget(*key)
            return
        if informer.observe_deletion(*key, answer):
            return

    raise Blocked(
        ConditionType.INFRASTRUCTURE_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
        f"waiting for {informer.resource.kind} {key} on Harvester to be deleted",
        Watched.LOAD_BALANCER,
    )
