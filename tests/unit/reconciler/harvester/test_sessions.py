"""What accounts on one Harvester share, and what they must not: against a small API server that knows their rights."""

from __future__ import annotations

import asyncio

import pytest

from caphv.api.object import NAMESPACES, Key, Obj
from caphv.runtime.errors import Forbidden, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler.harvester import session as sessions_module
from reconciler.harvester.poolwriter import WriteKey
from tests.support.reconciler.accounts import Server, filled, is_current, opened, serving
from tests.support.waiting import until

pytestmark = pytest.mark.unit


async def test_accounts_on_one_harvester_read_each_collection_once() -> None:
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open_filled(server, "a")
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
            session.client.record_limit(limit)
        assert it.limited == ["a", "a"]


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


async def test_change_between_two_caches_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was deleted while an account left a cache and joined another is reported by neither of them."""
    monkeypatch.setattr(sessions_module, "_REVIEW_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(sessions_module, "_REVIEW_SECONDS", 0.2)
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open_filled(server, "a")
        second = await it.open_filled(server, "b")
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
        await it.open_filled(server, "a")
        await it.open_filled(server, "b")
        await it.sessions.release(Key("ns", "a"))
        await until(lambda: server.readers("ippools") == server.readers("virtualmachines") == ["b"])
        assert server.lists["ippools"] == 1, "it resumes where the other one stood"
        await it.sessions.release(Key("ns", "b"))
        await until(lambda: not +server.open)


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
            session.allocator.group.unanswered[WriteKey("pool", "vms/one")] = 5
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
        session = await it.open_filled(server, "a")
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


async def test_session_with_former_credentials_is_closed() -> None:
    server, cluster = Server(), Key("ns", "c")
    async with serving(server), opened() as it:
        former = await it.sessions.assign(cluster, Kubeconfig(server=server.url, token="a"), "vms", identity="a")
        await until(lambda: filled(former))
        renewed = await it.sessions.assign(cluster, Kubeconfig(server=server.url, token="b"), "vms", identity="a")
        await until(lambda: filled(renewed))
        await until(lambda: server.readers("ippools") == server.readers("virtualmachines") == ["b"])
        with pytest.raises(Unreachable):
            await former.client.get(NAMESPACES, "kube-system")
        # One that other clusters use stays, whatever one of them does.
        other = await it.sessions.assign(Key("ns", "d"), Kubeconfig(server=server.url, token="b"), "vms", identity="a")
        assert other is renewed
        await it.sessions.assign(cluster, Kubeconfig(server=server.url, token="c"), "vms", identity="a")
        assert await renewed.client.get(NAMESPACES, "kube-system")
        assert it.sessions.users(renewed) == [Key("ns", "d")]


async def test_namespace_without_clusters_is_not_watched_any_more() -> None:
    server = Server()
    async with serving(server), opened() as it:
        access = Kubeconfig(server=server.url, token="a")
        session = await it.sessions.assign(Key("ns", "c"), access, "vms", identity="a", harvester_uid="uid-1")
        await it.sessions.assign(Key("ns", "d"), access, "other", identity="a")
        for namespace in ("vms", "other"):
            await until(lambda namespace=namespace: session.watch_namespace(namespace).current)  # type: ignore[misc]
        await until(lambda: is_current(session))
        watches = server.open.total()
        await it.sessions.release(Key("ns", "d"))
        await until(lambda: server.open.total() < watches)
        assert session.synced
        assert session.watch_namespace("vms").synced
        assert it.sessions.uses(Key("ns", "c"), [session], "vms")
        assert not it.sessions.uses(Key("ns", "c"), [session], "other")
        assert not it.sessions.uses(Key("ns", "d"), [session], "other")


async def test_last_account_of_a_cache_tries_again_when_it_is_refused() -> None:
    server = Server()
    async with serving(server), opened() as it:
        only = await it.open(server, "a")
        # A cache is filled before its watch is open, which this test ends.
        await until(lambda: filled(only) and server.readers("ippools"))
        server.denied = {("a", "ippools")}
        server.end_watches("ippools")
        await until(lambda: only.pools.last_error is not None)
        assert isinstance(only.pools.last_error, Forbidden)
        server.denied = set()
        await until(lambda: only.pools.current, seconds=30)
