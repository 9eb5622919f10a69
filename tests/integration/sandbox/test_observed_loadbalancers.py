"""The simulated load balancer controller does what the real one was seen doing."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import SERVICES, Obj
from caphv.runtime.errors import NotFound
from reconciler.cluster.loadbalancer import load_balancer_spec
from sandbox import simulate
from sandbox.guest.workload import Workloads
from sandbox.harvester import kinds
from sandbox.processes import network
from sandbox.processes.apiserver import ApiServer
from tests.support.observed import Record, records
from tests.support.simulation import Place, Simulation, simulation
from tests.support.waiting import until

pytestmark = pytest.mark.integration

TAKEOVERS = {
    "1.5": "harvester-load-balancer-harvester/takeover-v1.5.2.yaml",
    "1.7": "harvester-load-balancer-harvester/takeover-v1.7.1.yaml",
    "1.8": "harvester-load-balancer-harvester/takeover.yaml",
    "1.9": "harvester-load-balancer-harvester/takeover-v1.9.0-rc4.yaml",
}
LIVES = {
    "1.5": "harvester-load-balancer-harvester/life-v1.5.2.yaml",
    "1.7": "harvester-load-balancer-harvester/life-v1.7.1.yaml",
    "1.8": "harvester-load-balancer-harvester/life.yaml",
    "1.9": "harvester-load-balancer-harvester/life-v1.9.0-rc4.yaml",
}
NEWEST = "1.8"
# Seconds that a second of the record takes.
SCALE = 0.2
LISTENER = {"name": "api-server", "port": 6443, "protocol": "TCP", "backendPort": 6443}
_numbers = itertools.count()


def of_releases(files: dict[str, str]) -> list[Any]:
    """Records of one topic with their release; others than the newest are long."""
    return [
        pytest.param(release, records(file), marks=[] if release == NEWEST else pytest.mark.long)
        for release, file in files.items()
    ]


@pytest.fixture(scope="module")
def place(etcd_folder: Path) -> Iterator[Place]:
    """An API server of this module: the webhooks of the simulation stay on it."""
    server = ApiServer(etcd_folder, "observed-balancers")
    asyncio.run(server.start())
    with network.claim() as (claimed, _):
        yield Place(server, str(claimed))
    asyncio.run(server.stop())


class _Idle:
    """Instead of what owns VMs and guests: the tests write instances themselves."""

    def __init__(self, *_: Any) -> None: ...

    async def run(self) -> None:
        await asyncio.Event().wait()


class Replay:
    """A namespace with one pool and one LoadBalancer, and the state of both as the records have it."""

    def __init__(self, sim: Simulation, listening: set[str]) -> None:
        self.sim, self.listening = sim, listening
        self.namespace = self.pool = sim.namespace
        self.guests = {f"guest-{number}": f"{sim.prefix}.50.{number}" for number in (1, 2)}
        self._servers: dict[str, asyncio.Server] = {}

    async def create_pool(self, allocated: dict[str, str], history: dict[str, str]) -> None:
        ranges = {"rangeStart": self._address("pool-10"), "rangeEnd": self._address("pool-12")}
        subnet = {"subnet": f"{self.sim.prefix}.0.0/16", "gateway": f"{self.sim.prefix}.0.1"}
        status = {
            "total": 3,
            "available": 3 - len(allocated),
            "lastAllocated": "",
            "allocated": self._entries(allocated),
            "allocatedHistory": self._entries(history),
        }
        pool = {"metadata": {"name": self.pool}, "spec": {"ranges": [{**subnet, **ranges}]}, "status": status}
        await self.sim.client.create(kinds.IP_POOLS, kinds.typed(kinds.IP_POOLS, pool))

    async def create_balancer(self, ipam: str, health_check: Obj | None = None) -> None:
        check = health_check or {
            "port": 6443,
            "successThreshold": 1,
            "failureThreshold": 3,
            "periodSeconds": 1,
            "timeoutSeconds": 1,
        }
        spec: Obj = {"workloadType": "vm", "ipam": ipam, "listeners": [LISTENER], "healthCheck": check}
        spec["backendServerSelector"] = {"role": ["cp"]}
        if ipam == "pool":
            spec["ipPool"] = self.pool
        metadata = {"name": "lb", "namespace": self.namespace}
        await self.sim.client.create(
            kinds.LOAD_BALANCERS, kinds.typed(kinds.LOAD_BALANCERS, {"metadata": metadata, "spec": spec})
        )

    async def create_placeholder(self, address: str) -> None:
        metadata = {"name": "lb", "namespace": self.namespace}
        ports = [{"name": "api-server", "port": 6443, "targetPort": 6443}]
        spec = {"type": "LoadBalancer", "loadBalancerIP": self._address(address), "ports": ports}
        await self.sim.client.create(SERVICES, {"metadata": metadata, "spec": spec})
        await self.sim.until(SERVICES, "lb", lambda obj: obj["status"].get("loadBalancer"))

    async def create_instance(self, name: str) -> None:
        metadata = {"name": name, "namespace": self.namespace, "labels": {"role": "cp"}}
        vmi = {"metadata": metadata, "spec": {"domain": {"devices": {}}}, "status": {"phase": "Running"}}
        await self.sim.client.create(kinds.INSTANCES, kinds.typed(kinds.INSTANCES, vmi))

    async def report_address(self, name: str, guest: str) -> None:
        interface = {"name": "nic-1", "ipAddress": self.guests[guest]}
        status = {"status": {"interfaces": [interface]}}
        await self.sim.client.patch(kinds.INSTANCES, name, self.namespace, status)

    async def listen(self, guest: str) -> None:
        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(guest.encode())
            await writer.drain()
            writer.close()

        self._servers[guest] = await asyncio.start_server(answer, self.guests[guest], 6443)
        self.listening.add(self.guests[guest])

    async def hang_up(self, guest: str) -> None:
        self.listening.discard(self.guests[guest])
        self._servers.pop(guest).close()

    async def remove(self) -> None:
        """Delete all objects; the next test has a pool with the same addresses."""
        client = self.sim.client
        for resource, name in (
            (kinds.LOAD_BALANCERS, "lb"),
            (SERVICES, "lb"),
            (kinds.INSTANCES, "one"),
            (kinds.INSTANCES, "two"),
        ):
            with suppress(NotFound):
                await client.delete(resource, name, self.namespace)
        for server in self._servers.values():
            server.close()
        await self.sim.until_gone(kinds.LOAD_BALANCERS, "lb")
        await client.patch(kinds.IP_POOLS, self.pool, "", {"status": {"allocated": None}})
        await client.delete(kinds.IP_POOLS, self.pool)

    async def state(self) -> Obj:
        """LoadBalancer, Service and pool."""
        found: Obj = {}
        for kind, resource, name, namespace in (
            ("lb", kinds.LOAD_BALANCERS, "lb", self.namespace),
            ("service", SERVICES, "lb", self.namespace),
            ("pool", kinds.IP_POOLS, self.pool, ""),
        ):
            found[kind] = None
            with suppress(NotFound):
                found[kind] = getattr(self, f"_{kind}")(await self.sim.client.get(resource, name, namespace))
        return found

    async def reached(self) -> set[str]:
        """Guests that answer at the address of the LoadBalancer."""
        with suppress(NotFound):
            balancer = await self.sim.client.get(kinds.LOAD_BALANCERS, "lb", self.namespace)
            address = (balancer.get("status") or {}).get("address")
            return {name for _ in range(4) if address and (name := await _answer(address))}
        return set()

    def _lb(self, obj: Obj) -> Obj:
        status = obj.get("status") or {}
        ready = next((entry for entry in status.get("conditions") or () if entry["type"] == "Ready"), {})
        allocated = status.get("allocatedAddress") or {}
        found = {
            "ready": ready.get("status"),
            "message": self._text(ready.get("message", "")),
            "address": self._text(status.get("address", "")),
            "backends": [self._text(ip) for ip in status.get("backendServers") or ()],
            "allocated": self._text(allocated.get("ip", "")),
        }
        return found | ({"mask": allocated["mask"]} if allocated.get("mask") else {})

    def _service(self, obj: Obj) -> Obj:
        ingress = (obj["status"].get("loadBalancer") or {}).get("ingress") or ()
        return {
            "loadBalancerIP": self._text(obj["spec"].get("loadBalancerIP", "")),
            "ingress": [self._text(entry["ip"]) for entry in ingress],
            "ports": [port["port"] for port in obj["spec"]["ports"]],
            "owned": bool(obj["metadata"].get("ownerReferences")),
        }

    def _pool(self, obj: Obj) -> Obj:
        status = obj["status"]
        return {
            "allocated": {self._text(ip): self._text(holder) for ip, holder in (status.get("allocated") or {}).items()},
            "history": {
                self._text(ip): self._text(holder) for ip, holder in (status.get("allocatedHistory") or {}).items()
            },
            "available": status["available"],
            "last": self._text(status["lastAllocated"]),
        }

    def _text(self, text: str) -> str:
        text = text.replace(f"{self.sim.prefix}.100.", "pool-").replace(f"{self.sim.prefix}.50.", "guest-")
        text = "dhcp-1" if text.startswith(f"{self.sim.prefix}.32.") else text
        return text.replace(f"{self.namespace}/", "NS/").replace(self.pool, "POOL")

    def _address(self, text: str) -> str:
        return text.replace("pool-", f"{self.sim.prefix}.100.")

    def _entries(self, entries: dict[str, str]) -> dict[str, str]:
        return {self._address(ip): holder.replace("NS/", f"{self.namespace}/") for ip, holder in entries.items()}


async def _answer(address: str) -> str:
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection(address, 6443)
        try:
            return (await asyncio.wait_for(reader.read(), 2)).decode()
        finally:
            writer.close()
    return ""


@asynccontextmanager
async def replay(place: Place, release: str) -> AsyncIterator[Replay]:
    listening: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate, "VirtualMachines", _Idle)
        patch.setattr(simulate, "Guests", _Idle)
        patch.setattr(Workloads, "answers", lambda _self, address, _port: address in listening)
        name = f"observed-{next(_numbers)}"
        async with simulation(place, name, harvester=release, probe_scale=SCALE) as sim:
            running = Replay(sim, listening)
            try:
                yield running
            finally:
                await running.remove()


def last(events: list[Obj], kind: str, before: Any) -> Any:
    """The state in which a record leaves an object, `before` if it did not change."""
    return next((event[kind] for event in reversed(events) if kind in event), before)


async def settled(running: Replay, wanted: Obj, guests: set[str]) -> None:
    """Wait for this state, and that these guests are reached."""
    found: Obj = {}

    async def arrived() -> bool:
        found.clear()
        found.update(await running.state(), reached=await running.reached())
        return found == {**wanted, "reached": guests}

    with suppress(AssertionError):
        await until(arrived, "", 20)
    assert found == {**wanted, "reached": guests}


@pytest.mark.parametrize(("release", "seen"), of_releases(TAKEOVERS))
async def test_address_is_taken_over(place: Place, release: str, seen: list[Record]) -> None:
    for record in seen:
        if "taken" in record.name:
            continue  # the controller's message names the ranges
        async with replay(place, release) as running:
            await running.create_pool(record.input["allocated"], record.input["history"])
            await asyncio.sleep(0.2)
            if record.input["placeholder"]:
                await running.create_placeholder("pool-11")
            before = await running.state()
            await running.create_balancer("pool")
            wanted = {kind: last(record.outcome, kind, before[kind]) for kind in before}
            if record.name == "without-history":
                # By chance, the real controller releases twice, from a stale cache, and leaves the address free.
                wanted["pool"] |= {"allocated": {"pool-11": "NS/lb"}, "history": {}, "available": 2}
            await settled(running, wanted, set())


@pytest.mark.parametrize(("release", "seen"), of_releases(LIVES))
@pytest.mark.parametrize("ipam", ["pool", "dhcp"])
async def test_life_of_a_load_balancer(place: Place, release: str, seen: list[Record], ipam: str) -> None:
    async with replay(place, release) as running:
        await running.create_pool({}, {})
        await asyncio.sleep(0.2)
        steps: dict[str, Callable[[], Any]] = {
            "created without backends": lambda: running.create_balancer(ipam),
            "instance without address": lambda: running.create_instance("one"),
            "instance reports an address without a listener": lambda: running.report_address("one", "guest-1"),
            "guest listens": lambda: running.listen("guest-1"),
            "second instance without a listener": lambda: _second(running),
            "second guest listens": lambda: running.listen("guest-2"),
            "first guest stops listening": lambda: running.hang_up("guest-1"),
            "first instance deleted": lambda: running.sim.client.delete(kinds.INSTANCES, "one", running.namespace),
            "listener added": lambda: _add_listener(running),
            "second guest stops listening": lambda: running.hang_up("guest-2"),
            "deleted": lambda: running.sim.client.delete(kinds.LOAD_BALANCERS, "lb", running.namespace),
        }
        wanted, ready = await running.state(), []
        for record in (record for record in seen if record.input["ipam"] == ipam):
            began = time.monotonic()
            await steps[record.input["step"]]()
            wanted = {kind: last(record.outcome, kind, state) for kind, state in wanted.items()}
            ready = last(record.outcome, "endpoints", ready)
            if wanted["lb"] is None:
                # Without the garbage collector, the Service that the LoadBalancer owned would stay.
                await running.sim.until_gone(kinds.LOAD_BALANCERS, "lb")
                assert (await running.state())["pool"] == wanted["pool"]
                break
            await settled(running, wanted, {address for address, healthy in ready if healthy and "guest" in address})
            if record.input["step"] == "second guest stops listening":
                # Of three probes that fail in a row, the first may follow at once.
                assert time.monotonic() - began > 2 * SCALE * 0.9


async def test_upgrade_of_a_single_machine_loses_its_endpoint_for_one_period(place: Place) -> None:
    """The old machine leaves at the moment in which the new one answers: the worst case."""
    spec = load_balancer_spec({"loadBalancerConfig": {"ipamType": "dhcp"}}, {})
    period = spec["healthCheck"]["periodSeconds"] * SCALE
    async with replay(place, NEWEST) as running:
        await running.create_pool({}, {})
        await running.create_balancer("dhcp", spec["healthCheck"])
        for instance, guest in (("one", "guest-1"), ("two", "guest-2")):
            await running.create_instance(instance)
            await running.report_address(instance, guest)
        await running.listen("guest-1")
        assert await until(running.reached, "the first machine is not reached", 20) == {"guest-1"}

        await running.listen("guest-2")
        await running.sim.client.delete(kinds.INSTANCES, "one", running.namespace)
        await running.hang_up("guest-1")
        lost = time.monotonic()
        assert await until(running.reached, "the second machine is not reached", 20) == {"guest-2"}
        # A busy machine needs time for its own requests.
        assert time.monotonic() - lost < period + 1


async def _second(running: Replay) -> None:
    await running.create_instance("two")
    await running.report_address("two", "guest-2")


async def _add_listener(running: Replay) -> None:
    second = {**LISTENER, "name": "rke2", "port": 9345, "backendPort": 9345}
    spec = {"spec": {"listeners": [LISTENER, second]}}
    await running.sim.client.patch(kinds.LOAD_BALANCERS, "lb", running.namespace, spec)
