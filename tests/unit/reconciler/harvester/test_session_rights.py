"""What an account may not read, among others that may: reported as its own refusal, and read by the next account."""

from __future__ import annotations

import asyncio

import pytest

from caphv.runtime.errors import Forbidden, Unauthorized
from reconciler.harvester import session as sessions_module
from tests.support.reconciler.accounts import Server, filled, opened, serving
from tests.support.waiting import until

pytestmark = pytest.mark.unit


async def test_account_that_may_not_list_a_collection_does_not_see_what_others_read() -> None:
    server = Server()
    server.denied = {("b", "virtualmachineimages"), ("b", "virtualmachines")}
    async with serving(server), opened() as it:
        first = await it.open_filled(server, "a")
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
        both = "cannot list virtualmachines; cannot list ippools"
        await until(lambda: session.refusal(namespace, session.pools) == both)
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
        await until(lambda: filled(first) and server.readers("ippools"))
        server.denied = {("a", "ippools")}
        server.end_watches("ippools")
        await until(lambda: isinstance(first.pools.last_error, Forbidden))
        # The second account waits for its turn.
        server.held["ippools"] = asyncio.Event()
        second = await it.open(server, "b")
        await until(lambda: second.pools is first.pools and filled(second))
        assert isinstance(second.pools.last_error, Forbidden)
        assert second.refusal(second.watch_namespace("vms"), second.pools) == ""
        assert first.refusal(first.watch_namespace("vms"), first.pools) == "cannot list ippools"


async def test_account_that_joins_is_not_blamed_for_a_refusal_of_the_one_that_reads() -> None:
    server = Server()
    server.denied = {("a", "ippools"), ("a", "virtualmachines")}
    async with serving(server), opened() as it:
        first = await it.open(server, "a")
        await until(lambda: first.is_settled and first.watch_namespace("vms").vms.last_error)
        # The second account waits for its turn.
        server.held = {"ippools": asyncio.Event(), "virtualmachines": asyncio.Event()}
        second = await it.open(server, "b")
        namespace = second.watch_namespace("vms")
        await until(lambda: second.pools is first.pools and namespace.vms is first.watch_namespace("vms").vms)
        await until(lambda: second.services.synced and namespace.claims.synced)
        assert isinstance(second.pools.last_error, Forbidden)
        assert (second.sync_error, namespace.sync_error, second.refusal(namespace)) == ("", "", "")
        assert not second.is_settled
        assert "cannot list ippools" in first.sync_error
        for event in server.held.values():
            event.set()
        await until(lambda: filled(second))
        await until(lambda: "cannot list ippools" in first.sync_error)
        assert first.pools is not second.pools


async def test_account_that_joins_is_not_rejected_with_the_one_that_reads() -> None:
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open_filled(server, "a")
        server.tokens = {"b"}
        server.end_watches()
        await until(lambda: isinstance(first.deployment.last_error, Unauthorized))
        server.held = {"deployments": asyncio.Event()}
        second = await it.open(server, "b")
        await until(lambda: second.deployment.synced and first.deployment is not second.deployment)
        # It is its turn, but it has no answer yet.
        assert second.deployment.last_error is None
        assert second.error is None
        server.held["deployments"].set()
        await until(lambda: server.readers("deployments") == ["b"])
        assert second.error is None


async def test_verdict_waits_for_the_answers_about_all_collections() -> None:
    server = Server()
    server.missing = {"ippools", "virtualmachineimages"}
    async with serving(server), opened() as it:
        first = await it.open(server, "a")
        await until(lambda: first.is_settled)
        says = first.missing_kind
    first_asked = "ippools" if says.startswith("ippools") else "virtualmachineimages"
    server.held = {first_asked: asyncio.Event()}
    async with serving(server), opened() as it:
        again = await it.open(server, "b")
        await until(lambda: again.missing_kind)
        assert again.missing_kind != says, "the other kind was refused first"
        assert not again.is_settled
        server.held[first_asked].set()
        await until(lambda: again.is_settled)
        assert again.missing_kind == says


async def test_next_account_reads_when_the_reader_loses_the_right() -> None:
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open_filled(server, "a")
        second = await it.open_filled(server, "b")
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
    monkeypatch.setattr(sessions_module, "_REVIEW_RETRY_SECONDS", 0.1)
    server = Server()
    server.denied = {("b", "nodes")}
    async with serving(server), opened() as it:
        first = await it.open_filled(server, "a")
        second = await it.open(server, "b")
        await until(lambda: second.hosts.last_error)
        server.denied = set()
        await until(lambda: second.hosts is first.hosts)


async def test_right_that_ends_without_a_request_is_noticed_by_a_review(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "_REVIEW_SECONDS", 0.2)
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open_filled(server, "a")
        second = await it.open_filled(server, "b")
        server.denied = {("b", "ippools")}
        await until(lambda: second.pools is not first.pools)
        assert len(second.pools.store) == 0


async def test_account_with_rejected_credentials_is_unauthorized_and_the_others_work_on() -> None:
    server = Server()
    async with serving(server), opened() as it:
        first = await it.open_filled(server, "a")
        second = await it.open_filled(server, "b")
        server.tokens = {"b"}
        server.end_watches()
        await until(lambda: isinstance(first.error, Unauthorized))
        await until(lambda: server.readers("ippools") == ["b"])
        assert second.error is None
