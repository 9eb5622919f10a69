"""Objects of a cluster on Harvester: adopted or refused, and deleted only if the cluster owns them.

After a move, the VM of a machine proves that the cluster owns its objects: the machine carries the uid of the VM, and
the VM has the same former owner. After `caphv restore`, an annotation says who the cluster was. Without either, the
user has to set annotation `caphv.io/adopt`.
"""

from __future__ import annotations

from caphv.api import names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, annotations_of, being_deleted, key_of, uid_of
from caphv.runtime.cache import Informer
from caphv.runtime.errors import NotFound
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.ownership import (
    Ownership,
    formerly_owned,
    names_vm,
    ownership_of,
    record,
    same_name,
    wants_adoption,
)
from reconciler.status import Blocked
from reconciler.triggers import Trigger, Watched


def is_foreign(scope: ClusterScope, obj: Obj) -> bool:
    """Whether an object belongs to another owner, and this cluster may not adopt it."""
    return ownership_of(obj, scope.owner) is Ownership.FOREIGN and not may_adopt(scope, obj)


def may_adopt(scope: ClusterScope, obj: Obj) -> bool:
    """Whether the user allows the cluster to adopt an object of another owner, or it was the cluster's before.

    Never that of another tenant, whose annotations prove nothing here.
    """
    if scope.context.belongs_to_another_tenant(obj, scope.owner):
        return False
    return wants_adoption(scope.obj) or formerly_owned(obj, scope.obj, scope.owner) or _moved(scope, obj)


def _moved(scope: ClusterScope, obj: Obj) -> bool:
    """Whether the record names this cluster under another uid, and one of its machines has a VM of the same owner.

    So it is after `clusterctl move` or a restored backup. Its uid proves it; an endpoint would not, because it can be
    copied.
    """
    former = annotations_of(obj).get(names.OWNER_CLUSTER_ANNOTATION)
    if not former or not same_name(obj, scope.owner):
        return False
    vms = scope.namespace().vms
    for machine in scope.context.caches.machines_of(scope.cluster):
        vm = vms.get(scope.target_namespace, machine["metadata"]["name"])
        owner = scope.context.owner(resources.HARVESTER_MACHINES.kind, machine)
        if vm is None or being_deleted(vm) or not names_vm(machine, vm, owner):
            continue
        clusters = (former, owner.management_cluster)
        if same_name(vm, owner) and annotations_of(vm).get(names.OWNER_CLUSTER_ANNOTATION) in clusters:
            return True
    return False


async def adopt_or_refuse(
    scope: ClusterScope, informer: Informer, obj: Obj, condition: ConditionType, reason: Reason, *triggers: Trigger
) -> Obj:
    """Write the cluster's record on an object that lacks it. Raises `Blocked` if it has another owner."""
    what = f"{informer.resource.kind} {key_of(obj)}"
    if is_foreign(scope, obj):
        owner = annotations_of(obj).get(names.OWNER_ANNOTATION, "another owner")
        remedy = "rename this HarvesterCluster"
        if not scope.context.belongs_to_another_tenant(obj, scope.owner):
            remedy = (
                "rename this HarvesterCluster, or, if the object belongs to this cluster, set annotation "
                f'{names.ADOPT_ANNOTATION}: "true" on the HarvesterCluster'
            )
        raise Blocked(
            condition,
            reason,
            f"{what} on Harvester belongs to {owner}; {remedy}",
            Watched.SELF,
            *(triggers or (Watched.LOAD_BALANCER,)),
            warn=True,
        )
    if ownership_of(obj, scope.owner) is Ownership.OURS:
        return obj
    metadata = obj["metadata"]
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": record(scope.owner)}}
    client = scope.connected().client
    taken = await client.patch(informer.resource, metadata["name"], metadata.get("namespace", ""), patch)
    informer.observe(taken)
    scope.event("Adopted", f"adopted {what} on Harvester")
    return taken


async def delete(scope: ClusterScope, informer: Informer, obj: Obj | None) -> None:
    """Delete an object of the cluster. Raises `Blocked` until it has been deleted."""
    if obj is None or is_foreign(scope, obj):
        return
    key = key_of(obj)
    if not being_deleted(obj):
        try:
            answer = await scope.connected().client.delete(informer.resource, key.name, key.namespace, uid=uid_of(obj))
            if informer.deleted(*key, answer):
                return
        except NotFound:
            informer.forget(*key)
            return
    raise Blocked(
        ConditionType.INFRASTRUCTURE_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
        f"waiting for {informer.resource.kind} {key} on Harvester to be deleted",
        Watched.LOAD_BALANCER,
    )
