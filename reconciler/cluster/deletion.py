"""Deletes a cluster's infrastructure, each object verified before the next, or force-deletes it at a user's request."""

from __future__ import annotations

from caphv.api import conditions, names
from caphv.api.names import LOAD_BALANCER_SUFFIX, ConditionType, Reason, generated_names
from caphv.api.object import Obj, annotations_of
from reconciler.cluster import loadbalancer, pools
from reconciler.cluster.endpoint import delete_placeholder, release_address
from reconciler.cluster.scope import ClusterScope
from reconciler.status import Blocked
from reconciler.triggers import Watched

# Conditions that are true only after something was read from Harvester, or created on it.
_MADE = (
    ConditionType.HARVESTER_CONNECTION_READY,
    ConditionType.TARGET_NAMESPACE_READY,
    ConditionType.VM_IP_POOL_CREATED,
    ConditionType.CUSTOM_IP_POOL_CREATED,
    ConditionType.LOAD_BALANCER_READY,
)
# Reasons that are temporary; with any other, a requested force-deletion does not wait.
_TEMPORARY = (
    Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
    Reason.HARVESTER_CONNECTION_IN_PROGRESS,
    Reason.TARGET_NAMESPACE_CHECKING,
)


def require_no_machines(scope: ClusterScope) -> None:
    """Raises `Blocked` while there are machines: their deletion needs the connection."""
    machines = scope.context.caches.machines_of(scope.cluster)
    if machines:
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
            f"waiting for {len(machines)} HarvesterMachine(s) to be deleted, first {machines[0]['metadata']['name']}",
            Watched.MACHINES,
        )


async def delete_infrastructure(scope: ClusterScope) -> None:
    """Delete all objects on Harvester. Raises `Blocked` while one of them exists."""
    scope.current_namespace()
    await loadbalancer.delete_load_balancer(scope)
    if scope.draft.is_true(ConditionType.CUSTOM_IP_POOL_CREATED):
        await release_address(scope)
    await pools.delete_pool(scope, ConditionType.CUSTOM_IP_POOL_CREATED, pools.LOAD_BALANCER_SUFFIX)
    await delete_placeholder(scope)
    scope.current_namespace()  # again: Harvester may have become unreachable meanwhile
    await release_address(scope)
    await pools.delete_pool(scope, ConditionType.VM_IP_POOL_CREATED, pools.VM_SUFFIX)


def never_provisioned(obj: Obj) -> bool:
    """Whether the cluster never reached Harvester, so that nothing can be left there.

    A move loses the status, but keeps the endpoint and the names of created pools in the spec.
    """
    spec, status = obj["spec"], obj.get("status") or {}
    endpoint = (spec.get("controlPlaneEndpoint") or {}).get("host") or "0.0.0.0"
    described = [spec.get("loadBalancerConfig") or {}, spec.get("vmNetworkConfig") or {}]
    return (
        endpoint == "0.0.0.0"
        and not status.get("harvester")
        and not status.get("initialization")
        and not any(config.get("ipPool") and config.get("ipPoolRef") for config in described)
        and not any(conditions.is_true(status.get("conditions") or [], made) for made in _MADE)
    )


def orphaned() -> Blocked:
    """The Cluster was deleted: if it was moved, another management cluster uses what would be deleted here."""
    return Blocked(
        ConditionType.INFRASTRUCTURE_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
        "the Cluster no longer exists, and may have been moved to another management cluster",
        Watched.CLUSTER,
        Watched.SELF,
        warn=True,
    )


def may_force_delete(obj: Obj, blocked: Blocked) -> bool:
    """Whether annotation `caphv.io/force-delete` ends a deletion that cannot continue."""
    return annotations_of(obj).get(names.FORCE_DELETE_ANNOTATION) == "true" and blocked.reason not in _TEMPORARY


def advice(blocked: Blocked) -> str:
    """What a user can do about a blocked deletion; empty if the reason is temporary."""
    if blocked.reason in _TEMPORARY:
        return ""
    return (
        f'; deletion is blocked. To delete without Harvester, set annotation {names.FORCE_DELETE_ANNOTATION}: "true"; '
        "objects on Harvester are then left behind"
    )


def left_over(obj: Obj) -> str:
    """What a force-deleted cluster may leave on Harvester, for an Event and the log."""
    spec = obj["spec"]
    name = " or ".join(f"{spec['targetNamespace']}/{name}" for name in generated_names(obj, LOAD_BALANCER_SUFFIX))
    parts = [f"LoadBalancer and Service {name}"]
    host = (spec.get("controlPlaneEndpoint") or {}).get("host")
    if host and spec["loadBalancerConfig"]["ipamType"] == "pool":
        parts.append(f"address {host} in its IPPool")
    for config, suffix in (("loadBalancerConfig", pools.LOAD_BALANCER_SUFFIX), ("vmNetworkConfig", pools.VM_SUFFIX)):
        if (spec.get(config) or {}).get("ipPool"):
            parts.append(f"IPPool {' or '.join(generated_names(obj, suffix))}")
    if spec.get("cloudConfig") or spec.get("updateCloudProviderConfig"):
        parts.append("ServiceAccount, ClusterRoleBinding and token of the cloud provider")
    return f"may remain on Harvester {spec.get('server') or '(unknown)'}: {', '.join(parts)}"
