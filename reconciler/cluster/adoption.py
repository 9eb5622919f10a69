"""Objects of a cluster on Harvester: adopted or refused, and deleted only if the cluster owns them.

Nothing on a load balancer or pool proves that a cluster owns it (a machine has the uid of its VM), so after a move or
the loss of the management cluster the user has to set annotation `caphv.io/adopt`.
"""

from __future__ import annotations

from caphv.api import names
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, annotations_of, being_deleted, key_of, uid_of
from caphv.runtime.cache import Informer
from caphv.runtime.errors import NotFound
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.ownership import Ownership, ownership_of, record, wants_adoption
from reconciler.status import Blocked
from reconciler.wake import WakeSource, Watched


def is_foreign(scope: ClusterScope, obj: Obj) -> bool:
    """Whether an object belongs to another owner, and the user has not allowed this cluster to adopt it."""
    return ownership_of(obj, scope.owner) is Ownership.FOREIGN and not wants_adoption(scope.obj)


async def adopt_or_refuse(
    scope: ClusterScope, informer: Informer, obj: Obj, condition: ConditionType, reason: Reason, *wake: WakeSource
) -> Obj:
    """Write the cluster's record on an object that lacks it. Raises `Blocked` if it has another owner."""
    what = f"{informer.resource.kind} {key_of(obj)}"
    if is_foreign(scope, obj):
        owner = annotations_of(obj).get(names.OWNER_ANNOTATION, "another owner")
        raise Blocked(
            condition,
            reason,
            f"{what} on Harvester belongs to {owner}; rename this HarvesterCluster, or, if the object belongs to this "
            f'cluster, set annotation {names.ADOPT_ANNOTATION}: "true" on the HarvesterCluster',
            Watched.SELF,
            *(wake or (Watched.LOAD_BALANCER,)),
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
