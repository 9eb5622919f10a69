"""What accounts on one Harvester share, and what they must not: against a small API server that knows their rights."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping

import orjson
import pytest
from aiohttp import web

from caphv.api.object import Key, Obj
from caphv.runtime.cache import Change
from caphv.runtime.errors import Forbidden, Unauthorized
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler.harvester import session as sessions_module
from reconciler.harvester.session import Session, SessionEvents
from reconciler.harvester.sessions import Sessions
from tests.support.waiting import until

pytestmark = pytest.mark.unit


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
        self.sessions.connect(SessionEvents(self._changed, self._health, self._caches, self._limited))

    def _changed(self, sessions: Mapping[Session, None], change: Change) -> None:
        self.changes.append(({session.identity for session in sessions}, change.resource.plural))

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


async def test_accounts_on_one_harvester_read_each_collection_once() -> None:
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open(server, "a")
        await until(lambda: filled(first))
        others = [await it.open(server, token) for token in "bc"]
        await until(lambda: all(map(filled, others)))
        assert set(server.lists.values()) == {1}
        assert all(other.pools is first.pools for other in others)
        assert {frozenset(sessions) for sessions, plural in it.changes if plural == "ippools"} == {
            frozenset("a"),
            frozenset("b"),
            frozenset("c"),
        }


async def test_each_limit_is_reported_once() -> None:
    server = Server()
    async with serving(server), opened() as it:
        session = await it.open(server, "a")
        for limit in ("first", "first", "second", "first"):
            session.client.reached(limit)
        assert it.limited == ["a", "a"]


async def test_account_that_may_not_list_a_collection_does_not_see_what_others_read() -> None:
    server = Server()
    server.denied = {("b", "virtualmachineimages"), ("b", "virtualmachines")}
    async with serving(server), opened() as it:
        first = await it.open(server, "a")
        await until(lambda: filled(first))
        second = await it.open(server, "b")
        await until(lambda: second.images.last_error and second.watch_namespace("vms").vms.last_error)
        assert isinstance(second.images.last_error, Forbidden)
        assert len(second.images.store) == len(second.watch_namespace("vms").vms.store) == 0
        assert "cannot list virtualmachineimages" in second.sync_error
        assert second.pools is first.pools
        assert second.error is None


async def test_refused_watch_of_a_filled_cache_is_a_refusal_that_ends_with_the_right() -> None:
    server = Server()
    async with serving(server), opened() as it:
        session = await it.open(server, "a")
        namespace = session.watch_namespace("vms")
        await until(lambda: filled(session) and namespace.current and session.pools.current)
        assert session.refusal(namespace, session.pools) == ""
        before = len(it.reported)
        server.denied = {("a", "virtualmachines"), ("a", "ippools"), ("a", "services")}
        server.end_watches()
        await until(lambda: "ippools" in session.refusal(namespace, session.pools))
        await until(lambda: len(it.reported) > before)
        assert filled(session)
        # What is not read now, and was, does not count unless it is asked for.
        await until(lambda: isinstance(session.services.last_error, Forbidden))
        assert session.refusal(namespace, session.pools) == "cannot list virtualmachines; cannot list ippools"
        server.denied = set()
        await until(lambda: session.refusal(namespace, session.pools, session.services) == "")


async def test_refusal_waits_for_all_first_lists() -> None:
    server = Server()
    server.denied = {("a", "virtualmachines")}
    server.held = {"persistentvolumeclaims": asyncio.Event()}
    async with serving(server), opened() as it:
        session = await it.open(server, "a")
        namespace = session.watch_namespace("vms")
        await until(lambda: namespace.vms.last_error)
        assert session.refusal(namespace) == ""
        server.held["persistentvolumeclaims"].set()
        await until(lambda: session.refusal(namespace) == "cannot list virtualmachines")


async def test_refusal_of_the_account_that_reads_is_none_of_another_that_shares_the_cache() -> None:
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open(server, "a")
        await until(lambda: filled(first))
        server.denied = {("a", "ippools")}
        server.end_watches("ippools")
        await until(lambda: isinstance(first.pools.last_error, Forbidden))
        second = await it.open(server, "b")
        await until(lambda: second.pools is first.pools and filled(second))
        # Before the second account has had its turn.
        assert isinstance(second.pools.last_error, Forbidden)
        assert second.refusal(second.watch_namespace("vms"), second.pools) == ""
        assert first.refusal(first.watch_namespace("vms"), first.pools) == "cannot list ippools"


async def test_verdict_waits_for_the_answers_about_all_collections() -> None:
    server = Server()
    server.missing = {"ippools", "virtualmachineimages"}
    async with serving(server), opened() as it:
        first = await it.open(server, "a")
        await until(lambda: first.settled)
        says = first.missing_kind
    first_asked = "ippools" if says.startswith("ippools") else "virtualmachineimages"
    server.held = {first_asked: asyncio.Event()}
    async with serving(server), opened() as it:
        again = await it.open(server, "b")
        await until(lambda: again.missing_kind)
        assert again.missing_kind != says, "the other kind was refused first"
        assert not again.settled
        server.held[first_asked].set()
        await until(lambda: again.settled)
        assert again.missing_kind == says


def announcing() -> int:
    """Tasks that wait until caches are filled."""
    return sum("_announce" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_namespace_that_is_not_needed_any_more_leaves_no_task_behind() -> None:
    server = Server()
    server.denied = {("a", "virtualmachines")}
    async with serving(server), opened() as it:
        session = await it.open(server, "a")
        first = session.watch_namespace("vms")
        await until(lambda: session.synced and first.vms.last_error and first.load_balancers.synced)
        before = announcing()
        other = session.watch_namespace("other")
        await until(lambda: other.vms.last_error and other.load_balancers.synced)
        assert announcing() > before
        await session.unwatch_namespace("other")
        await until(lambda: announcing() <= before, seconds=10)


async def test_next_account_reads_when_the_reader_loses_the_right() -> None:
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open(server, "a")
        await until(lambda: filled(first))
        second = await it.open(server, "b")
        await until(lambda: filled(second))
        pools = second.pools
        server.denied = {("a", "ippools")}
        server.end_watches()
        await until(lambda: server.readers("ippools") == ["b"])
        assert second.pools is pools
        assert len(pools.store) == 1
        assert first.pools is not pools, "it must not use what others may read"
        await until(lambda: first.pools.last_error)
        assert len(first.pools.store) == 0


async def test_right_that_comes_back_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "_REVIEW_AGAIN", 0.1)
    server = Server()
    server.denied = {("b", "nodes")}
    async with serving(server), opened() as it:
        first = await it.open(server, "a")
        await until(lambda: filled(first))
        second = await it.open(server, "b")
        await until(lambda: second.hosts.last_error)
        server.denied = set()
        await until(lambda: second.hosts is first.hosts)


async def test_right_that_ends_without_a_request_is_noticed_by_a_review(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "_REVIEW_SECONDS", 0.2)
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open(server, "a")
        await until(lambda: filled(first))
        second = await it.open(server, "b")
        await until(lambda: filled(second))
        server.denied = {("b", "ippools")}
        await until(lambda: second.pools is not first.pools)
        assert len(second.pools.store) == 0


async def test_change_between_two_caches_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was deleted while an account left a cache and joined another is reported by neither of them."""
    monkeypatch.setattr(sessions_module, "_REVIEW_AGAIN", 0.1)
    monkeypatch.setattr(sessions_module, "_REVIEW_SECONDS", 0.2)
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open(server, "a")
        await until(lambda: filled(first))
        second = await it.open(server, "b")
        await until(lambda: filled(second))
        await asyncio.sleep(0.1)
        it.requeued.clear()
        server.reviewed_as_denied = {"ippools"}  # its list works: it fills a cache of its own
        await until(lambda: second.pools is not first.pools)
        await until(lambda: ("b", True) in it.requeued)
        it.requeued.clear()
        server.reviewed_as_denied = set()
        await until(lambda: second.pools is first.pools)
        await until(lambda: ("b", True) in it.requeued)


