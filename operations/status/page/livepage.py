"""Serve the live page: follow clusters, and ask their Harvesters and workload clusters."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, key_of
from caphv.runtime.client import ApiClient
from operations.read.follow import Follower
from operations.read.harvester import Harvesters, read_harvesters
from operations.read.objects import ManagementObjects, Unseen, condition_of
from operations.read.workload import read_nodes
from operations.status.assembly import overview_of
from operations.status.causes import with_causes
from operations.status.details import with_details
from operations.status.healthchecks import replacements_of
from operations.status.model import Cluster, Overview, Provider, State
from operations.status.page.content import content_of, events_of
from operations.status.page.server import Feed, PageServer
from operations.status.provider import provider_or_absence, read_provider

log = logging.getLogger(__name__)

# Servers that are not watched are read at this interval, because it takes seconds to list a
# Harvester with many VMs.
_DEEP_SECONDS = 15.0
# With these reasons of a HarvesterCluster, the page cannot read the Harvester either.
_NO_CONNECTION = frozenset(
    {
        Reason.HARVESTER_UNREACHABLE,
        Reason.HARVESTER_CONNECTION_FAILED,
        Reason.HARVESTER_AUTHENTICATION_FAILED,
    }
)


class LivePage:
    """Follow clusters and serve the page.

    :param client: client of the management cluster
    :param namespace: the namespace of the clusters; empty for all namespaces
    :param keys: limits the page to these clusters; empty for all clusters
    :param deep: also asks Harvesters and workload clusters
    :param token: the secret part of the page's address; a new one by default
    """

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        keys: frozenset[Key],
        *,
        deep: bool,
        token: str = "",
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._keys = keys
        self._deep = deep
        self._feed = Feed()
        self._server = PageServer(self._feed, token)

        # The results of the last reads. A new state is built from them after each change.
        self._objects = ManagementObjects()
        self._harvesters = Harvesters()
        self._nodes: dict[Key, list[Obj] | Unseen] = {}
        self._provider: Provider | None = None
        self._away = False
        self._connections: dict[Key, object] = {}

        self._state = content_of(Overview(client.server), (), {})
        self._broken: dict[str, str] = {}
        """Failures of the last reads, which the page shows next to an older state."""
        self._read_soon = asyncio.Event()
        """Set when Harvesters should be read at once."""
        self._rendering = asyncio.Lock()
        """Held while a thread makes a state, so that an older one never replaces a newer one."""

    @asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[str]:
        """Serve while the block lasts; yield the URL. Raises as `Follower` does, and `OSError`."""
        async with AsyncExitStack() as stack:
            follower = Follower(self._client, self._namespace, page=True)
            await stack.enter_async_context(follower)
            url = await stack.enter_async_context(self._server.serving(host, port))

            works = [
                self._repeat("clusters", partial(self._follow, follower)),
                self._repeat("the provider", self._read_provider),
            ]
            if self._deep:
                name = "Harvesters and workload clusters"
                works.append(self._repeat(name, self._read_deep, self._read_soon))

            tasks = [asyncio.create_task(work) for work in works]
            try:
                yield url
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(
        self, name: str, work: Callable[[], Awaitable[None]], soon: asyncio.Event | None = None
    ) -> None:
        """Repeat work until cancelled, after a while or once `soon` is set.

        A failure is shown and the work is repeated, because a stuck page must not look live.
        """
        wake = soon or asyncio.Event()
        while True:
            try:
                await work()
            except Exception as error:
                text = f"{name}: {type(error).__name__}: {error}"
                # The same failure repeats every few seconds, and is logged once.
                if text != self._broken.get(name):
                    log.exception("the page cannot show %s", name)
                self._broken[name] = text
                async with self._rendering:
                    await self._send()

            with suppress(TimeoutError):
                async with asyncio.timeout(_DEEP_SECONDS):
                    await wake.wait()

    async def _follow(self, follower: Follower) -> None:
        """Show each change of the management cluster's objects."""
        async for objects in follower.changes():
            self._objects = objects
            self._away = follower.away
            await self._show("clusters")

            # A Harvester that answers again should be read at once.
            connections = {key_of(obj): _connection_of(obj) for obj in objects.harvester_clusters}
            if connections != self._connections:
                self._connections = connections
                self._read_soon.set()

    async def _read_provider(self) -> None:
        """Read whether a provider is at work. Its Lease changes too often to be watched."""
        now = datetime.now(UTC)
        provider = await read_provider(self._client, now)
        self._provider = provider_or_absence(provider, self._objects.harvester_clusters, now)
        await self._show("the provider")

    async def _read_deep(self) -> None:
        """Read Harvesters and workload clusters, which are too many servers to watch."""
        # The first state names the clusters. Later ones do not delay the read.
        await self._feed.newer("")
        self._read_soon.clear()

        clusters = (await asyncio.to_thread(self._overview)).clusters
        keys = {Key(cluster.namespace, cluster.infrastructure) for cluster in clusters}
        harvester_clusters = [
            obj for obj in self._objects.harvester_clusters if key_of(obj) in keys
        ]
        # A cluster without any Node, or whose VMs are stopped, has no API server to ask.
        working = [
            cluster.key
            for cluster in clusters
            if cluster.state is not State.PARKED
            and any(machine.node for machine in cluster.machines)
        ]
        self._harvesters, self._nodes = await asyncio.gather(
            read_harvesters(self._client, harvester_clusters), read_nodes(self._client, working)
        )
        await self._show("Harvesters and workload clusters")

    def _overview(self) -> Overview:
        """Return the model of the clusters that the page shows, without a deep read."""
        overview = overview_of(self._objects, datetime.now(UTC))
        clusters = tuple(
            cluster for cluster in overview.clusters if not self._keys or cluster.key in self._keys
        )
        # A cause counts as shared only if clusters on the page share it.
        return with_causes(replace(overview, clusters=clusters, provider=self._provider))

    async def _show(self, name: str) -> None:
        """Show the state after the servers that `name` stands for were read."""
        async with self._rendering:
            # Many clusters, or long texts of tenants, take tenths of a second, in which the tabs of
            # browsers would wait.
            self._state = await asyncio.to_thread(self._render)
            self._broken.pop(name, None)
            await self._send()

    def _render(self) -> dict[str, Any]:
        """Return the state that the last reads make."""
        overview = with_details(
            self._overview(), self._harvesters.by_identity, self._nodes, datetime.now(UTC)
        )
        unseen = _drop_consequences(self._harvesters.unseen, overview.clusters)
        overview = replace(overview, unseen=(*overview.unseen, *unseen))

        events = self._objects.events
        if self._keys:
            events = events_of(events, overview.clusters)
        return content_of(overview, events, replacements_of(self._objects))

    async def _send(self) -> None:
        """Publish the state to the browsers, with current failures."""
        content = {**self._state, "unseen": [*self._broken.values(), *self._state["unseen"]]}
        content["fault"] = self._fault()
        self._feed.publish(await asyncio.to_thread(json.dumps, content, separators=(",", ":")))

    def _fault(self) -> str:
        """Return the worst fault, which replaces `live` on the page; empty if there is none."""
        if self._broken:
            return "not up to date"
        if self._away:
            return "management cluster not readable"
        return "provider is silent" if self._provider and self._provider.silent else ""


def _connection_of(harvester_cluster: Obj) -> Any:
    """Return the values that change when a Harvester is lost or answers again."""
    condition = condition_of(harvester_cluster, ConditionType.HARVESTER_CONNECTION_READY)
    return condition.get("status"), condition.get("reason")


def _drop_consequences(unseen: Iterable[Unseen], clusters: Iterable[Cluster]) -> list[str]:
    """Return the parts of Harvesters that could not be read, unless a cluster reports the cause."""
    reported = {
        cluster.identity
        for cluster in clusters
        if any(problem.reason in _NO_CONNECTION for problem in cluster.problems)
    }
    return [str(item) for item in unseen if item.what.rpartition(" ")[2] not in reported]
