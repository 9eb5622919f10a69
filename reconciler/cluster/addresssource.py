"""Where the address of the control plane comes from: an IPPool or DHCP, as it was when the address was assigned.

Harvester releases the address of a LoadBalancer whose `ipPool` changes and allocates another one
(`pkg/controller/loadbalancer/controller.go` of load-balancer-harvester), and since 1.5 refuses another `ipam`
(`pkg/webhook/loadbalancer/validator.go`). Certificates and kubeconfigs contain the address, so it must not move: a spec
that asks for another source is reported, and not applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from caphv.api import ippool
from caphv.api.object import Obj
from reconciler.cluster.pools import load_balancer_pool
from reconciler.cluster.scope import ClusterScope

_BY_DHCP = "0.0.0.0"


class Source(NamedTuple):
    """`ipam` is `pool` or `dhcp`; `pool` is the name of the IPPool, empty for none."""

    ipam: str
    pool: str = ""

    def __str__(self) -> str:
        return f"IPPool {self.pool}" if self.ipam == "pool" else "DHCP"


def wanted_source(cluster_spec: Obj) -> Source:
    """Source that the spec of the HarvesterCluster asks for; without a pool while that has not been created."""
    config = cluster_spec["loadBalancerConfig"]
    if config["ipamType"] != "pool":
        return Source("dhcp")
    described = config.get("ipPool") and not config.get("ipPoolRef")
    return Source("pool", "" if described else load_balancer_pool(cluster_spec))


def used_source(scope: ClusterScope) -> Source | None:
    """Source of the address that the cluster has, None while it has none. Raises `Blocked` until caches are filled.

    In the order of certainty: what the LoadBalancer has allocated, a pool that has or had the endpoint for this
    cluster, and the placeholder Service.
    """
    place = scope.target_namespace, scope.load_balancer_name
    load_balancer = scope.namespace().load_balancers.get(*place)
    allocated = ((load_balancer or {}).get("status") or {}).get("allocatedAddress") or {}
    endpoint = (scope.obj["spec"].get("controlPlaneEndpoint") or {}).get("host")
    pool = allocated.get("ipPool") or _pool_of(
        scope.connected().pools.store, endpoint, scope.reservation(scope.load_balancer_name)
    )
    if pool:
        return Source("pool", pool)
    service = scope.connected().services.get(*place)
    by_dhcp = service is not None and service["spec"].get("loadBalancerIP") == _BY_DHCP
    return Source("dhcp") if by_dhcp or allocated.get("ip") == _BY_DHCP else None


def unused(cluster_spec: Obj, used: Source | None) -> str:
    """Message about a source that the spec names without effect; empty if it is the one in use."""
    wanted, host = wanted_source(cluster_spec), (cluster_spec.get("controlPlaneEndpoint") or {}).get("host")
    if used is None or wanted == used or (wanted.ipam == used.ipam and not wanted.pool):
        return ""
    remedy = f"ipamType: pool and ipPoolRef: {used.pool}" if used.ipam == "pool" else "ipamType: dhcp without a pool"
    return (
        f"{_field(cluster_spec, wanted, used)} is not applied: control plane address {host} is from {used} and cannot "
        f"change; set {remedy} in loadBalancerConfig, or create a new cluster"
    )


def _field(cluster_spec: Obj, wanted: Source, used: Source) -> str:
    """The field with which the spec asks for another source, and its value."""
    config = cluster_spec["loadBalancerConfig"]
    if wanted.ipam != used.ipam:
        return f"loadBalancerConfig.ipamType: {wanted.ipam}"
    if config.get("ipPoolRef"):
        return f"loadBalancerConfig.ipPoolRef: {config['ipPoolRef']}"
    return f"IPPool {wanted.pool} of vmNetworkConfig"


def _pool_of(pools: Iterable[Obj], address: str | None, holder: str) -> str:
    """Name of the pool in which `holder` has the address, else of one in which it had it; empty for none."""
    known = list(pools)
    for record in (ippool.allocated, ippool.allocated_before):
        for pool in known:
            if address and record(pool).get(address) == holder:
                return str(pool["metadata"]["name"])
    return ""
