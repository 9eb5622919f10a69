"""A cluster whose machines have addresses of an IPAM provider: created, upgraded and deleted, for both families."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from caphv.api.object import NODES, SECRETS, Obj, at
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox.cluster import LATER_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support import ipam
from tests.support.ipam import IpamProvider, Pool
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

NAME = "ipam"


@pytest.mark.timeout(600)
async def test_nodes_have_the_addresses_of_the_pools_and_return_them(box: Sandbox) -> None:
    network = box.status()["network"]
    prefix = network.removesuffix(".0.0/16")
    settings = ipam.interface("v4", "v6", dnsServers=["9.9.9.9"])
    spec = ClusterSpec(control_planes=1, workers=2, machines=(), variables={"networkInterfaces": [settings]})
    spec = replace(in_network(spec, network), name=NAME, namespace=NAME, target_namespace=NAME)
    scenario = Scenario(box.folder, spec, timeout=180)
    # One more than there are machines, for the upgrade.
    v4 = Pool([f"{prefix}.60.{host}" for host in range(1, 6)], 17, f"{prefix}.0.1")
    v6 = Pool([f"fd00::60:{host}" for host in range(1, 6)], 64, "fd00::1")
    provider = IpamProvider(scenario.management, NAME, v4=v4, v6=v6)
    async with scenario.watching(), provider.running():
        await scenario.create()
        await scenario.bring_up()
        await until(lambda: have_claimed_addresses(scenario, provider, 3), "Nodes have the addresses")
        first = set(v4.used)

        await scenario.upgrade(LATER_VERSION)
        await until(lambda: len(v4.used) == len(v6.used) == 3, "addresses of replaced machines are free", 60)
        await until(lambda: have_claimed_addresses(scenario, provider, 3), "Nodes have the addresses")
        assert set(v4.used) != first

        await scenario.delete()
        await until(lambda: has_no_claims(scenario), "all claims are deleted", 60)
        assert not v4.used
        assert not v6.used
        assert await scenario.leftovers() == []


async def has_no_claims(scenario: Scenario) -> bool:
    return not (await scenario.management.list(ipam.CLAIMS, NAME))["items"]


async def have_claimed_addresses(scenario: Scenario, provider: IpamProvider, count: int) -> bool:
    """Whether so many machines and their Nodes have an address of each pool, the one of their claim."""
    machines = list(scenario.view.harvester_machines.store)
    return len(machines) == count and all([await has_claimed(scenario, provider, machine) for machine in machines])


async def has_claimed(scenario: Scenario, provider: IpamProvider, machine: Obj) -> bool:
    name = machine["metadata"]["name"]
    claimed = [
        address
        for index, pool in enumerate(provider.pools.values())
        for address, claim in pool.used.items()
        if claim == f"{name}-0-{index}"
    ]
    nodes = await nodes_of(scenario)
    listed = [*(at(machine, "status", "addresses") or ()), *(at(nodes.get(name), "status", "addresses") or ())]
    internal = [entry["address"] for entry in listed if entry["type"] == "InternalIP"]
    return len(claimed) == len(provider.pools) and internal == [*claimed, *claimed]


async def nodes_of(scenario: Scenario) -> dict[str, Obj]:
    """The Nodes of the cluster by name."""
    secret = await scenario.management.get(SECRETS, f"{NAME}-kubeconfig", NAME)
    workload = parse_kubeconfig(base64.b64decode(secret["data"]["value"])).client(name="workload")
    try:
        return {node["metadata"]["name"]: node for node in (await workload.list(NODES))["items"]}
    finally:
        await workload.close()
