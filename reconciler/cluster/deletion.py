"""Taking a cluster's infrastructure down, each thing certain before the next; or, when a user says so, letting go."""

from __future__ import annotations

from caphv.api import names
from caphv.api.names import ConditionType, Reason, generated_names
from caphv.api.object import Obj, annotations_of
from reconciler.cluster import loadbalancer, pools
from reconciler.cluster.endpoint import delete_placeholder, release_address
from reconciler.cluster.scope import LOAD_BALANCER, ClusterScope
from reconciler.status import Blocked

# What passes by itself; with anything else a user who has asked for it need not wait.
_PASSES = (
    Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
    Reason.HARVESTER_CONNECTION_IN_PROGRESS,
    Reason.TARGET_NAMESPACE_CHECKING,
)


def require_no_machines(scope: ClusterScope) -> None:
    """Machines go first: they need the connection. Raises `Blocked` while there are any."""
    machines = scope.context.caches.machines_of(scope.cluster)
    if machines:
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
            f"waiting for {len(machines)} HarvesterMachine(s) to go, first {machines[0]['metadata']['name']}",
        )


async def delete_infrastructure(scope: ClusterScope) -> None:
    """Delete all that was made on Harvester; raises `Blocked` while something of it is still there."""
    scope.namespace()
    await loadbalancer.delete_load_balancer(scope)
    if scope.draft.is_true(ConditionType.CUSTOM_IP_POOL_CREATED):
        await release_address(scope)
    await pools.delete_pool(scope, ConditionType.CUSTOM_IP_POOL_CREATED, pools.LOAD_BALANCER_SUFFIX)
    await delete_placeholder(scope)
    await release_address(scope)
    await pools.delete_pool(scope, ConditionType.VM_IP_POOL_CREATED, pools.VM_SUFFIX)


def orphaned() -> Blocked:
    """The Cluster is gone: was it moved, another management cluster lives on what would be deleted here."""
    return Blocked(
        ConditionType.INFRASTRUCTURE_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
        "the Cluster is gone, so that nobody can tell whether another management cluster has it now",
        warn=True,
    )


def may_force_delete(obj: Obj, blocked: Blocked) -> bool:
    """Whether annotation `caphv.io/force-delete` ends a deletion that cannot go on."""
    return annotations_of(obj).get(names.FORCE_DELETE_ANNOTATION) == "true" and blocked.reason not in _PASSES


def advice(blocked: Blocked) -> str:
    """What a user can do about a deletion that does not pass by itself; empty when it does."""
    if blocked.reason in _PASSES:
        return ""
    return (
        f'; the deletion waits for that. Annotation {names.FORCE_DELETE_ANNOTATION}: "true" ends it without Harvester, '
        "and leaves there what is there"
    )


def left_over(obj: Obj) -> str:
    """What a cluster that is let go may leave on its Harvester, for an Event and the log."""
    spec = obj["spec"]
    name = " or ".join(f"{spec['targetNamespace']}/{name}" for name in generated_names(obj, LOAD_BALANCER))
    parts = [f"LoadBalancer and Service {name}"]
    host = (spec.get("controlPlaneEndpoint") or {}).get("host")
    if host and spec["loadBalancerConfig"]["ipamType"] == "pool":
        parts.append(f"address {host} in its IPPool")
    for config, suffix in (("loadBalancerConfig", pools.LOAD_BALANCER_SUFFIX), ("vmNetworkConfig", pools.VM_SUFFIX)):
        if (spec.get(config) or {}).get("ipPool"):
            parts.append(f"IPPool {' or '.join(generated_names(obj, suffix))}")
    if spec.get("cloudConfig") or spec.get("updateCloudProviderConfig"):
        parts.append("ServiceAccount, ClusterRoleBinding and token of the cloud provider")
    return f"on Harvester {spec.get('server') or '(unknown)'} there may be left: {', '.join(parts)}"
