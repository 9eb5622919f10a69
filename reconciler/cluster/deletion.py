"""Delete a cluster's infrastructure, or force the deletion at a user's request.

The deletion of each object is verified before the next one is deleted.
"""

from __future__ import annotations

from caphv.api import conditions, names, remedies
from caphv.api.names import (
    LOAD_BALANCER_SUFFIX,
    POOL_SUFFIX,
    VM_POOL_SUFFIX,
    ConditionType,
    Reason,
    generated_names,
)
from caphv.api.object import Obj, annotations_of, at
from reconciler.blocked import Blocked
from reconciler.cluster import guestbalancers, guestvolumes, loadbalancer, pools
from reconciler.cluster.endpoint import UNSET_HOST, delete_placeholder, release_address
from reconciler.cluster.scope import ClusterScope
from reconciler.memory.periods import FORCE_DELETE_SECONDS
from reconciler.triggers import Watched

# Conditions that are true only after the provider has read or created objects on Harvester.
_REACHED = (
    ConditionType.HARVESTER_CONNECTION_READY,
    ConditionType.TARGET_NAMESPACE_READY,
    ConditionType.VM_IP_POOL_CREATED,
    ConditionType.CUSTOM_IP_POOL_CREATED,
    ConditionType.LOAD_BALANCER_READY,
)
# Temporary reasons. With any other reason, a requested force-deletion does not wait.
_TEMPORARY = (
    Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
    Reason.HARVESTER_CONNECTION_IN_PROGRESS,
    Reason.TARGET_NAMESPACE_CHECKING,
)
# With these reasons, it waits until the outage has lasted.
_OUTAGES = (
    Reason.HARVESTER_AUTHENTICATION_FAILED,
    Reason.HARVESTER_CONNECTION_FAILED,
    Reason.HARVESTER_UNREACHABLE,
)


def require_no_machines(scope: ClusterScope) -> None:
    """Raise `Blocked` while there are machines, because their deletion needs the connection."""
    machines = scope.context.caches.machines_of(scope.cluster)
    if machines:
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
            f"waiting for {len(machines)} HarvesterMachine(s) to be deleted, first "
            f"{machines[0]['metadata']['name']}",
            Watched.MACHINES,
        )


async def delete_infrastructure(scope: ClusterScope) -> None:
    """Delete all objects on Harvester. Raises `Blocked` while one of them exists."""
    # All watches have to be connected, because a deletion must not rely on an old state.
    scope.require_current_namespace()
    # Before the pools, which may be where Services of the guest have their addresses from.
    await guestbalancers.delete_balancers(scope)
    await guestvolumes.delete_volumes(scope)
    await loadbalancer.delete_load_balancer(scope)

    try:
        if scope.draft.is_true(ConditionType.CUSTOM_IP_POOL_CREATED):
            await release_address(scope)
        await pools.delete_pool(scope, ConditionType.CUSTOM_IP_POOL_CREATED, POOL_SUFFIX)
    finally:
        # The Service announces the address. Others who keep the pool for days may get it, once it
        # is released there. A shared pool keeps it until the Service is deleted.
        await delete_placeholder(scope)
    scope.require_current_namespace()  # because Harvester may have become unreachable meanwhile
    await release_address(scope)
    await pools.delete_pool(scope, ConditionType.VM_IP_POOL_CREATED, VM_POOL_SUFFIX)


def was_never_provisioned(obj: Obj) -> bool:
    """Return whether the cluster never reached Harvester, so that nothing can be left there."""
    # A move loses the status, but keeps the endpoint and the names of created pools in the spec.
    spec = obj["spec"]
    status = obj.get("status") or {}
    if at(spec, "loadBalancerConfig", "ipamType") == "none":
        # A user has given the endpoint. The server is what the provider itself has written.
        if spec.get("server"):
            return False
    elif (at(spec, "controlPlaneEndpoint", "host") or UNSET_HOST) != UNSET_HOST:
        return False
    if status.get("harvester") or status.get("initialization"):
        return False

    for config in (spec.get("loadBalancerConfig"), spec.get("vmNetworkConfig")):
        if at(config, "ipPool") and at(config, "ipPoolRef"):
            return False
    reported = status.get("conditions") or []
    return not any(conditions.is_true(reported, condition) for condition in _REACHED)


def orphan_failure() -> Blocked:
    """Return the `Blocked` of a deletion of a HarvesterCluster whose Cluster was deleted."""
    # If the Cluster was moved, another management cluster uses the objects on Harvester.
    return Blocked(
        ConditionType.INFRASTRUCTURE_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
        "the Cluster no longer exists, and may have been moved to another management cluster",
        Watched.CLUSTER,
        Watched.SELF,
        warn=True,
    )


def may_force_delete(obj: Obj, blocked: Blocked) -> bool:
    """Return whether annotation `caphv.io/force-delete` ends a deletion that cannot continue.

    An outage has to last for `outage_remaining` first.
    """
    return (
        annotations_of(obj).get(names.FORCE_DELETE_ANNOTATION) == "true"
        and blocked.reason not in _TEMPORARY
    )


def outage_remaining(scope: ClusterScope, blocked: Blocked) -> float:
    """Return for how many more seconds an outage must last until a deletion is forced."""
    return scope.memory.outage.remaining() if blocked.reason in _OUTAGES else 0.0


def advice(obj: Obj, blocked: Blocked) -> str:
    """Advise a user about a blocked deletion; empty if the reason is temporary."""
    if blocked.reason in _TEMPORARY:
        return ""
    if may_force_delete(obj, blocked):
        return f"; force-deleting the cluster if that lasts {FORCE_DELETE_SECONDS:.0f} s"
    return (
        "; deletion is blocked. To delete without Harvester, set annotation"
        f' {names.FORCE_DELETE_ANNOTATION}: "true"; objects on Harvester are then left behind'
    )


def left_over(obj: Obj) -> str:
    """List the objects that a force-deleted cluster may leave on Harvester, for an Event."""
    spec = obj["spec"]
    balancers = [
        f"{spec['targetNamespace']}/{name}" for name in generated_names(obj, LOAD_BALANCER_SUFFIX)
    ]
    parts = [f"LoadBalancers and volumes of its guest in namespace {spec['targetNamespace']}"]
    if spec["loadBalancerConfig"]["ipamType"] != "none":
        parts.insert(0, f"LoadBalancer and Service {' or '.join(balancers)}")

    host = at(spec, "controlPlaneEndpoint", "host")
    if host and spec["loadBalancerConfig"]["ipamType"] == "pool":
        parts.append(f"address {host} in its IPPool")

    suffixes = {
        "loadBalancerConfig": POOL_SUFFIX,
        "vmNetworkConfig": VM_POOL_SUFFIX,
    }
    for config, suffix in suffixes.items():
        if at(spec, config, "ipPool"):
            parts.append(f"IPPool {' or '.join(generated_names(obj, suffix))}")

    if spec.get("cloudConfig") or spec.get("updateCloudProviderConfig"):
        parts.append("ServiceAccount, ClusterRoleBinding and token of the cloud provider")
    return (
        f"may remain on Harvester {spec.get('server') or '(unknown)'}: {', '.join(parts)}; find it "
        f"when Harvester answers again: {remedies.LIST_LEFTOVERS}"
    )
