"""The live page of a management cluster: follows its clusters, and asks Harvesters and workload clusters."""

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
from overview.assembly import overview_of
from overview.causes import with_causes
from overview.details import with_details
from overview.follow import Follower
from overview.harvester import Harvesters, read_harvesters, read_nodes
from overview.healthchecks import replacements_of
from overview.model import Cluster, Overview, Provider
from overview.objects import ManagementObjects, Unseen, condition_of
from overview.page.content import content_of, events_of
from overview.page.serving import Feed, PageServer
from overview.provider import read_provider

log = logging.getLogger(__name__)

_DEEP_SECONDS = 15.0
# Reasons of HarvesterClusters that say why this page cannot read a Harvester either.
_NO_CONNECTION = frozenset(
    {
        Reason.HARVESTER_UNREACHABLE,
        Reason.HARVESTER_CONNECTION_FAILED,
        Reason.HARVESTER_AUTHENTICATION_FAILED,
    }
)


class LivePage:
    """Follows clusters and serves the page.

    :param keys: limits it to some clusters
    :param deep: asks Harvesters and workload clusters, too
    :param token: the secret part of the page's address; a new one by default
    """

    def __init__(self, client: ApiClient, namespace: str, keys: frozenset[Key], *, deep: bool, token: str = "") -> None:
        self._client = client
        self._namespace, self._keys, self._deep = namespace, keys, deep
        self._feed = Feed()
        self._server = PageServer(self._feed, token)
        self._objects = ManagementObjects()
        self._harvesters = Harvesters()
        self._nodes: dict[Key, list[Obj] | Unseen] = {}
        self._state = content_of(Overview(client.server), (), {})
        self._provider: Provider | None = None
        self._away = False
        self._broken: dict[str, str] = {}
        """What the page could not do last, and why: it shows this next to a state that is older."""
        self._connections: dict[Key, object] = {}
        self._look_again = asyncio.Event()
        """Set when Harvesters are to be read at once."""

    @asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[str]:
        """Serve for as long as the block lasts; yields the URL. Raises as `Follower` does, and `OSError`."""
        async with AsyncExitStack() as stack:
            follower = Follower(self._client, self._namespace, page=True)
            await stack.enter_async_context(follower)
            url = await stack.enter_async_context(self._server.serving(host, port))

            works = [
                self._again_and_again("clusters", partial(self._follow, follower)),
                self._again_and_again("the provider", self._look_for_provider),
            ]
            if self._deep:
                what = "Harvesters and workload clusters"
                works.append(self._again_and_again(what, self._look_deep, self._look_again))
            tasks = [asyncio.create_task(work) for work in works]
            try:
                yield url
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _again_and_again(
        self, what: str, work: Callable[[], Awaitable[None]], soon: asyncio.Event | None = None
    ) -> None:
        """Work until cancelled, and again at once after `soon`.

        What fails is shown and tried again: a page that is stuck must not look live.
        """
        soon = soon or asyncio.Event()
        while True:
            try:
                await work()
            except Exception as error:
                text = f"{what}: {type(error).__name__}: {error}"
                if text != self._broken.get(what):
                    log.exception("the page cannot show %s", what)
                self._broken[what] = text
                self._send()
            with suppress(TimeoutError):
                async with asyncio.timeout(_DEEP_SECONDS):
                    await soon.wait()

    async def _follow(self, follower: Follower) -> None:
        async for objects in follower.changes():
            self._objects, self._away = objects, follower.away
            self._publish("clusters")

            connections = {key_of(obj): _connection_of(obj) for obj in objects.harvester_clusters}
            if connections != self._connections:
                self._connections = connections
                self._look_again.set()

    async def _look_for_provider(self) -> None:
        """Read whether a provider is at work. Its Lease is not watched: it changes all the time."""
        self._provider = await read_provider(self._client, datetime.now(UTC))
        self._publish("the provider")

    async def _look_deep(self) -> None:
        """Ask Harvesters and workload clusters: they have no one watch for all that is shown."""
        await self._feed.newer("")
        self._look_again.clear()
        overview = self._overview()
        infrastructure = {Key(cluster.namespace, cluster.infrastructure) for cluster in overview.clusters}
        clusters = [obj for obj in self._objects.harvester_clusters if key_of(obj) in infrastructure]
        working = [cluster.key for cluster in overview.clusters if any(machine.node for machine in cluster.machines)]
        self._harvesters, self._nodes = await asyncio.gather(
            read_harvesters(self._client, clusters), read_nodes(self._client, working)
        )
        self._publish("Harvesters and workload clusters")

    def _overview(self) -> Overview:
        whole = overview_of(self._objects, datetime.now(UTC))
        clusters = tuple(cluster for cluster in whole.clusters if not self._keys or cluster.key in self._keys)
        return with_causes(Overview(whole.server, clusters, unseen=whole.unseen, provider=self._provider))

    def _publish(self, what: str) -> None:
        """Show the state; `what` has just been done."""
        overview = with_details(self._overview(), self._harvesters.by_identity, self._nodes)
        hidden = (*overview.unseen, *_without_consequences(self._harvesters.unseen, overview.clusters))
        events = events_of(self._objects.events, overview.clusters) if self._keys else self._objects.events
        replacements = replacements_of(self._objects)
        self._state = content_of(replace(overview, unseen=hidden), events, replacements)
        self._broken.pop(what, None)
        self._send()

    def _send(self) -> None:
        content = {**self._state, "unseen": [*self._broken.values(), *self._state["unseen"]]}
        content["fault"] = self._fault()
        self._feed.publish(json.dumps(content, separators=(",", ":")))

    def _fault(self) -> str:
        """What the page shows instead of `live`."""
        if self._broken:
            return "not up to date"
        if self._away:
            return "management cluster not readable"
        return "provider is silent" if self._provider and self._provider.silent else ""


def _connection_of(harvester_cluster: Obj) -> Any:
    condition = condition_of(harvester_cluster, ConditionType.HARVESTER_CONNECTION_READY)
    return condition.get("status"), condition.get("reason")


def _without_consequences(unseen: Iterable[Unseen], clusters: Iterable[Cluster]) -> list[str]:
    """Return what could not be read of Harvesters, but for those whose clusters report the current cause."""
    reported = {
        cluster.identity
        for cluster in clusters
        if any(problem.reason in _NO_CONNECTION for problem in cluster.problems)
    }
    return [str(each) for each in unseen if each.what.rpartition(" ")[2] not in reported]
