"""Requeues objects that have not converged, now and then.

Every stop has a trigger, so this should find nothing to do: it turns a defect in that into a delay. It reads caches
only, and adds keys over the whole interval, so that no burst follows.
"""

from __future__ import annotations

import asyncio
import random

from caphv.api import clusterapi, conditions
from caphv.api.names import ConditionType
from caphv.api.object import Obj, being_deleted, key_of
from reconciler.caches import Caches
from reconciler.queues import Queues

INTERVAL = (300.0, 600.0)
"""Seconds between two rounds, at random."""


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
            if not converged(obj, caches.cluster_of(obj)):
                queue.add_after(key_of(obj), random.uniform(0.0, within))


def converged(obj: Obj, cluster: Obj | None) -> bool:
    """Whether nothing is to be done for an object, or nothing may be done because it is paused."""
    if clusterapi.paused(cluster, obj):
        return True
    return not being_deleted(obj) and conditions.is_true(
        (obj.get("status") or {}).get("conditions") or [], ConditionType.READY
    )
