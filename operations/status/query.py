"""Answer a query: read clusters, and on request their Harvesters and workload clusters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from caphv.api.object import Key, key_of
from caphv.runtime.client import ApiClient
from operations.read.harvester import Harvesters, read_harvesters
from operations.read.management import Step, read_management
from operations.read.objects import ManagementObjects
from operations.read.workload import read_nodes
from operations.status.assembly import overview_of
from operations.status.causes import with_causes
from operations.status.details import with_details
from operations.status.model import Overview, State
from operations.status.provider import provider_or_absence, read_provider


@dataclass(frozen=True, slots=True)
class Query:
    """The clusters to read, and the servers to ask.

    :param namespace: the namespace of the clusters; empty for all namespaces
    :param keys: limits the answer to these clusters; empty for all clusters
    :param deep: also asks their Harvesters and their own API servers
    """

    namespace: str = ""
    keys: frozenset[Key] = frozenset()
    deep: bool = False

    def takes(self, key: Key) -> bool:
        """Whether a cluster is part of the answer."""
        return not self.keys or key in self.keys


@dataclass(frozen=True, slots=True)
class Answer:
    """The model, and the objects behind it for commands that need more than the model."""

    overview: Overview
    objects: ManagementObjects
    harvesters: Harvesters


async def ask(client: ApiClient, query: Query, step: Step = lambda _text: None) -> Answer:
    """Read clusters.

    Raises `ApiError`, `Unreachable` and `NoClusterApiError` as `read_management` does.
    """
    objects = await read_management(client, query.namespace, step)
    return await answer_of(client, query, objects, step)


async def answer_of(
    client: ApiClient, query: Query, objects: ManagementObjects, step: Step = lambda _text: None
) -> Answer:
    """Answer a query from objects that were read before.

    :param client: client of the management cluster
    :param query: the clusters to return, and whether to ask their servers
    :param objects: the objects of the management cluster
    :param step: called with a text before each step that takes time
    """
    time = datetime.now(UTC)
    all_clusters = overview_of(objects, time)
    clusters = tuple(cluster for cluster in all_clusters.clusters if query.takes(cluster.key))
    provider = provider_or_absence(
        await read_provider(client, time), objects.harvester_clusters, time
    )
    # A cause counts as shared only if clusters in the query share it.
    overview = with_causes(replace(all_clusters, clusters=clusters, provider=provider))
    if not query.deep:
        return Answer(overview, objects, Harvesters())

    keys = {Key(cluster.namespace, cluster.infrastructure) for cluster in clusters}
    harvester_clusters = [obj for obj in objects.harvester_clusters if key_of(obj) in keys]
    # A cluster without any Node, or whose VMs are stopped, has no API server to ask.
    working = [
        cluster.key
        for cluster in clusters
        if cluster.state is not State.PARKED and any(machine.node for machine in cluster.machines)
    ]
    harvesters, nodes = await asyncio.gather(
        read_harvesters(client, harvester_clusters, step), read_nodes(client, working)
    )

    deep = with_details(overview, harvesters.by_identity, nodes, time)
    hidden = tuple(map(str, harvesters.unseen))
    return Answer(replace(deep, unseen=(*deep.unseen, *hidden)), objects, harvesters)
