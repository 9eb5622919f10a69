"""Find the source of the control plane's address, which is an IPPool or DHCP.

Harvester releases the address of a LoadBalancer whose `ipPool` changes and allocates another one
(`pkg/controller/loadbalancer/controller.go` of load-balancer-harvester), and since 1.5 refuses
another `ipam` (`pkg/webhook/loadbalancer/validator.go`). Certificates and kubeconfigs contain the
address, so it must not change. If a spec requests another source, the provider reports that and
does not apply it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from caphv.api import ippool
from caphv.api.object import Key, Obj, at, dict_at
from reconciler.cluster.pools import load_balancer_pool
from reconciler.cluster.scope import ClusterScope

_BY_DHCP = "0.0.0.0"


class Source(NamedTuple):
    """`ipam` is `pool`, `dhcp` or `none`; `pool` is the name of the IPPool, empty for none."""

    ipam: str
    pool: str = ""

    def __str__(self) -> str:
        return f"IPPool {self.pool}" if self.ipam == "pool" else "DHCP"


def requested_source(cluster_spec: Obj) -> Source:
    """Return the source that the spec of the HarvesterCluster requests.

    The pool is empty until the pool that the spec describes has been created.
    """
    config = cluster_spec["loadBalancerConfig"]
    if config["ipamType"] != "pool":
        return Source(config["ipamType"])
    described = config.get("ipPool") and not config.get("ipPoolRef")
    return Source("pool", "" if described else load_balancer_pool(cluster_spec))


def used_source(scope: ClusterScope) -> Source | None:
    """Return the source of the address that the cluster has, None while it has none.

    The most certain evidence is read first. Raises `Blocked` until caches are filled.
    """
    key = Key(scope.target_namespace, scope.load_balancer_name)
    # An address that Harvester's controller has allocated to the LoadBalancer is certain.
    load_balancer = scope.namespace().load_balancers.get(*key)
    allocated = dict_at(load_balancer, "status", "allocatedAddress")
    # Before the LoadBalancer exists, a pool holds or once held the endpoint for this cluster.
    endpoint = at(scope.obj, "spec", "controlPlaneEndpoint", "host")
    pool = allocated.get("ipPool") or _pool_of(
        scope.require_session().pools.store, endpoint, scope.reservation(scope.load_balancer_name)
    )
    if pool:
        return Source("pool", pool)

    # For DHCP, the placeholder Service is the only evidence.
    service = scope.require_session().services.get(*key)
    by_dhcp = service is not None and service["spec"].get("loadBalancerIP") == _BY_DHCP
    return Source("dhcp") if by_dhcp or allocated.get("ip") == _BY_DHCP else None


def why_unused(cluster_spec: Obj, used: Source | None) -> str:
    """Explain why the source in the spec has no effect; empty if it is in use."""
    requested = requested_source(cluster_spec)
    if used is None or requested == used:
        return ""
    if requested.ipam == used.ipam and not requested.pool:
        return ""  # the spec leaves the choice of the pool open

    remedy = "ipamType: dhcp without a pool"
    if used.ipam == "pool":
        remedy = f"ipamType: pool and ipPoolRef: {used.pool}"
    host = at(cluster_spec, "controlPlaneEndpoint", "host")
    return (
        f"{_field(cluster_spec, requested, used)} is not applied: control plane address {host} is "
        f"from {used} and cannot change; set {remedy} in loadBalancerConfig, or create a new "
        "cluster"
    )


def _field(cluster_spec: Obj, requested: Source, used: Source) -> str:
    """Return the field with which the spec requests another source, and its value."""
    config = cluster_spec["loadBalancerConfig"]
    if requested.ipam != used.ipam:
        return f"loadBalancerConfig.ipamType: {requested.ipam}"
    if config.get("ipPoolRef"):
        return f"loadBalancerConfig.ipPoolRef: {config['ipPoolRef']}"
    return f"IPPool {requested.pool} of vmNetworkConfig"


def _pool_of(pools: Iterable[Obj], address: str | None, holder: str) -> str:
    """Return the pool in which a holder has an address, or had it before; empty for none."""
    if not address:
        return ""
    candidates = list(pools)
    # A pool that holds the address now is better evidence than the history of any pool.
    for holders in (ippool.allocated, ippool.allocated_before):
        for pool in candidates:
            if holders(pool).get(address) == holder:
                return str(pool["metadata"]["name"])
    return ""
