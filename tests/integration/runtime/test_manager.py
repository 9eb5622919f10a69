"""A process as a whole: lease, Events, health, metrics, and the ways it ends."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from caphv.api.object import CONFIG_MAPS, EVENTS, LEASES, Key, Obj
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.election import LeaderElection, Timing
from caphv.runtime.events import EventRecorder
from caphv.runtime.manager import BindAddresses, LeaseLost, Manager
from sandbox.processes.apiserver import ApiServer
from sandbox.processes.children import free_ports
from tests.support.configmaps import config_map
from tests.support.waiting import PATIENCE, ended, until

pytestmark = pytest.mark.integration

FAST = Timing(duration=3, deadline=2, retry=0.3)


def election(client: ApiClient, name: str, identity: str) -> LeaderElection:
    return LeaderElection(client, namespace="default", name=name, identity=identity, timing=FAST)


class Process:
    """A manager with one informer and one controller that notes what it reconciled."""

    def __init__(self, client: ApiClient, elected: LeaderElection | None = None, **options: float) -> None:
        self.health, self.metrics = free_ports(2)
        addresses = BindAddresses(f"127.0.0.1:{self.metrics}", f"127.0.0.1:{self.health}")
        self.manager = Manager(addresses=addresses, election=elected, **options)
        self.informer = self.manager.add_informer(Informer(client, CONFIG_MAPS, namespace="default"))
        self.controller = self.manager.add_controller(Controller("test", self.reconcile))
        self.informer.add_handler(lambda change: self.controller.enqueue(change.key))
        self.reconciled: list[Key] = []
        self.ended: list[Key] = []
        self.seconds = 0.0
        self.stop = asyncio.Event()

    async def reconcile(self, key: Key) -> float | None:
        self.reconciled.append(key)
        await asyncio.sleep(self.seconds)
        self.ended.append(key)
        return None

    def start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.manager.run(self.stop))

    async def ask(self, port: int, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
            return response.status, await response.text()


@contextlib.asynccontextmanager
async def clients(server: ApiServer) -> AsyncIterator[tuple[ApiClient, ApiClient]]:
    async with server.client() as first, server.client() as second:
        yield first, second


async def test_of_two_clients_one_holds_the_lease_and_hands_it_over(api_server: ApiServer) -> None:
    async with clients(api_server) as (first, second):
        a, b = election(first, "handover", "a"), election(second, "handover", "b")
        await a.acquire()
        holding, waiting = asyncio.create_task(a.hold()), asyncio.create_task(b.acquire())
        await asyncio.sleep(4)
        assert not holding.done()
        assert not waiting.done(), "longer than the lease lasts, but it was renewed"
        await ended(holding)
        await a.release()
        # Sooner than the lease expires, the other one may have it already.
        lease = await first.get(LEASES, "handover", "default")
        assert lease["spec"]["holderIdentity"] in ("", "b")
        await asyncio.wait_for(waiting, PATIENCE)
        lease = await first.get(LEASES, "handover", "default")
        assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("b", 2)


async def test_dead_holder_is_followed_when_its_lease_expires(api_server: ApiServer) -> None:
    async with clients(api_server) as (first, second):
        await election(first, "expiry", "dead").acquire()
        before = asyncio.get_running_loop().time()
        await asyncio.wait_for(election(second, "expiry", "heir").acquire(), 10)
        assert asyncio.get_running_loop().time() - before >= 3


async def test_events_are_written_and_counted(api_server: ApiServer) -> None:
    async with api_server.client() as client:
        obj: Obj = await client.create(CONFIG_MAPS, config_map("subject", "default"))
        recorder = EventRecorder(client, "caphv")
        task = asyncio.create_task(recorder.run())
        for _ in range(3):
            recorder.event(obj, "Warning", "NoRoom", "no host has room")
        recorder.event(obj, "Normal", "Created", "after all")

        async def written() -> dict[str, int]:
            uid = obj["metadata"]["uid"]
            events = await client.list(EVENTS, "default", field_selector=f"involvedObject.uid={uid}")
            return {event["reason"]: event["count"] for event in events["items"]}

        async with asyncio.timeout(10):
            while await written() != {"NoRoom": 3, "Created": 1}:  # noqa: ASYNC110 - what changes is on a server
                await asyncio.sleep(0.05)
        await ended(task)


async def test_scrape_hook_that_fails_hides_no_other_metrics() -> None:
    def fail() -> None:
        raise ValueError("malformed")

    (port,) = free_ports(1)
    manager, called, stop = Manager(addresses=BindAddresses(f"127.0.0.1:{port}", "0")), [], asyncio.Event()
    manager.on_scrape(fail)
    manager.on_scrape(lambda: called.append(1))
    running = asyncio.create_task(manager.run(stop))
    await until(lambda: _listens(port))
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
        assert response.status == 200
        assert "caphv_leader" in await response.text()
    assert called
    stop.set()
    await running


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


async def test_process_is_ready_once_its_caches_are_and_reconciles_what_it_sees(api_server: ApiServer) -> None:
    async with api_server.client() as client:
        process = Process(client)
        running = process.start()
        await process.informer.wait_synced()
        assert await process.ask(process.health, "/healthz") == (200, "ok")
        assert await process.ask(process.health, "/readyz") == (200, "ok")
        await client.create(CONFIG_MAPS, config_map("seen", "default"))
        await until(lambda: Key("default", "seen") in process.ended)
        status, text = await process.ask(process.metrics, "/metrics")
        assert status == 200
        assert 'caphv_reconcile_total{controller="test",result="success"}' in text
        process.stop.set()
        await asyncio.wait_for(running, 5)
        with pytest.raises(aiohttp.ClientConnectionError):
            await process.ask(process.health, "/healthz")


async def test_process_that_cannot_fill_its_caches_is_alive_and_not_ready(etcd_folder: Path) -> None:
    (port,) = free_ports(1)
    stopped = ApiServer(etcd_folder, "stopped", port=port)
    async with stopped.client() as client:
        process = Process(client)
        running = process.start()
        await until(lambda: process.informer.last_error is not None)
        assert await process.ask(process.health, "/healthz") == (200, "ok")
        reason = "cache of configmaps is not in sync: no answer from the API server"
        assert await process.ask(process.health, "/readyz") == (500, reason)
        process.stop.set()
        await asyncio.wait_for(running, 5)


async def test_stop_lets_work_end_then_gives_the_lease_back(api_server: ApiServer) -> None:
    async with api_server.client() as client:
        process = Process(client, election(client, "stopped", "a"))
        hooks: list[list[Key]] = []

        async def stopped() -> None:
            hooks.append(list(process.ended))

        process.manager.on_stop(stopped)
        process.seconds = 1.0
        await client.apply(CONFIG_MAPS, config_map("slow", "default"), manager="test")
        running = process.start()
        await until(lambda: Key("default", "slow") in process.reconciled)
        assert process.ended == []
        process.stop.set()
        await asyncio.wait_for(running, 5)
        assert Key("default", "slow") in process.ended
        assert hooks == [process.ended], "hooks run once, after the last reconcile"
        lease = await client.get(LEASES, "stopped", "default")
        assert not lease["spec"].get("holderIdentity")


async def test_standby_does_not_reconcile_until_it_holds_the_lease(api_server: ApiServer) -> None:
    async with clients(api_server) as (first, second):
        await first.apply(CONFIG_MAPS, config_map("shared", "default"), manager="test")
        active, standby = (
            Process(first, election(first, "standby", "a")),
            Process(second, election(second, "standby", "b")),
        )
        tasks = [active.start()]
        await until(lambda: bool(active.ended))
        tasks.append(standby.start())
        await standby.informer.wait_synced()
        assert await standby.ask(standby.health, "/readyz") == (200, "ok")
        await asyncio.sleep(1)
        assert standby.reconciled == []
        active.stop.set()
        await until(lambda: Key("default", "shared") in standby.ended, "the standby takes over")
        standby.stop.set()
        await asyncio.gather(*tasks)


async def test_process_that_loses_its_lease_stops_work_at_once_and_says_so(api_server: ApiServer) -> None:
    async with clients(api_server) as (client, thief):
        process = Process(client, election(client, "stolen", "a"))
        process.seconds = 30.0
        await client.apply(CONFIG_MAPS, config_map("victim", "default"), manager="test")
        running = process.start()
        await until(lambda: bool(process.reconciled))
        await thief.patch(LEASES, "stolen", "default", {"spec": {"holderIdentity": "thief"}})
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(running, 5)
        assert process.ended == []
        lease = await thief.get(LEASES, "stolen", "default")
        assert lease["spec"]["holderIdentity"] == "thief"


async def test_failed_task_ends_the_process_with_its_error(api_server: ApiServer) -> None:
    async with api_server.client() as client:
        process = Process(client, election(client, "failed", "a"))

        async def broken() -> None:
            raise ZeroDivisionError

        process.manager.add_task(broken)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(process.start(), 10)
        lease = await client.get(LEASES, "failed", "default")
        assert not lease["spec"].get("holderIdentity"), "the next process need not wait"
