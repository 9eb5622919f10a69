"""LoadBalancers of the provider do on the simulated Harvester what they did with the real controller.

What the controller got is computed again, by the functions of the provider: who changes them learns that the records
are of other objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.object import SERVICES, Obj, annotations_of
from caphv.api.ownership import Owner, record
from caphv.runtime.errors import AlreadyExists
from reconciler.cluster.endpoint import placeholder_service
from reconciler.cluster.loadbalancer import load_balancer_spec
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester import addressplan
from sandbox.harvester import kinds
from sandbox.processes import network
from sandbox.processes.apiserver import ApiServer
from tests.support.balancers import Replay, last, of_releases, replay, settled
from tests.support.observed import Record
from tests.support.simulation import Place

pytestmark = pytest.mark.integration

FILES = {
    "1.5": "harvester-load-balancer-harvester/provider-v1.5.2.yaml",
    "1.6": "harvester-load-balancer-harvester/provider-v1.6.1.yaml",
    "1.7": "harvester-load-balancer-harvester/provider-v1.7.1.yaml",
    "1.8": "harvester-load-balancer-harvester/provider.yaml",
    "1.9": "harvester-load-balancer-harvester/provider-v1.9.0-rc4.yaml",
}
OWNER = Owner("HarvesterCluster", "team", "prod", "u1", "mgmt")
SELECTOR = {"harvestercluster/machinetype": ["controlplane-prod"], "caphv.io/cluster": ["team.prod"]}


@pytest.fixture(scope="module")
def place(etcd_folder: Path) -> Iterator[Place]:
    """An API server of this module: the webhooks of the simulation stay on it."""
    server = ApiServer(etcd_folder, "observed-provider")
    asyncio.run(server.start())
    with network.claim() as (claimed, _):
        yield Place(server, str(claimed))
    asyncio.run(server.stop())


def balancer(mode: str, namespace: str, pool: str) -> Obj:
    config = {"ipamType": mode, **({"ipPoolRef": pool} if mode == "pool" else {})}
    metadata = {"name": "lb", "namespace": namespace, "annotations": record(OWNER)}
    return {"metadata": metadata, "spec": load_balancer_spec({"loadBalancerConfig": config}, SELECTOR)}


class Provider:
    """Reserves, creates and deletes as the provider does; `host` is the address of the endpoint."""

    def __init__(self, running: Replay, mode: str) -> None:
        self._running, self._mode = running, mode
        self._client, self._namespace = running.sim.client, running.namespace
        self._host = ""

    async def reserve(self) -> None:
        if self._mode == "pool":
            pool = await self._client.get(kinds.IP_POOLS, self._running.pool)
            holder = f"{self._namespace}/lb"
            request = addressplan.AddressRequest(
                holder, (self._running.pool,), self._host, cluster="mgmt", load_balancer=True
            )
            plan = addressplan.plan_allocations({self._running.pool: pool}, [request])
            self._host = plan.grants[holder].address
            for name, patch in plan.patches.items():
                await self._client.patch(kinds.IP_POOLS, name, "", patch)

    async def prepare(self) -> None:
        """Reserve the address, and write the Service that announces it before any machine exists."""
        await self.reserve()
        scope = SimpleNamespace(load_balancer_name="lb", target_namespace=self._namespace, owner=OWNER)
        service = placeholder_service(cast(ClusterScope, scope), self._host or "0.0.0.0")
        with suppress(AlreadyExists):
            await self._client.create(SERVICES, service)

    async def create(self) -> None:
        obj = balancer(self._mode, self._namespace, self._running.pool)
        await self._client.create(kinds.LOAD_BALANCERS, kinds.typed(kinds.LOAD_BALANCERS, obj))

    async def create_again(self) -> None:
        await self.reserve()
        await self.create()

    async def delete(self) -> None:
        await self._client.delete(kinds.LOAD_BALANCERS, "lb", self._namespace)
        await self._running.sim.until_gone(kinds.LOAD_BALANCERS, "lb")

    async def delete_and_create_again(self) -> None:
        await self.delete()
        await self.create_again()


@pytest.mark.parametrize(("release", "seen"), of_releases(FILES))
@pytest.mark.parametrize("mode", ["pool", "dhcp"])
async def test_load_balancer_of_a_cluster(place: Place, release: str, seen: list[Record], mode: str) -> None:
    async with replay(place, release) as running:
        await running.create_pool({}, {})
        await running.sim.heard(kinds.IP_POOLS)
        provider = Provider(running, mode)
        await running.create_instance("one", {name: values[0] for name, values in SELECTOR.items()})
        await running.report_address("one", "guest-1")
        steps: dict[str, Callable[[], Any]] = {
            "reserved": provider.prepare,
            "created": provider.create,
            "guest listens": lambda: running.listen("guest-1"),
            "deleted by hand": provider.delete,
            "created again": provider.create_again,
            "deleted by hand and created again at once": provider.delete_and_create_again,
            "deleted with the cluster": provider.delete,
        }
        wanted, reached = await running.state(), set[str]()
        for entry in (entry for entry in seen if entry.input.get("step") and entry.input["ipam"] == mode):
            await steps[entry.input["step"]]()
            wanted = {kind: last(entry.outcome, kind, state) for kind, state in wanted.items()}
            endpoints = last(entry.outcome, "endpoints", None)
            if endpoints is not None:
                reached = {address for address, healthy in endpoints if healthy and "guest" in address}
            if wanted["lb"] is None:
                # The Service and its endpoints stay; only the simulated data path ends with the LoadBalancer.
                state = await running.state()
                assert (state["lb"], state["pool"]) == (None, wanted["pool"])
                continue
            await settled(running, wanted, reached)


@pytest.mark.parametrize(("release", "seen"), of_releases(FILES))
async def test_webhook_admits_it(place: Place, release: str, seen: list[Record]) -> None:
    async with replay(place, release) as running:
        await running.create_pool({}, {})
        for entry in (entry for entry in seen if "loadBalancer" in entry.input):
            given = balancer(entry.input["ipam"], "NS", "NS")
            assert given == entry.input["loadBalancer"], "the record is of another LoadBalancer: compare again"
            assert entry.outcome["admitted"]

            obj = balancer(entry.input["ipam"], running.namespace, running.pool)
            made = await running.sim.client.create(
                kinds.LOAD_BALANCERS, kinds.typed(kinds.LOAD_BALANCERS, obj), dry_run=True
            )
            expected = {**record(OWNER), **entry.outcome["annotations"]}
            assert {name: value.replace(running.namespace, "NS") for name, value in annotations_of(made).items()} == (
                expected
            )
