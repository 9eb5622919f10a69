"""A Harvester in memory that knows the rights of accounts, for sessions in virtual time."""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from caphv.api.object import Key, Obj, Resource
from caphv.runtime.budget import MemoryBudget, TimeBudget
from caphv.runtime.cache import Change
from caphv.runtime.errors import ApiError, Forbidden, NotFound, Unauthorized, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler.harvester.session import Session, SessionEvents
from reconciler.harvester.sessions import Sessions
from tests.support.virtualtime import settle

Event = tuple[str, Obj]


@dataclass(frozen=True)
class Request:
    """What an account asked, and when; a review is `review VERB`."""

    time: float
    token: str
    verb: str
    plural: str


class MemoryHarvester:
    """`denied` holds (token, plural) that may not be listed, `unwritable` those that may not be patched.

    Unknown tokens are 401, `missing` kinds 404. While it is `away`, no request is answered.
    """

    def __init__(self, url: str = "https://harvester:6443", uid: str = "uid-1") -> None:
        self.url, self.uid = url, uid
        self.tokens = {"a", "b", "c"}
        self.denied: set[tuple[str, str]] = set()
        self.unwritable: set[tuple[str, str]] = set()
        self.missing: set[str] = set()
        self.away = False
        self.hidden = False
        """Whether no account may read the uid."""
        self.held: dict[str, asyncio.Event] = {}
        """Verbs that are answered only once the event is set."""
        self.objects: dict[str, list[Obj]] = {}
        self.requests: list[Request] = []
        self.clients: dict[str, AccountClient] = {}
        self.queues: dict[tuple[str, str], list[asyncio.Queue[Event | None]]] = defaultdict(list)

    def asked(self, verb: str, plural: str = "", token: str = "") -> list[float]:
        """When something was asked."""
        return [
            each.time
            for each in self.requests
            if each.verb == verb and plural in ("", each.plural) and token in ("", each.token)
        ]

    def readers(self, plural: str) -> list[str]:
        """Tokens that watch a collection now."""
        return sorted(token for (token, kind), queues in self.queues.items() if kind == plural and queues)

    def watches(self) -> int:
        """How many watches are open."""
        return sum(map(len, self.queues.values()))

    def end_watches(self, plural: str = "") -> None:
        """End the watches of a collection, or all."""
        for (_, kind), queues in self.queues.items():
            if plural in ("", kind):
                for queue in queues:
                    queue.put_nowait(None)

    def change(self, plural: str, obj: Obj, event: str = "MODIFIED") -> None:
        """Have the watches of a collection tell of an object."""
        for (_, kind), queues in self.queues.items():
            if kind == plural:
                for queue in queues:
                    queue.put_nowait((event, copy.deepcopy(obj)))

    def listed(self, plural: str) -> list[Obj]:
        """The objects of a collection, one unless a test has set others."""
        metadata = {"name": f"{plural}-1", "namespace": "vms", "resourceVersion": "5", "uid": "u"}
        return copy.deepcopy(self.objects.get(plural, [{"metadata": metadata, "spec": {}}]))


