"""Informers on a real API server, also when it is killed and comes back."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from caphv.api.object import CONFIG_MAPS, NAMESPACES, Key, key_of
from caphv.runtime.cache import Change, Informer
from caphv.runtime.errors import Unreachable
from sandbox.processes.apiserver import ApiServer
from tests.support.configmaps import config_map, namespace
from tests.support.waiting import until

pytestmark = pytest.mark.integration


async def test_copy_follows_the_server_and_own_writes_are_reported_once(api_server: ApiServer) -> None:
    async with api_server.client() as client:
        await client.create(NAMESPACES, namespace("runtime-informer"))
        before = await client.create(CONFIG_MAPS, config_map("before", "runtime-informer"))
        informer = Informer(client, CONFIG_MAPS, label_selector="test=runtime-informer")
        heard: list[tuple[str, bool, bool]] = []
        informer.add_handler(lambda c: heard.append((c.key.name, c.old is None, c.new is None)))
        task = informer.start()
        await informer.wait_synced()
        assert heard == [("before", True, False)]
        own = await client.create(CONFIG_MAPS, config_map("own", "runtime-informer"))
        informer.observe(own)
        await client.patch(CONFIG_MAPS, "before", "runtime-informer", {"data": {"a": "1"}})
        await client.delete(CONFIG_MAPS, "own", "runtime-informer")
        await until(lambda: len(heard) >= 4)
        assert heard[1:] == [("own", True, False), ("before", False, False), ("own", False, True)]
        informer.observe(own)
        assert [key_of(obj) for obj in informer.store] == [key_of(before)], "a late answer brings nothing back"
        stored = informer.get("runtime-informer", "before")
        assert stored is not None
        assert stored["data"] == {"a": "1"}
        assert "managedFields" not in stored["metadata"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_removal_of_the_last_finalizer_is_in_the_copy_at_once(api_server: ApiServer) -> None:
    async with api_server.client() as client:
        await client.create(NAMESPACES, namespace("runtime-finalizer"))
        held = config_map("held", "runtime-finalizer")
        held["metadata"]["finalizers"] = ["example.com/held"]
        await client.create(CONFIG_MAPS, held)
        before = await client.delete(CONFIG_MAPS, "held", "runtime-finalizer")
        assert before
        informer = Informer(client, CONFIG_MAPS, namespace="runtime-finalizer")
        # Without a watch, whose event of the deletion may come at any time.
        informer.observe(before)
        answer = await client.patch(CONFIG_MAPS, "held", "runtime-finalizer", {"metadata": {"finalizers": None}})
        assert answer["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        informer.observe(answer)
        # A late event of the version with the finalizer does not bring it back.
        informer.observe(before)
        stored = informer.get("runtime-finalizer", "held")
        assert stored is None or "finalizers" not in stored["metadata"]


async def test_object_of_a_megabyte_arrives_by_watch(api_server: ApiServer) -> None:
    async with api_server.client() as client:
        informer = Informer(client, CONFIG_MAPS, namespace="default")
        task = informer.start()
        await informer.wait_synced()
        await client.create(CONFIG_MAPS, config_map("large", "default", payload="ä" * 500_000))
        await until(lambda: informer.get("default", "large") is not None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_copy_becomes_true_again_after_the_server_was_killed(
    new_api_server: Callable[..., Awaitable[ApiServer]],
) -> None:
    server = await new_api_server()

    errors: list[Exception] = []
    replayed: dict[Key, str] = {}

    def hear(change: Change) -> None:
        if change.new is None:
            del replayed[change.key]
        else:
            replayed[change.key] = change.new["metadata"]["resourceVersion"]

    async with server.client() as client, server.client() as writer:
        await client.create(NAMESPACES, namespace("ns"))
        for name in ("kept", "deleted"):
            await client.create(CONFIG_MAPS, config_map(name, "ns"))
        informer = Informer(client, CONFIG_MAPS, namespace="ns", on_error=errors.append, max_backoff=1.0)
        informer.add_handler(hear)
        task = informer.start()
        await informer.wait_synced()
        await server.stop()
        await until(lambda: informer.last_error is not None)
        assert isinstance(informer.last_error, Unreachable)
        assert informer.get("ns", "kept") is not None
        await server.start()
        await writer.delete(CONFIG_MAPS, "deleted", "ns")
        await writer.create(CONFIG_MAPS, config_map("new", "ns"))
        await until(lambda: {key.name for key in replayed} == {"kept", "new"})
        assert informer.last_error is None
        assert errors
        truth = (await client.list(CONFIG_MAPS, "ns"))["items"]
        assert replayed == {key_of(obj): obj["metadata"]["resourceVersion"] for obj in truth}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