async def test_reader_that_closes_hands_its_caches_to_the_next() -> None:
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open(server, "a")
        await until(lambda: filled(first))
        second = await it.open(server, "b")
        await until(lambda: filled(second))
        await it.sessions.release(Key("ns", "a"))
        await until(lambda: server.readers("ippools") == server.readers("virtualmachines") == ["b"])
        assert server.lists["ippools"] == 1, "it resumes where the other one stood"
        await it.sessions.release(Key("ns", "b"))
        await until(lambda: not +server.open)


async def test_account_with_rejected_credentials_is_unauthorized_and_the_others_work_on() -> None:
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open(server, "a")
        await until(lambda: filled(first))
        second = await it.open(server, "b")
        await until(lambda: filled(second))
        server.tokens = {"b"}
        server.end_watches()
        await until(lambda: isinstance(first.error, Unauthorized))
        await until(lambda: server.readers("ippools") == ["b"])
        assert second.error is None


async def test_accounts_hear_that_a_watch_works_again_that_broke_alone() -> None:
    """What waits for current caches would otherwise wait until its next regular requeue."""
    server = Server()
    async with serving(server), opened() as it:
        sessions = [await it.open(server, token) for token in "ab"]
        await until(lambda: all(filled(session) and is_current(session) for session in sessions))
        for _ in range(2):
            server.broken = {"ippools"}
            server.end_watches("ippools")
            await until(lambda: all(session.pools.last_error for session in sessions))
            it.reported.clear()
            server.broken.clear()
            await until(lambda: all(map(is_current, sessions)))
            await asyncio.sleep(0)
            assert {("a", True), ("b", True)} <= set(it.reported)