class AccountClient:
    """Stands for the `ApiClient` of an account."""

    name = "harvester"

    def __init__(self, server: MemoryHarvester, token: str, on_response: Callable[[int, float | None], None]) -> None:
        self.server = server.url
        self.budget = MemoryBudget(1 << 30, server.url)
        self.time = TimeBudget()
        self.on_limit: Callable[[], None] = lambda: None
        self.closed = False
        self._harvester, self._token, self._on_response = server, token, on_response

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Obj:
        await self._ask("get", resource.plural)
        if self._harvester.hidden:
            raise self._error(Forbidden(403, "Forbidden", f"cannot get {name}"))
        self._on_response(200, 0.1)
        return {"metadata": {"name": name, "namespace": namespace, "uid": self._harvester.uid}}

    async def list(self, resource: Resource, namespace: str = "", **_: Any) -> Obj:
        await self._ask("list", resource.plural)
        self._on_response(200, 0.1)
        return {"metadata": {"resourceVersion": "10"}, "items": self._harvester.listed(resource.plural)}

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        on_open: Callable[[], None],
        **_: Any,
    ) -> AsyncGenerator[Event, None]:
        await self._ask("watch", resource.plural)
        self._on_response(200, None)
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        queues = self._harvester.queues[self._token, resource.plural]
        queues.append(queue)
        try:
            on_open()
            while True:
                event = await queue.get()
                if event is None:
                    if self.closed:
                        raise Unreachable("the client has been closed")
                    return
                yield event
        finally:
            queues.remove(queue)

    async def request(self, method: str, path: str, *, body: Obj, **_: Any) -> Obj:
        assert method == "POST", path
        attributes = body["spec"]["resourceAttributes"]
        plural, verb = attributes["resource"], attributes["verb"]
        await self._ask(f"review {verb}", plural)
        self._on_response(201, 0.1)
        denied = self._harvester.unwritable if verb == "patch" else self._harvester.denied
        return {"status": {"allowed": (self._token, plural) not in denied}}

    async def close(self) -> None:
        self.closed = True
        for (token, _), queues in self._harvester.queues.items():
            for queue in queues if token == self._token else ():
                queue.put_nowait(None)

    async def _ask(self, verb: str, plural: str) -> None:
        server = self._harvester
        server.requests.append(Request(asyncio.get_running_loop().time(), self._token, verb, plural))
        if verb in server.held:
            await server.held[verb].wait()
        if self.closed:
            raise Unreachable("the client has been closed")
        if server.away:
            self._on_response(0, None)
            raise Unreachable(f"{server.url}: no answer")
        if self._token not in server.tokens:
            raise self._error(Unauthorized(401, "Unauthorized", "Unauthorized"))
        if plural in server.missing and verb in ("list", "watch"):
            raise self._error(NotFound(404, "NotFound", f"no {plural}"))
        if (self._token, plural) in server.denied and verb in ("list", "watch"):
            raise self._error(Forbidden(403, "Forbidden", f"cannot {verb} {plural}"))

    def _error(self, error: ApiError) -> ApiError:
        self._on_response(error.status, 0.1)
        return error


class MemorySessions:
    """Sessions of clusters `ns/a`, `ns/b`, …, whose credentials are the tokens of these names, and what they report."""

    def __init__(self, servers: Iterable[MemoryHarvester], monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.servers = {server.url: server for server in servers}
        self.sessions = Sessions(**options)
        self.changes: list[tuple[set[str], str]] = []
        self.health: list[str] = []
        self.caches: list[str] = []
        self.limited: list[str] = []
        self.filled: list[tuple[str, str]] = []
        self.sessions.connect(
            SessionEvents(
                self._changed,
                lambda session: self.health.append(session.identity),
                lambda session: self.caches.append(session.identity),
                lambda session: self.limited.append(session.identity),
                lambda session, namespace: self.filled.append((session.identity, namespace)),
            )
        )
        monkeypatch.setattr(Kubeconfig, "client", self._client_of())

    def _client_of(self) -> Callable[..., AccountClient]:
        servers = self.servers

        def client(
            access: Kubeconfig, _check: object = None, *, on_response: Callable[[int, float | None], None], **_: Any
        ) -> AccountClient:
            server = servers[access.server]
            made = server.clients[access.token] = AccountClient(server, access.token, on_response)
            return made

        return client

    def _changed(self, sessions: Mapping[Session, None], change: Change) -> None:
        self.changes.append(({session.identity for session in sessions}, change.resource.plural))

    async def open(self, server: MemoryHarvester, token: str, namespace: str = "vms", **options: Any) -> Session:
        """Assign a session to the cluster of the token's name, and let it do what takes no time."""
        access = Kubeconfig(server=server.url, token=token, **options)
        session = await self.sessions.assign(Key("ns", token), access, namespace, identity=token)
        session.watch_namespace(namespace)
        await settle(100)
        return session


@asynccontextmanager
async def sessions_on(
    *servers: MemoryHarvester, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> AsyncIterator[MemorySessions]:
    """Lend sessions on these Harvesters; none of their watches stays open."""
    it = MemorySessions(servers, monkeypatch, **options)
    try:
        yield it
    finally:
        await it.sessions.close()
    assert sum(server.watches() for server in servers) == 0
