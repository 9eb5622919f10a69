"""The simulated load balancer controller does what the real one was seen doing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.cluster.loadbalancer import load_balancer_spec
from sandbox.harvester import kinds
from sandbox.harvester.releases import NEWEST_STABLE
from sandbox.processes import network
from sandbox.processes.apiserver import ApiServer
from tests.support.balancers import LISTENER, SCALE, Replay, last, of_releases, replay, settled
from tests.support.observed import Record
from tests.support.simulation import Place
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


@pytest.fixture(scope="module")
def place(etcd_folder: Path) -> Iterator[Place]:
    """An API server of this module: the webhooks of the simulation stay on it."""
    server = ApiServer(etcd_folder, "observed-balancers")
    asyncio.run(server.start())
    with network.claim() as (claimed, _):
        yield Place(server, str(claimed))
    asyncio.run(server.stop())


@pytest.mark.parametrize(("release", "seen"), of_releases(TAKEOVERS))
async def test_address_is_taken_over(place: Place, release: str, seen: list[Record]) -> None:
    for record in seen:
        async with replay(place, release) as running:
            await running.create_pool(record.input["allocated"], record.input["history"])
            await running.sim.heard(kinds.IP_POOLS)
            if record.input["placeholder"]:
                await running.create_placeholder("pool-11")
            before = await running.state()
            await running.create_balancer("pool")
            wanted = {kind: last(record.outcome, kind, before[kind]) for kind in before}
            if record.name == "without-history":
                # By chance, the real controller releases twice, from a stale cache, and leaves the address free.
                wanted["pool"] |= {"allocated": {"pool-11": "NS/lb"}, "history": {}, "available": 2}
            message = wanted["lb"]["message"]
            if message.startswith("requested IP"):
                # Only 1.5 leaves out the name of the pool, which is not modelled.
                wanted["lb"] = wanted["lb"] | {"message": f"fail to get ip from pool NS, error: {message}"}
            await settled(running, wanted, set())


@pytest.mark.parametrize(("release", "seen"), of_releases(LIVES))
@pytest.mark.parametrize("ipam", ["pool", "dhcp"])
async def test_life_of_a_load_balancer(place: Place, release: str, seen: list[Record], ipam: str) -> None:
    async with replay(place, release) as running:
        await running.create_pool({}, {})
        await running.sim.heard(kinds.IP_POOLS)
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


@pytest.mark.timing
async def test_upgrade_of_a_single_machine_loses_its_endpoint_for_one_period(place: Place) -> None:
    """The old machine leaves at the moment in which the new one answers: the worst case."""
    spec = load_balancer_spec({"loadBalancerConfig": {"ipamType": "dhcp"}}, {})
    period = spec["healthCheck"]["periodSeconds"] * SCALE
    async with replay(place, NEWEST_STABLE) as running:
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
