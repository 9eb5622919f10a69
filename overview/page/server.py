"""Serves the live page: one static file, and a stream of events with the whole state.

The page shows what the user who started it may read, so it is for that user alone: its address has a random token,
which other users of the machine do not know, it listens on loopback, and requests that name another host are refused,
lest a web site that resolves its name to 127.0.0.1 reads along.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from caphv.api.object import Key, Obj, key_of
from caphv.runtime.client import ApiClient
from overview.assembly import overview_of
from overview.causes import with_causes
from overview.details import with_details
from overview.follow import Follower
from overview.harvester import Harvesters, read_harvesters, read_nodes
from overview.model import Cluster, Overview, Provider, as_json
from overview.objects import ManagementObjects, Unseen
from overview.provider import read_provider

log = logging.getLogger(__name__)

_PAGE = Path(__file__).with_name("page.html")
_DEEP_SECONDS = 15.0
_HEARTBEAT_SECONDS = 15.0
_EVENTS = 30
# Browsers open one for each tab. Each costs a file descriptor and a copy of the state.
_MOST_STREAMS = 32


@dataclass(slots=True)
class Feed:
    """The newest state, and who waits for a newer one."""

    content: str = ""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, content: str) -> None:
        """Hand out a state, unless it equals the previous one."""
        if content != self.content:
            self.content = content
            self._changed.set()
            self._changed = asyncio.Event()

    async def newer(self, than: str) -> str:
        """The newest state, once there is another one."""
        while self.content in (than, ""):
            await self._changed.wait()
        return self.content


class LivePage:
    """Follows clusters and serves the page.

    :param keys: limits it to some clusters
    :param deep: asks Harvesters and workload clusters, too
    :param token: the secret part of the page's address; a new one by default
    """

    def __init__(self, client: ApiClient, namespace: str, keys: frozenset[Key], *, deep: bool, token: str = "") -> None:
        self._token = token or secrets.token_urlsafe(24)
        self._streams = 0
        self._client = client
        self._namespace, self._keys, self._deep = namespace, keys, deep
        self._feed = Feed()
        self._objects = ManagementObjects()
        self._harvesters = Harvesters()
        self._nodes: dict[Key, list[Obj] | Unseen] = {}
        self._state = _content(Overview(client.server), [])
        self._provider: Provider | None = None
        self._away = False
        self._broken: dict[str, str] = {}
        """What the page could not do last, and why: it shows this next to a state that is older."""
        self._page = ""
        self._nonce = secrets.token_urlsafe(16)
        self._hosts: frozenset[str] = frozenset()

    @asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[str]:
        """Serve for as long as the block lasts; yields the URL. Raises as `Follower` does, and `OSError`."""
        self._hosts = _names_of(host)
        self._page = _PAGE.read_text(encoding="utf-8").replace("@NONCE@", self._nonce)
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/{token}/", self._index)
        app.router.add_get("/{token}/events", self._stream)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        async with Follower(self._client, self._namespace, events=True) as follower:
            await runner.setup()
            try:
                site = web.TCPSite(runner, host, port)
                await site.start()
                works: dict[str, Callable[[], Awaitable[None]]] = {
                    "clusters": partial(self._follow, follower),
                    "the provider": self._look_for_provider,
                }
                if self._deep:
                    works["Harvesters and workload clusters"] = self._look_deep
                tasks = [asyncio.create_task(self._again_and_again(*each)) for each in works.items()]
                try:
                    bound = runner.addresses[0][1]
                    yield f"http://{f'[{host}]' if ':' in host else host}:{bound}/{self._token}/"
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                await runner.cleanup()

    async def _again_and_again(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Work until cancelled. What fails is shown and tried again: a page that is stuck must not look live."""
        while True:
            try:
                await work()
            except Exception as error:
                text = f"{what}: {type(error).__name__}: {error}"
                if text != self._broken.get(what):
                    log.exception("the page cannot show %s", what)
                self._broken[what] = text
                self._send()
            await asyncio.sleep(_DEEP_SECONDS)

    async def _follow(self, follower: Follower) -> None:
        async for objects in follower.changes():
            self._objects, self._away = objects, follower.away
            self._publish("clusters")

    async def _look_for_provider(self) -> None:
        """Read whether a provider is at work; what it says is not watched, because a Lease changes all the time."""
        self._provider = await read_provider(self._client, datetime.now(UTC))
        self._publish("the provider")

    async def _look_deep(self) -> None:
        """Ask Harvesters and workload clusters: they have no one watch for all that is shown."""
        await self._feed.newer("")
        overview = self._overview()
        own = {Key(cluster.namespace, cluster.infrastructure) for cluster in overview.clusters}
        clusters = [obj for obj in self._objects.harvester_clusters if key_of(obj) in own]
        working = [cluster.key for cluster in overview.clusters if any(each.node for each in cluster.machines)]
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
        found = with_details(self._overview(), self._harvesters.by_identity, self._nodes)
        hidden = (*found.unseen, *map(str, self._harvesters.unseen))
        events = events_of(self._objects.events, found.clusters) if self._keys else self._objects.events
        self._state = _content(replace(found, unseen=hidden), latest_events(events))
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

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        named = (request.url.host or "").removesuffix(".").lower()
        if not (_is_loopback(named) or named in self._hosts or (self._hosts and _is_address(named))):
            raise web.HTTPForbidden(text="This page does not have this host name.")

        sent = request.path.split("/")[1]
        if not secrets.compare_digest(sent.encode(), self._token.encode()):
            raise web.HTTPNotFound(text="The address of the page is in the output of the command that serves it.")

        response: web.StreamResponse = await handler(request)
        return response

    async def _index(self, _request: web.Request) -> web.Response:
        policy = (
            f"default-src 'none'; style-src 'nonce-{self._nonce}'; script-src 'nonce-{self._nonce}'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        return web.Response(text=self._page, content_type="text/html", headers=headers)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self._streams >= _MOST_STREAMS:
            raise web.HTTPServiceUnavailable(text="Too many pages are open: close some.", headers={"Retry-After": "15"})

        self._streams += 1
        try:
            return await self._send_states(request)
        finally:
            self._streams -= 1

    async def _send_states(self, request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        sent = ""

        with suppress(ConnectionError):
            while True:
                try:
                    async with asyncio.timeout(_HEARTBEAT_SECONDS):
                        sent = await self._feed.newer(sent)
                    await response.write(f"data: {sent}\n\n".encode())
                except TimeoutError:
                    await response.write(b": still here\n\n")
        return response


def _content(found: Overview, events: list[dict[str, Any]]) -> dict[str, Any]:
    return {**as_json(found), "unseen": list(dict.fromkeys(found.unseen)), "events": events}


def events_of(events: Iterable[Obj], clusters: Iterable[Cluster]) -> list[Obj]:
    """Return the Events of some clusters and their machines."""
    about: set[tuple[str, Key]] = set()
    for cluster in clusters:
        about |= {("Cluster", cluster.key), ("HarvesterCluster", Key(cluster.namespace, cluster.infrastructure))}
        about |= {("HarvesterMachine", Key(cluster.namespace, each.infrastructure)) for each in cluster.machines}
    return [event for event in events if _about(event) in about]


def _about(event: Obj) -> tuple[str, Key]:
    about = event.get("involvedObject") or {}
    return str(about.get("kind")), Key(str(about.get("namespace") or ""), str(about.get("name") or ""))


def latest_events(events: Iterable[Obj]) -> list[dict[str, Any]]:
    """Return the last Events, newest first, in the form of the page."""
    rows: list[dict[str, Any]] = []
    for event in events:
        series, about = event.get("series") or {}, event.get("involvedObject") or {}
        times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
        time = next((str(each) for each in times if each), str(event["metadata"].get("creationTimestamp") or ""))
        rows.append(
            {
                "time": time,
                "type": str(event.get("type") or ""),
                "reason": str(event.get("reason") or ""),
                "namespace": str(about.get("namespace") or ""),
                "object": f"{about.get('kind')}/{about.get('name')}",
                "message": str(event.get("message") or ""),
                "count": int(series.get("count") or event.get("count") or 1),
            }
        )
    return sorted(rows, key=lambda row: row["time"], reverse=True)[:_EVENTS]


def _names_of(host: str) -> frozenset[str]:
    """Return the names under which browsers may reach this machine if it listens on an address that is not loopback.

    Addresses are not among them: a web site can make its name lead here, but not its address.
    """
    if _is_loopback(host):
        return frozenset()
    return frozenset({host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()})


def _is_loopback(host: str) -> bool:
    return host.removesuffix(".") == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
