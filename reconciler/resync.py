"""Requeue objects that have not converged every few minutes.

Every stop has a trigger, so this should find nothing to do. Should a trigger be missing, this turns
a permanent stop into a delay. It reads caches only, and adds keys over the whole interval, so that
no burst follows.
"""

from __future__ import annotations

import asyncio
import random

from caphv.api import clusterapi, conditions
from caphv.api.names import ConditionType
from caphv.api.object import Obj, being_deleted, key_of, list_at
from reconciler.caches import Caches
from reconciler.queues import Queues

INTERVAL = (300.0, 600.0)
"""Shortest and longest time between two rounds in seconds; the time is chosen at random."""


async def run(caches: Caches, queues: Queues) -> None:
    """Requeue until cancelled."""
    while True:
        seconds = random.uniform(*INTERVAL)
        requeue(caches, queues, within=seconds)
        await asyncio.sleep(seconds)


def requeue(caches: Caches, queues: Queues, *, within: float) -> None:
    """Add the keys of all objects that have not converged, each after a random delay."""
    for informer, queue in (
        (caches.harvester_clusters, queues.clusters),
        (caches.harvester_machines, queues.machines),
    ):
        for obj in informer.store:
            if not has_converged(obj, caches.cluster_of(obj)):
                queue.add_after(key_of(obj), random.uniform(0.0, within))


def has_converged(obj: Obj, cluster: Obj | None) -> bool:
    """Return whether nothing is left to do for an object, or it is paused by a user."""
    reported = list_at(obj, "status", "conditions")
    if clusterapi.paused(cluster, obj):
        # A cluster with this condition is paused to be parked, and its VMs have to stay stopped.
        is_parked = conditions.get_condition(reported, ConditionType.PARKED) is not None
        return clusterapi.paused(None, obj) or not is_parked
    return not being_deleted(obj) and conditions.is_true(reported, ConditionType.READY)
