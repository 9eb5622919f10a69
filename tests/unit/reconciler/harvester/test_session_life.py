"""The life of a session in virtual time: when it asks, what it reports, and what it shares with other accounts."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from caphv.api.object import NAMESPACES, Key, Obj
from caphv.runtime.errors import NotFound, Unauthorized, Unreachable
from reconciler.harvester import session as session_module
from reconciler.harvester.session import Session
from reconciler.harvester.views import View
from tests.support.reconciler.memoryharvester import MemoryHarvester, MemorySessions, sessions_on
from tests.support.virtualtime import settle

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def deployment(status: str = "True", name: str = "harvester", kind: str = "Available") -> Obj:
    metadata = {"name": name, "namespace": "harvester-system", "resourceVersion": "5", "uid": "u"}
    return {"metadata": metadata, "status": {"conditions": [{"type": kind, "status": status}]}}


def failure(session: Session) -> type[Exception] | None:
    """The kind of error that the session has now."""
    return type(session.error) if session.error else None


async def seconds(number: float) -> None:
    await asyncio.sleep(number)
    await settle()


# Connecting


async def test_a_harvester_that_does_not_answer_is_asked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    server.away = True
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await it.open(server, "a")
        await seconds(60)
        waits = gaps(server.asked("get", "namespaces"))
        for number, wait in enumerate(waits):
            expected = min(0.2 * 2**number, 4.0)
            assert 0.75 * expected <= wait <= 1.25 * expected + 1e-6
        assert len(waits) > 12
        assert len(server.requests) == len(waits) + 1, "nothing else is asked before"
        assert failure(session) is Unreachable
        assert (session.is_unauthorized, session.synced) == (False, False)
        assert it.health == ["a"], "not for each attempt"

        server.away = False
        await seconds(5)
        assert failure(session) is None
        assert session.synced
        assert it.health.count("a") >= 2
        before = len(it.health)
        await seconds(60)
        assert len(it.health) == before


async def test_a_request_that_is_refused_ends_the_wait_for_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    server.away = True
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await it.open(server, "a")
        await seconds(30.05)
        before = len(server.requests)
        session.probe()
        await settle()
        assert len(server.requests) == before + 1


async def test_credentials_that_are_rejected_from_the_start_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    server.tokens = set()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await it.open(server, "a")
        await seconds(30)
        assert failure(session) is Unauthorized
        assert session.is_unauthorized
        # The response that rejects them wakes the session, which must not ask in a tight loop.
        assert len(server.requests) < 20
        server.tokens = {"a"}
        await seconds(6)
        assert failure(session) is None
        assert session.synced


async def test_a_harvester_whose_uid_may_not_be_read_is_used_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    server.hidden = True
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        first, second = await it.open(server, "a"), await it.open(server, "b")
        assert first.synced
        assert (first.uid, first.error) == ("", None)
        assert first.pools is not second.pools
        assert list(first.neighbours) == [first]


async def test_before_a_session_is_connected_it_has_no_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    server.away = True
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        first, second = await it.open(server, "a"), await it.open(server, "b")
        assert [list(each.neighbours) for each in (first, second)] == [[first], [second]]
        server.away = False
        await seconds(5)
        assert set(first.neighbours) == set(second.neighbours) == {first, second}


# Rejected credentials


async def test_rejected_credentials_are_verified_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await it.open(server, "a")
        await seconds(5)
        it.health.clear()
        server.requests.clear()
        server.tokens = set()
        for _ in range(2):
            with pytest.raises(Unauthorized):
                await session.client.get(NAMESPACES, "kube-system")
        await seconds(0)
        assert session.is_unauthorized
        assert it.health == ["a"], "the second refusal is no news"
        server.requests.clear()
        await seconds(41)
        waits = gaps(server.asked("get", "namespaces"))
        assert len(waits) >= 8
        assert all(wait == pytest.approx(4.0) for wait in waits)
        assert server.asked("review list") == [], "no rights are reviewed meanwhile"

        server.tokens = {"a"}
        await seconds(4)
        assert failure(session) is None
        assert it.health == ["a", "a"]
        server.requests.clear()
        await seconds(60)
        assert server.asked("get", "namespaces") == []


async def test_a_failure_that_is_no_success_does_not_prove_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await it.open(server, "a")
        await seconds(5)
        it.health.clear()
        server.tokens = set()
        with pytest.raises(Unauthorized):
            await session.client.get(NAMESPACES, "kube-system")
        server.away = True
        await seconds(20)
        assert isinstance(session.error, Unreachable), "the rejection is no news while nothing answers"
        assert it.health == ["a", "a"]

        server.away = False
        await seconds(5)
        assert session.is_unauthorized


# What it says of Harvester


@pytest.mark.parametrize(
    ("found", "deployed", "available"),
    [
        ([deployment()], True, True),
        ([deployment("False")], True, False),
        ([deployment(kind="Progressing")], True, False),
        ([deployment(name="other")], False, False),
        ([{**deployment(), "status": {}}], True, False),
        ([], False, False),
    ],
)
async def test_harvester_is_available_if_its_deployment_is(
    found: list[Obj], deployed: bool, available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemoryHarvester()
    server.objects["deployments"] = found
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await it.open(server, "a")
        await seconds(5)
        assert (session.deployment_object is not None, session.available) == (deployed, available)


async def test_a_server_without_a_kind_is_no_harvester(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    server.missing = {"keypairs"}
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await it.open(server, "a")
        assert "keypairs" in session.missing_kind
        assert isinstance(session.key_pairs.last_error, NotFound)
        assert session.is_settled
        assert not session.synced
        assert (session.error, session.is_unauthorized) == (None, False)
        server.missing = set()
        await seconds(61)
        assert (session.missing_kind, session.synced) == ("", True)


async def test_limits_of_a_connection_know_machines_and_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    machines = {Key("ns", "a"): 3, Key("ns", "b"): 4}
    async with sessions_on(server, monkeypatch=monkeypatch, machines_of=machines.__getitem__) as it:
        server.away = True
        first, second = await it.open(server, "a"), await it.open(server, "b")
        clients = server.clients
        assert clients["a"].time.machines() == 3, "before it is connected, its own"
        assert clients["a"].time.objects() == 0
        server.away = False
        await seconds(10)
        assert [clients[token].budget.machines() for token in "ab"] == [3, 4]
        assert [clients[token].time.machines() for token in "ab"] == [7, 7]
        # One object of each collection: six of all namespaces, four of the target namespace, read once for both.
        assert [clients[token].time.objects() for token in "ab"] == [10, 10]
        assert first.pools is second.pools
        clients["b"].on_limit()
        assert it.limited == ["b"]


# What it reports


async def test_caches_are_reported_when_they_become_current_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        await it.open(server, "a")
        await seconds(5)
        assert it.caches
        before = len(it.caches)
        await seconds(400)
        assert len(it.caches) == before
        server.denied = {("a", "services")}
        server.end_watches("services")
        await seconds(1)
        assert len(it.caches) > before, "one of them fails"
        before = len(it.caches)
        await seconds(60)
        assert len(it.caches) == before, "for the same reason as before"
        server.denied = set()
        await seconds(60)
        assert len(it.caches) > before


async def test_caches_whose_watches_end_together_are_examined_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hundreds of target namespaces, an outage would otherwise hold up the event loop."""
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await it.open(server, "a")
        for number in range(20):
            session.watch_namespace(f"vms-{number}")
        await seconds(5)
        assert server.watches() > 80
        examinations: list[int] = []

        def refusal_of(views: list[View], *_: object) -> str:
            examinations.append(len(views))
            return ""

        monkeypatch.setattr(session_module, "refusal_of", refusal_of)
        server.end_watches()
        await settle()
        assert server.watches() > 80
        assert 1 <= len(examinations) < 10, "once when they end, and once when they are open again"


