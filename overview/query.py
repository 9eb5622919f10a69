"""One query: read clusters, assemble them, and on request add Harvesters and workload clusters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from caphv.api.object import Key, key_of
from caphv.runtime.client import ApiClient
from overview.assembly import overview_of
from overview.causes import with_causes
from overview.details import with_details
from overview.harvester import Harvesters, read_harvesters, read_nodes
from overview.model import Overview
from overview.objects import ManagementObjects
from overview.provider import read_provider
from overview.reader import Step, read_management


@dataclass(frozen=True, slots=True)
class Query:
    """Which clusters: all of a namespace (empty: of all), or those of `keys`; `deep` asks their servers, too."""

    namespace: str = ""
    keys: frozenset[Key] = frozenset()
    deep: bool = False

    def takes(self, key: Key) -> bool:
        """Whether a cluster is meant."""
        return not self.keys or key in self.keys


@dataclass(frozen=True, slots=True)
class Answer:
    """The model, and the objects it was made of for commands that need more of them."""

    overview: Overview
    objects: ManagementObjects
    harvesters: Harvesters


async def ask(client: ApiClient, query: Query, step: Step = lambda _text: None) -> Answer:
    """Read clusters. Raises `ApiError`, `Unreachable` and `NoClusterApiError` as `read_management` does."""
    objects = await read_management(client, query.namespace, step)
    return await answer_of(client, query, objects, step)


async def answer_of(
    client: ApiClient, query: Query, objects: ManagementObjects, step: Step = lambda _text: None
) -> Answer:
    """Put objects together that were read before."""
    now = datetime.now(UTC)
    whole = overview_of(objects, now)
    clusters = tuple(cluster for cluster in whole.clusters if query.takes(cluster.key))
    overview = with_causes(replace(whole, clusters=clusters, provider=await read_provider(client, now)))
    if not query.deep:
        return Answer(overview, objects, Harvesters())
    own = {Key(cluster.namespace, cluster.infrastructure) for cluster in overview.clusters}
    harvester_clusters = [obj for obj in objects.harvester_clusters if key_of(obj) in own]
    working = [cluster.key for cluster in overview.clusters if any(each.node for each in cluster.machines)]
    harvesters, nodes = await asyncio.gather(
        read_harvesters(client, harvester_clusters, step), read_nodes(client, working)
    )
    deep = with_details(overview, harvesters.by_identity, nodes)
    hidden = tuple(map(str, harvesters.unseen))
    return Answer(replace(deep, unseen=(*deep.unseen, *hidden)), objects, harvesters)
