"""Count the free addresses of the IPPools that machines use, when metrics are scraped.

Pools change with each machine, and a count reads all their entries. Counting once per scrape
therefore costs less, and it leaves no series of a pool that is no longer used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from caphv.api import ippool
from reconciler import metrics
from reconciler.harvester.session import Session


class UsedPools(NamedTuple):
    """A session, and the names of the pools that its clusters and machines use."""

    session: Session
    names: Iterable[str]


class PoolKey(NamedTuple):
    """URL of a Harvester, and name of an IPPool there."""

    server: str
    name: str


def report(used: Iterable[UsedPools]) -> None:
    """Set the metric of free addresses."""
    counted = free_addresses(used)
    metrics.IPPOOL_FREE.clear()
    for key, free in counted.items():
        metrics.IPPOOL_FREE.labels(key.server, key.name).set(free)


def free_addresses(used: Iterable[UsedPools]) -> dict[PoolKey, int]:
    """Count the free addresses of each pool that is used."""
    free = {}
    for session, names in used:
        for name in set(names):
            key = PoolKey(session.server, name)
            pool = session.pools.get("", name)
            if pool is None or key in free:
                continue
            try:
                free[key] = ippool.free_count(pool)
            except ippool.InvalidPoolError:
                continue  # allocations from it report the error
    return free
