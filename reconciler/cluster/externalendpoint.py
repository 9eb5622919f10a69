"""The control plane's endpoint with `ipamType: none`: a load balancer that is not Harvester's.

A user gives host and port, and they are never overwritten. Nothing is created on Harvester, and
what an earlier `ipamType` has created is deleted, unless the cluster has machines that use it. The
record on an object proves that. One without a record may be the user's own load balancer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from caphv.api import clusterapi
from caphv.api.conditions import get_condition
from caphv.api.names import (
    LOAD_BALANCER_SUFFIX,
    POOL_SUFFIX,
    ConditionType,
    Reason,
    generated_names,
)
from caphv.api.object import SERVICES, Obj, at, dict_at
from caphv.api.ownership import Ownership, ownership_of
from caphv.api.resources import LOAD_BALANCERS
from caphv.runtime.errors import RequestError, kind_of
from reconciler.blocked import Blocked
from reconciler.cluster import adoption, pools
from reconciler.cluster.addresssource import used_source
from reconciler.cluster.endpoint import (
    API_PORT,
    UNSET_HOST,
    delete_placeholder,
    release_address,
)
from reconciler.cluster.scope import ClusterScope
from reconciler.triggers import Watched

_READY = ConditionType.LOAD_BALANCER_READY
# A load balancer that loses one of its backends may break a watch, which is back within seconds.
_PATIENCE_SECONDS = 15.0


def is_external(scope: ClusterScope) -> bool:
    """Return whether the endpoint is external.

    A load balancer on Harvester that serves machines stays in use, whatever the spec says now:
    admission refuses such a change, but not while a move has lost the status.
    Raises `Blocked` until caches are filled.
    """
    if scope.obj["spec"]["loadBalancerConfig"]["ipamType"] != "none":
        return False
    if not scope.context.caches.machines_of(scope.cluster) or not _has_load_balancer(scope):
        return True
    return used_source(scope) is None


async def ensure_external_endpoint(scope: ClusterScope) -> None:
    """Require the endpoint that a user gives, and complete it with the default port.

    Raises `Blocked` while there is no host, or while an object of an earlier `ipamType` exists on
    Harvester.
    """
    endpoint = scope.obj["spec"].get("controlPlaneEndpoint") or {}
    if endpoint.get("host") in (None, "", UNSET_HOST):
        raise Blocked(
            _READY,
            Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
            "loadBalancerConfig.ipamType is none, but controlPlaneEndpoint.host is not set; set it "
            "to the address or DNS name of your load balancer, or set ipamType to dhcp or pool",
            Watched.SELF,
            warn=True,
        )
    if not endpoint.get("port"):
        await scope.patch_spec({"controlPlaneEndpoint": {"port": API_PORT}})

    if not scope.context.caches.machines_of(scope.cluster):
        await _delete_former_load_balancer(scope)


async def restore_source(scope: ClusterScope) -> None:
    """Set `ipamType` back from `none` for a load balancer that stays in use (see `is_external`).

    Once the cluster is provisioned, admission would refuse a user's correction.
    """
    obj = scope.obj
    if obj["spec"]["loadBalancerConfig"]["ipamType"] != "none":
        return

    is_provisioned = at(obj, "status", "initialization", "provisioned") or at(
        obj, "status", "ready"
    )
    used = used_source(scope)
    if is_provisioned or used is None:
        return

    pool = {"ipPoolRef": used.pool} if used.pool else {}
    await scope.patch_spec({"loadBalancerConfig": {"ipamType": used.ipam, **pool}})
    scope.warning_event(
        "LoadBalancerAddressKept",
        "loadBalancerConfig.ipamType: none was set back, because machines use the load balancer on "
        "Harvester: create a new cluster for an external endpoint",
    )


async def _delete_former_load_balancer(scope: ClusterScope) -> None:
    """Delete what an earlier `ipamType` has created. Raises `Blocked` while an object exists."""
    objects = list(_load_balancers(scope))
    # A move or restore changes the owner, and it may bring the machines that use them later.
    if any(ownership_of(obj, scope.owner) is not Ownership.OURS for obj in objects):
        return
    if objects:
        # A deletion must not rely on an old state.
        namespace = scope.require_current_namespace()
        await adoption.delete(scope, namespace.load_balancers, scope.load_balancer_name)
        await delete_placeholder(scope)
    await release_address(scope)
    await pools.delete_pool(scope, ConditionType.CUSTOM_IP_POOL_CREATED, POOL_SUFFIX)
    scope.draft.drop(ConditionType.CUSTOM_IP_POOL_CREATED)


def report_external_endpoint(scope: ClusterScope) -> None:
    """Report whether the control plane answers at its external endpoint.

    The watch of the workload cluster's Nodes goes through the endpoint, so it shows whether the
    endpoint answers. Before the control plane is initialized, no machine is expected to answer.
    """
    where = describe_endpoint(scope.obj)
    memory = scope.memory
    error = scope.context.workloads.outage(scope.cluster_key)
    if error and not clusterapi.control_plane_initialized(scope.cluster):
        # No watch of the Cluster reports its initialization here.
        scope.requeue_within(_PATIENCE_SECONDS)
        error = None

    if error is None:
        if _is_reported_lost(scope) and not scope.context.workloads.has_answered(scope.cluster_key):
            return  # a restart of the provider ends no outage
        memory.unanswered_since = None
        message = f"control plane endpoint {where} is external: nothing on Harvester serves it"
        scope.draft.set_true(_READY, message)
        return

    current_time = time.monotonic()
    if memory.unanswered_since is None:
        memory.unanswered_since = current_time
    remaining = memory.unanswered_since + _PATIENCE_SECONDS - current_time
    if remaining > 0 and scope.draft.has(_READY):
        scope.requeue_within(remaining)  # the stored status may report the outage already
        return
    scope.draft.set_false(
        _READY,
        Reason.CONTROL_PLANE_UNREACHABLE,
        f"the control plane does not answer at its external endpoint {where}: {_kind_of(error)}; "
        "check your load balancer and the control plane machines",
    )


def describe_endpoint(obj: Obj) -> str:
    """Return host and port of the control plane endpoint of a HarvesterCluster."""
    endpoint = dict_at(obj, "spec", "controlPlaneEndpoint")
    return f"{endpoint.get('host')}:{endpoint.get('port') or API_PORT}"


def _is_reported_lost(scope: ClusterScope) -> bool:
    """Return whether the status reports that the control plane does not answer."""
    reported = get_condition(scope.draft.fields.get("conditions") or [], _READY) or {}
    return reported.get("reason") == Reason.CONTROL_PLANE_UNREACHABLE


def _kind_of(error: Exception) -> str:
    """Return the kind of an error, which stays the same while its text changes."""
    return kind_of(error) if isinstance(error, RequestError) else "its answers are invalid"


def _has_load_balancer(scope: ClusterScope) -> bool:
    """Return whether Harvester has a LoadBalancer or placeholder Service of this cluster."""
    return any(adoption.may_delete(scope, obj) for obj in _load_balancers(scope))


def _load_balancers(scope: ClusterScope) -> Iterator[Obj]:
    """Yield LoadBalancers and Services on Harvester that have a name of this cluster's."""
    caches = {
        LOAD_BALANCERS: scope.namespace().load_balancers,
        SERVICES: scope.require_session().services,
    }
    for name in generated_names(scope.obj, LOAD_BALANCER_SUFFIX):
        for cache in caches.values():
            obj = cache.get(scope.target_namespace, name)
            if obj:
                yield obj
