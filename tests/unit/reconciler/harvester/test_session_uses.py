"""Which cluster uses which session: opened with the first, closed with the last, given to machines once verified."""

from __future__ import annotations

import pytest

from caphv.api.bootimage import ImageImport
from caphv.api.object import NAMESPACES, Key
from caphv.runtime.errors import Forbidden, Unauthorized, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler import metrics
from reconciler.harvester.session import Session
from tests.support.reconciler.memoryharvester import MemoryHarvester, MemorySessions, sessions_on
from tests.support.virtualtime import settle

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]

ONE, OTHER = Key("ns", "one"), Key("ns", "other")


async def assigned(
    it: MemorySessions,
    cluster: Key,
    *,
    token: str = "a",
    namespace: str = "vms",
    identity: str = "team/identity",
    uid: str = "",
) -> Session:
    (server,) = it.servers
    access = Kubeconfig(server=server, token=token)
    session = await it.sessions.assign(cluster, access, namespace, identity=identity, harvester_uid=uid)
    session.watch_namespace(namespace)
    await settle(100)
    return session


async def test_machines_get_a_session_that_leads_to_the_known_harvester(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        assert it.sessions.of(ONE) is None
        session = await assigned(it, ONE, uid="uid-1")
        assert it.sessions.of(ONE) is session
        await assigned(it, ONE, uid="uid-2")
        assert it.sessions.of(ONE) is None
        assert it.sessions.accept(ONE)
        assert it.sessions.of(ONE) is session
        assert not it.sessions.accept(ONE), "it was accepted before"


async def test_the_secret_of_a_use_is_the_one_that_was_assigned_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets with the same content share a session, and still permit its use each for itself."""
    async with sessions_on(MemoryHarvester(), monkeypatch=monkeypatch) as it:
        assert it.sessions.identity_of(ONE) == ""
        session = await assigned(it, ONE, identity="team/identity")
        assert await assigned(it, OTHER, identity="team/copy") is session
        assert (it.sessions.identity_of(ONE), it.sessions.identity_of(OTHER)) == ("team/identity", "team/copy")
        await assigned(it, ONE, identity="team/copy")
        assert it.sessions.identity_of(ONE) == "team/copy"
        await it.sessions.release(ONE)
        assert it.sessions.identity_of(ONE) == ""


@pytest.mark.parametrize("hidden", [True, False])
async def test_without_a_known_harvester_a_session_is_not_used_before_it_is_accepted(
    hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemoryHarvester()
    server.hidden = hidden
    server.away = True
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await assigned(it, ONE)
        assert it.sessions.of(ONE) is session, "it may have an error to report"
        server.away = False
        session.probe()
        await settle(200)
        assert session.synced
        assert it.sessions.of(ONE) is None
        it.sessions.accept(ONE)
        assert it.sessions.of(ONE) is session


async def test_another_namespace_or_other_credentials_have_to_be_accepted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await assigned(it, ONE)
        it.sessions.accept(ONE)
        assert await assigned(it, ONE) is session
        assert it.sessions.of(ONE) is session, "nothing has changed"
        await assigned(it, ONE, namespace="new")
        assert it.sessions.of(ONE) is None
        assert set(session.namespaces) == {"new"}, "no cluster uses the former one"
        it.sessions.accept(ONE)
        await assigned(it, ONE, token="b")
        assert it.sessions.of(ONE) is None


async def test_a_namespace_stays_while_another_cluster_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await assigned(it, ONE)
        await assigned(it, OTHER)
        assert it.sessions.users(session) == it.sessions.users(session, "vms") == [ONE, OTHER]
        assert it.sessions.users(session, "new") == []
        await assigned(it, ONE, namespace="new")
        assert it.sessions.users(session, "vms") == [OTHER]
        assert it.sessions.users(session, "new") == [ONE]
        assert set(session.namespaces) == {"vms", "new"}
        assert it.sessions.uses(ONE, [session], "new")
        assert not it.sessions.uses(ONE, [], "new")
        await it.sessions.release(OTHER)
        await it.sessions.release(OTHER)
        assert set(session.namespaces) == {"new"}
        assert OTHER not in it.sessions
        assert ONE in it.sessions


async def test_equal_credentials_share_a_session_that_ends_with_its_last_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        first = await assigned(it, ONE)
        assert await assigned(it, OTHER) is first
        second = await assigned(it, OTHER, token="b")
        assert list(it.sessions) == [first, second]
        assert not server.clients["a"].closed
        await assigned(it, ONE, token="b")
        assert list(it.sessions) == [second]
        assert server.clients["a"].closed
        assert it.sessions.users(first) == []
        await it.sessions.release(ONE)
        assert not server.clients["b"].closed
        await it.sessions.release(OTHER)
        assert list(it.sessions) == []
        assert server.clients["b"].closed


def measured(identity: str) -> bool:
    """Whether requests of an identity have a series."""
    return any(
        sample.labels.get("identity") == identity
        for family in metrics.HARVESTER_SECONDS.collect()
        for sample in family.samples
    )


def failures(identity: str) -> dict[str, float]:
    """How many requests of an identity failed, by code."""
    return {
        sample.labels["code"]: sample.value
        for family in metrics.HARVESTER_ERRORS.collect()
        for sample in family.samples
        if sample.name.endswith("_total") and sample.labels["identity"] == identity
    }


async def test_metrics_of_an_identity_end_with_the_last_session_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    identity = "team/of-this-test"
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        await assigned(it, ONE, identity=identity)
        await assigned(it, OTHER, token="b", identity=identity)
        assert measured(identity)
        await it.sessions.release(ONE)
        assert measured(identity), "another session has it"
        await it.sessions.release(OTHER)
        assert not measured(identity)


async def test_requests_that_harvester_refuses_or_does_not_answer_count_for_the_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = MemoryHarvester()
    identity = "team/of-another-test"
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await assigned(it, ONE, identity=identity)
        assert failures(identity) == {}
        for change, error in (({"tokens": set()}, Unauthorized), ({"away": True}, Unreachable)):
            vars(server).update(change)
            with pytest.raises(error):
                await session.client.get(NAMESPACES, "vms")
        assert failures(identity) == {"401": 1, "none": 1}


async def test_an_account_remembers_only_refusals_of_its_own_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    image = ImageImport("vms", "ubuntu", "https://images.example.com/ubuntu.img", "")
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        first = await assigned(it, ONE)
        other = await assigned(it, OTHER, token="b")
        refusal = first.import_refusals.note(image, Forbidden(403, "Forbidden", "no"), 10, 60)
        assert (await assigned(it, OTHER)).import_refusals.of(image) == refusal
        assert other.import_refusals.of(image) is None


async def test_all_sessions_end_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    async with sessions_on(server, monkeypatch=monkeypatch) as it:
        session = await assigned(it, ONE)
        await it.sessions.close()
        assert server.clients["a"].closed
        assert list(it.sessions) == it.sessions.users(session) == []
        assert ONE not in it.sessions


async def test_an_address_is_in_use_while_a_machine_on_the_harvester_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryHarvester()
    machines = {"10.0.0.5": [ONE], "10.0.0.6": [Key("ns", "unknown")]}
    options = {"clusters_with": lambda address: machines.get(address, ())}
    async with sessions_on(server, monkeypatch=monkeypatch, **options) as it:
        first = await assigned(it, ONE)
        second = await assigned(it, OTHER, token="b")
        for session in (first, second):
            assert [session.address_in_use(f"10.0.0.{number}") for number in (5, 6, 7)] == [True, False, False]
        await it.sessions.release(ONE)
        assert not second.address_in_use("10.0.0.5")
