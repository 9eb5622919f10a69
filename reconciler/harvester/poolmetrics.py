"""Count the free addresses of the IPPools that machines use, when metrics are scraped.

Pools change with each machine, and a count reads all their entries. Counting once per scrape
therefore costs less, and it leaves no series of a pool that is no longer used.
"""

from __future__ import annotations

from collections.abc import Iterable

from caphv.api import ippool
from reconciler import metrics
from reconciler.harvester.session import Session

UsedPools = Iterable[tuple[Session, Iterable[str]]]
"""Sessions, each with the names of the pools that its clusters and machines use."""


def report(used: UsedPools) -> None:
    """Set the metric of free addresses."""
    counted = free_addresses(used)
    metrics.IPPOOL_FREE.clear()
    for (harvester, pool), free in counted.items():
        metrics.IPPOOL_FREE.labels(harvester, pool).set(free)


def free_addresses(used: UsedPools) -> dict[tuple[str, str], int]:
    """Count the free addresses, by URL of the Harvester and name of the pool."""
    free = {}
    for session, names in used:
        for name in set(names):
            pool = session.pools.get("", name)
            if pool is None or (session.server, name) in free:
                continue
            try:
                free[session.server, name] = ippool.free_count(pool)
            except ippool.InvalidPoolError:
                continue  # allocations from it report the error
    return free