async def test_changes_are_reported_once_for_all_accounts_that_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        for token in "ab":
            await it.open(server, token)
        await seconds(5)
        it.changes.clear()
        metadata = {"name": "ippools-1", "namespace": "", "resourceVersion": "11", "uid": "u"}
        server.change("ippools", {"metadata": metadata, "spec": {}})
        await settle()
        assert it.changes == [({"a", "b"}, "ippools")]


@pytest.mark.parametrize("was_filled", [True, False])
async def test_an_account_that_joins_reads_at_once_what_another_may_not(
    was_filled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemoryHarvester()
    denied = {("a", "ippools")}
    server.denied = set() if was_filled else denied
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        first = await it.open(server, "a")
        server.denied = denied
        server.end_watches("ippools")
        await seconds(200)
        second = await it.open(server, "b")
        await seconds(0.1)
        assert second.pools.current
        assert server.readers("ippools") == ["b"]
        assert first.pools is not second.pools


async def test_the_reader_of_a_cache_of_its_own_hears_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    server.denied = {("b", "nodes")}
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        for token in "ab":
            await it.open(server, token)
        await seconds(5)
        it.changes.clear()
        server.denied = set()
        await seconds(61)  # before a review joins the caches again
        assert ({"b"}, "nodes") in it.changes


async def test_a_cache_of_its_own_is_reported_when_it_is_current_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    server.denied = {("b", "nodes")}
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        await it.open(server, "a")
        session = await it.open(server, "b")
        server.denied = set()
        await seconds(3)
        assert session.own_informers() == [session.hosts]
        server.denied = {("b", "nodes")}
        server.end_watches("nodes")
        await seconds(1)
        assert session.hosts.last_error
        it.caches.clear()
        server.denied = set()
        await seconds(10)
        assert session.hosts.current
        assert it.caches == ["b"]


# The end


async def closed(it: MemorySessions, server: MemoryHarvester, token: str) -> None:
    await it.sessions.release(Key("ns", token))
    await settle()


@pytest.mark.parametrize("state", ["connecting", "connected", "opening"])
async def test_a_session_ends_in_any_state(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    server.away = state == "connecting"
    if state == "opening":
        server.held = {"list": asyncio.Event()}
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        await it.open(server, "a")
        await seconds(1)
        before = asyncio.all_tasks()
        assert len(before) > 1
        await closed(it, server, "a")
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert server.clients["a"].closed
        asked = len(server.requests)
        await seconds(1000)
        assert len(server.requests) == asked


async def test_the_next_account_reads_what_a_closed_one_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        first, second = await it.open(server, "a"), await it.open(server, "b")
        await seconds(5)
        await closed(it, server, "a")
        await seconds(1)
        for plural in ("ippools", "nodes", "virtualmachines"):
            assert server.readers(plural) == ["b"]
        assert list(second.neighbours) == [second]
        assert len(server.asked("list", "nodes")) == 1
        assert first.pools is not second.pools
        third = await it.open(server, "c")
        await seconds(5)
        assert third.pools is second.pools


async def test_a_namespace_that_is_opened_concerns_only_those_that_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await it.open(server, "a")
        await seconds(5)
        assert it.filled == [("a", "")]
        it.health.clear()
        session.watch_namespace("other")
        await seconds(5)
        assert it.filled == [("a", ""), ("a", "other")]
        assert it.health == []


async def test_a_namespace_that_is_left_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await it.open(server, "a")
        await seconds(5)
        before = server.watches()
        other = session.watch_namespace("other")
        assert session.watch_namespace("other") is other
        await seconds(5)
        assert server.watches() == before + 4
        await session.unwatch_namespace("other")
        await session.unwatch_namespace("never")
        await settle()
        assert server.watches() == before
        assert "other" not in session.namespaces


async def test_a_cache_of_its_own_ends_with_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        reader, refused = await it.open(server, "a"), await it.open(server, "b")
        await seconds(5)
        server.denied = {("b", "virtualmachines")}
        for session in (reader, refused):
            session.watch_namespace("other")
            await seconds(5)
        await refused.unwatch_namespace("other")
        server.denied = set()
        before = server.watches()
        await seconds(50)
        assert server.watches() == before


async def test_a_namespace_that_is_left_while_it_is_opened_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The review that it waits for is answered afterwards."""
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        await it.open(server, "a", namespace="vms")
        session = await it.open(server, "b", namespace="vms")
        await seconds(5)
        before = server.watches()
        server.held = {"review list": asyncio.Event()}
        (await it.open(server, "a", namespace="vms")).watch_namespace("other")
        await seconds(1)
        session.watch_namespace("other")
        await seconds(1)
        await session.unwatch_namespace("other")
        server.held["review list"].set()
        await seconds(1)
        assert server.watches() == before + 4, "those of the other account"
