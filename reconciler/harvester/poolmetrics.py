"""How many addresses machines can still get, counted when somebody asks for metrics.

Pools change with each machine, and counting looks at all their entries: once a scrape costs less, and leaves no series
of a pool that nobody uses any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api import ipam
from caphv.api.object import Obj, key_of
from reconciler import metrics
from reconciler.context import Context
from reconciler.machine.network import PoolNetwork, effective_network


def report(context: Context) -> None:
    """Set the metric of free addresses anew."""
    counted = free_addresses(context)
    metrics.IPPOOL_FREE.clear()
    for (harvester, pool), free in counted.items():
        metrics.IPPOOL_FREE.labels(harvester, pool).set(free)


def free_addresses(context: Context) -> dict[tuple[str, str], int]:
    """Free addresses by URL of the Harvester and name of the pool, of pools that clusters or machines name."""
    found = {}
    for cluster in context.harvester_clusters.store:
        session = context.sessions.of(key_of(cluster))
        if session is None:
            continue
        for name in set(_pool_names(context, cluster)):
            pool = session.pools.get("", name)
            if pool is None or (session.server, name) in found:
                continue
            try:
                found[session.server, name] = ipam.free_count(pool)
            except ipam.InvalidPoolError:
                continue  # allocations from it say so
    return found


def _pool_names(context: Context, harvester_cluster: Obj) -> Iterator[str]:
    cluster = context.cluster_of(harvester_cluster)
    machines = context.machines_of(cluster) if cluster else []
    own = [spec for machine in machines if (spec := machine.get("spec") or {}).get("vmNetworkConfig")]
    for spec in ({}, *own):
        network = effective_network(spec, harvester_cluster["spec"])
        if isinstance(network, PoolNetwork):
            yield from network.pools
