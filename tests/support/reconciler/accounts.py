"""A small API server that knows the rights of accounts, and sessions of accounts on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping

import orjson
from aiohttp import web

from caphv.api.object import Key
from caphv.runtime.cache import Change
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler.harvester.session import Session, SessionEvents
from reconciler.harvester.sessions import Sessions
from tests.support.waiting import until


class Server:
    """Lists one object of each kind. `denied` holds (token, plural) that are answered 403; unknown tokens are 401."""

    def __init__(self, uid: str = "uid-1") -> None:
        self.uid = uid
        self.denied: set[tuple[str, str]] = set()
        self.broken: set[str] = set()
        self.missing: set[str] = set()
        self.held: dict[str, asyncio.Event] = {}
        self.reviewed_as_denied: set[str] = set()
        self.tokens = {"a", "b", "c"}
        self.lists: Counter[str] = Counter()
        self.open: Counter[tuple[str, str]] = Counter()
        self.reviews = 0
        self.url = ""
        self._end: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def end_watches(self, plural: str = "") -> None:
        """End the watches of a collection, or all."""
        for name in [plural] if plural else list(self._end):
            self._end.pop(name).set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return web.json_response({"message": "Unauthorized"}, status=401)
        if request.path.endswith("/namespaces/kube-system"):
            return web.json_response({"metadata": {"name": "kube-system", "uid": self.uid}})
        if request.method == "POST":
            self.reviews += 1
            plural = orjson.loads(await request.read())["spec"]["resourceAttributes"]["resource"]
            return web.json_response({"status": {"allowed": self._allowed(token, plural)}})
        plural = request.path.rpartition("/")[2]
        if plural in self.held:
            await self.held[plural].wait()
        if plural in self.missing:
            return web.json_response({"message": "the server could not find the requested resource"}, status=404)
        if (token, plural) in self.denied:
            return web.json_response(_forbidden(plural), status=403)
        if request.query.get("watch"):
            return await self._watch(request, token, plural)
        self.lists[plural] += 1
        metadata = {"name": f"{plural}-1", "namespace": "vms", "resourceVersion": "5", "uid": "u"}
        return web.json_response({"metadata": {"resourceVersion": "10"}, "items": [{"metadata": metadata, "spec": {}}]})

    def _allowed(self, token: str, plural: str) -> bool:
        return (token, plural) not in self.denied and plural not in self.reviewed_as_denied

    async def _watch(self, request: web.Request, token: str, plural: str) -> web.StreamResponse:
        if plural in self.broken:
            return web.json_response({"message": "storage is (re)initializing"}, status=503)
        response = web.StreamResponse()
        await response.prepare(request)
        self.open[token, plural] += 1
        try:
            await self._end[plural].wait()
        finally:
            self.open[token, plural] -= 1
        return response

    def readers(self, plural: str) -> list[str]:
        """Tokens that watch a collection now."""
        return sorted(token for (token, kind), count in self.open.items() if kind == plural and count)


def _forbidden(plural: str) -> dict[str, str]:
    return {"kind": "Status", "reason": "Forbidden", "message": f"cannot list {plural}"}


@contextlib.asynccontextmanager
async def serving(*servers: Server) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for server in servers:
            runner = web.ServerRunner(web.Server(server.handle, handler_cancellation=True), shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield


class Opened:
    """Sessions of clusters `a`, `b`, …, whose credentials are the tokens of these names."""

    def __init__(self, clusters_with: Callable[[str], list[Key]]) -> None:
        self.sessions = Sessions(clusters_with=clusters_with)
        self.changes: list[tuple[set[str], str]] = []
        self.reported: list[tuple[str, bool]] = []
        self.requeued: list[tuple[str, bool]] = []
        self.limited: list[str] = []
        self.sessions.connect(SessionEvents(self._changed, self._health, self._caches, self._limited, self._filled))

    def _changed(self, sessions: Mapping[Session, None], change: Change) -> None:
        self.changes.append(({session.identity for session in sessions}, change.resource.plural))

    def _filled(self, session: Session, _namespace: str) -> None:
        self.requeued.append((session.identity, filled(session)))

    def _health(self, session: Session) -> None:
        self.requeued.append((session.identity, filled(session)))

    def _caches(self, session: Session) -> None:
        self.reported.append((session.identity, is_current(session)))

    def _limited(self, session: Session) -> None:
        self.limited.append(session.identity)

    async def open(self, server: Server, token: str, namespace: str = "vms", **options: str | bool) -> Session:
        access = Kubeconfig(server=server.url, token=token, **options)  # type: ignore[arg-type]
        session = await self.sessions.assign(Key("ns", token), access, namespace, identity=token)
        session.watch_namespace(namespace)
        return session

    async def open_filled(self, server: Server, token: str) -> Session:
        """Open a session, and wait for its caches."""
        session = await self.open(server, token)
        await until(lambda: filled(session))
        return session


@contextlib.asynccontextmanager
async def opened(clusters_with: Callable[[str], list[Key]] = lambda _: []) -> AsyncIterator[Opened]:
    it = Opened(clusters_with)
    try:
        yield it
    finally:
        await it.sessions.close()


def is_current(session: Session) -> bool:
    """Whether the caches of which a watch breaks here are up to date."""
    return session.pools.current and session.services.current


def filled(session: Session) -> bool:
    return session.synced and session.watch_namespace("vms").synced
