"""LoadBalancers, their Services and pools on the simulated Harvester, in the form in which real ones were recorded."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from caphv.api.object import SERVICES, Obj
from caphv.runtime.errors import NotFound
from sandbox import simulate
from sandbox.guest.workload import Workloads
from sandbox.harvester import kinds
from sandbox.harvester.releases import NEWEST_STABLE
from tests.support.observed import records
from tests.support.simulation import Place, Simulation, simulation
from tests.support.waiting import until

# Seconds that a second of the record takes.
SCALE = 0.2
LISTENER = {"name": "api-server", "port": 6443, "protocol": "TCP", "backendPort": 6443}
ROLE = {"role": "cp"}
_numbers = itertools.count()


def of_releases(files: dict[str, str]) -> list[Any]:
    """Records of one topic with their release; others than the newest are long."""
    return [
        pytest.param(release, records(file), marks=[] if release == NEWEST_STABLE else pytest.mark.long)
        for release, file in files.items()
    ]


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

    async def create_instance(self, name: str, labels: dict[str, str] = ROLE) -> None:
        metadata = {"name": name, "namespace": self.namespace, "labels": labels}
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
        return text.replace(self.namespace, "NS")

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
