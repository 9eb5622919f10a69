"""Services of guests get addresses, with the VMs of the provider and on each release of Harvester."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from caphv.api.object import Obj, uid_of
from sandbox.harvester import kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.processes import network
from sandbox.processes.apiserver import ApiServer, Token
from tests.support.reconciler.case import Case
from tests.support.reconciler.environment import IDENTITY_TOKEN, TIMES, Environment
from tests.support.simulation import Place, simulation

pytestmark = pytest.mark.integration

CREATOR, GUEST = "harvesterhci.io/creator", "guestcluster.harvesterhci.io/name"
RELEASES = [
    pytest.param(release, marks=[] if release == "1.8.0" else pytest.mark.long)
    for release in ("1.5", "1.6", "1.7", "1.8.0", "1.8", "1.9")
]


@asynccontextmanager
async def on_release(environment: Environment, release: str) -> AsyncIterator[Case]:
    """A case on a Harvester of its own; at the end nothing of it may be left there."""
    name = f"on-{release.replace('.', '-')}"
    identity = Token(IDENTITY_TOKEN, "caphv", ("system:masters",))
    server = ApiServer(environment.folder, name, audit=True, tokens=[identity], service_range="10.54.0.0/16")
    await server.start()
    try:
        with network.claim() as (claimed, _):
            settings = {**TIMES, "harvester": release}
            async with simulation(Place(server, str(claimed)), "unused", **settings):
                world = SimulatorConfig.from_settings(str(claimed), settings)
                case = Case(dataclasses.replace(environment, harvester=server, world=world), 1, name)
                await case.open()
                try:
                    yield case
                    assert await case.remove() == []
                finally:
                    await case.close()
    finally:
        await server.stop()


async def pool_of_guests(case: Case, number: int, selected: str) -> str:
    """An IPPool for guests of the target namespace, with a network or none."""
    prefix = case.environment.world.network.removesuffix(".0.0/16")
    name = f"{case.name}-guests-{number}"
    ranges = {
        "subnet": f"{prefix}.0.0/17",
        "rangeStart": f"{prefix}.110.{number}0",
        "rangeEnd": f"{prefix}.110.{number}9",
    }
    scope = {"namespace": case.target, "project": "*", "guestCluster": "*"}
    spec = {"ranges": [ranges], "selector": {"network": selected, "scope": [scope]}}
    status = {"total": 10, "available": 10, "lastAllocated": ""}
    await case.harvester.create(
        kinds.IP_POOLS, kinds.typed(kinds.IP_POOLS, {"metadata": {"name": name}, "spec": spec, "status": status})
    )
    return name


async def service(case: Case, name: str, **spec: Any) -> Obj:
    """The LoadBalancer that a cloud provider in the guest creates for a Service, with its outcome."""
    metadata = {
        "name": name,
        "namespace": case.target,
        "labels": {"cloudprovider.harvesterhci.io/cluster": case.name},
        "annotations": {"loadbalancer.harvesterhci.io/cluster": case.name},
    }
    balancer = {"metadata": metadata, "spec": {"workloadType": "cluster", "ipam": "pool", **spec}}
    await case.harvester.create(kinds.LOAD_BALANCERS, kinds.typed(kinds.LOAD_BALANCERS, balancer))
    return await case.until(kinds.LOAD_BALANCERS, name, lambda obj: (obj.get("status") or {}).get("conditions"))


async def remove(case: Case, name: str) -> None:
    await case.ask_deletion(kinds.LOAD_BALANCERS, name)
    await case.until_gone(kinds.LOAD_BALANCERS, name)


def allocated(balancer: Obj) -> Obj:
    found: Obj = balancer["status"].get("allocatedAddress") or {}
    return found


@pytest.mark.parametrize("release", RELEASES)
async def test_services_of_a_guest_get_addresses(environment: Environment, release: str) -> None:
    async with on_release(environment, release) as case:
        await case.ready_cluster()
        name = f"{case.name}-worker"
        await case.ready_machine(name)
        vm, instance = await case.vm(name), await case.get(kinds.INSTANCES, name)
        assert vm["metadata"]["labels"][GUEST] == case.name
        zones = {host.zone for host in case.environment.world.hosts}
        zoned = await case.until(
            kinds.INSTANCES, name, lambda obj: "topology.kubernetes.io/zone" in str(obj["metadata"])
        )
        assert zoned["metadata"]["annotations"]["topology.kubernetes.io/zone"] in zones
        assert allocated(await service(case, "by-dhcp", ipam="dhcp"))["ip"] == "0.0.0.0"

        # A pool without a network serves a guest whose instances hide theirs.
        anywhere = await pool_of_guests(case, 1, "")
        await case.until(kinds.INSTANCES, name, lambda obj: GUEST not in obj["metadata"]["labels"])
        assert allocated(await service(case, "first"))["ipPool"] == anywhere

        # A pool of the network of the VMs comes, and instances show theirs again.
        vlan = await pool_of_guests(case, 2, "default/production")
        await case.until(kinds.INSTANCES, name, lambda obj: obj["metadata"]["labels"].get(GUEST) == case.name)
        assert allocated(await service(case, "second"))["ipPool"] == vlan

        # Nothing restarted, and each address returns to its pool.
        assert uid_of(await case.get(kinds.INSTANCES, name)) == uid_of(instance)
        for balancer in ("by-dhcp", "first", "second"):
            await remove(case, balancer)
        for pool in (anywhere, vlan):
            assert await case.allocated(pool) == {}
            await case.harvester.delete(kinds.IP_POOLS, pool)