@pytest.mark.parametrize("different", ["url", "ca", "proxy", "uid", "insecure"])
async def test_servers_that_may_be_different_share_nothing(different: str) -> None:
    server, other = Server(), Server()
    if different == "uid":
        other.uid = "uid-2"
    async with serving(server, other), opened() as it:
        options = {"insecure": True} if different == "insecure" else {}
        first = await it.open(server, "a", **options)
        await until(lambda: filled(first))
        if different == "url":
            second = await it.open(other, "b")
        elif different == "uid":
            server.uid = "uid-2"
            second = await it.open(server, "b")
        elif different == "ca":
            second = await it.open(server, "b", tls_server_name="other")
        elif different == "proxy":
            second = await it.open(server, "b", proxy_url=server.url)
            await asyncio.sleep(0.2)
        else:
            second = await it.open(server, "b", insecure=True)
        if different != "proxy":
            await until(lambda: filled(second))
        assert second.pools is not first.pools
        assert second.watch_namespace("vms").vms is not first.watch_namespace("vms").vms


async def test_server_that_claims_the_uid_of_another_decides_nothing_there() -> None:
    honest, liar = Server("uid-1"), Server("uid-1")
    async with serving(honest, liar), opened() as it:
        victim, attacker = await it.open(honest, "a"), await it.open(liar, "b")
        await until(lambda: filled(victim) and filled(attacker))
        lie: Obj = {"metadata": {"name": "ippools-1", "resourceVersion": "999", "uid": "u"}, "spec": {}}
        attacker.pools.observe(lie)
        (pool,) = victim.pools.store
        assert pool["metadata"]["resourceVersion"] == "5"
        assert attacker.allocator.group is not victim.allocator.group, "nor does it hold the victim's lock"


async def test_other_credentials_know_which_writes_have_no_answer() -> None:
    server, cluster = Server(), Key("ns", "c")
    async with serving(server), opened() as it:
        sessions = []
        for token in ("a", "b"):
            access = Kubeconfig(server=server.url, token=token)
            session = await it.sessions.assign(cluster, access, "vms", identity="a", harvester_uid="uid-1")
            await until(lambda session=session: filled(session))  # type: ignore[misc]
            session.allocator.group.unanswered[("pool", "vms/one")] = 5
            sessions.append(session)
            await it.sessions.release(cluster)
        first, second = sessions
        assert first.allocator.group is second.allocator.group


async def test_address_of_a_machine_is_in_use_on_its_harvester_only() -> None:
    server, other = Server(), Server()
    machines = {"10.0.0.5": [Key("ns", "a"), Key("ns", "without a session")]}
    async with serving(server, other), opened(lambda address: machines.get(address, [])) as it:
        sessions = [await it.open(server, "a"), await it.open(server, "b"), await it.open(other, "c")]
        await until(lambda: all(map(filled, sessions)))
        assert [session.address_in_use("10.0.0.5") for session in sessions] == [True, True, False]
        assert not any(session.address_in_use("10.0.0.6") for session in sessions)


async def test_address_of_a_vm_or_load_balancer_is_in_use() -> None:
    server = Server()
    async with serving(server), opened() as it:
        session = await it.open(server, "a")
        await until(lambda: filled(session))
        namespace = session.watch_namespace("vms")
        metadata = {"namespace": "vms", "name": "one", "uid": "u", "resourceVersion": "999"}
        nics = [{"name": "nic-1", "ipAddress": "10.0.0.5"}, {"interfaceName": "cni0", "ipAddress": "10.0.0.6"}]
        namespace.instances.observe({"metadata": metadata, "status": {"interfaces": nics}})
        namespace.load_balancers.observe({"metadata": metadata, "status": {"address": "10.0.0.7"}})
        session.services.observe({"metadata": metadata, "spec": {"loadBalancerIP": "10.0.0.8"}})
        in_use = [number for number in range(4, 10) if session.address_in_use(f"10.0.0.{number}")]
        assert in_use == [5, 7, 8]


async def test_cluster_gets_its_session_before_its_phases_have_run() -> None:
    server = Server()
    async with serving(server), opened() as it:
        access = Kubeconfig(server=server.url, token="a")
        session = await it.sessions.assign(Key("ns", "c"), access, "vms", identity="a", harvester_uid="uid-1")
        await until(lambda: session.synced)
        assert it.sessions.of(Key("ns", "c")) is session
        await it.sessions.assign(Key("ns", "c"), access, "vms", identity="a", harvester_uid="uid-2")
        assert it.sessions.of(Key("ns", "c")) is None, "another Harvester than its own"
