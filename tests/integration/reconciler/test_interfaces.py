"""Machines with MTU, routes, static addresses and addresses of IPPools of single interfaces."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj, uid_of
from sandbox.harvester import kinds
from tests.support import ipam
from tests.support.ipam import IpamProvider, Pool
from tests.support.reconciler.case import AT_ONCE, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import is_false, is_ready, is_true

pytestmark = pytest.mark.integration

NETWORKS = ["default/production", "default/storage"]


def pooled(*pools: str, network: str = "default/storage", **settings: object) -> Obj:
    listed = [{"apiGroup": "loadbalancer.harvesterhci.io", "kind": "IPPool", "name": name} for name in pools]
    return {"network": network, "addressesFromPools": listed, **settings}


async def nics(case: Case, name: str) -> list[Obj]:
    _, network_data = await case.user_data(name)
    return [entry for entry in network_data["config"] if entry["type"] == "physical"]


async def test_guest_has_static_addresses_mtu_and_routes_of_its_interfaces(case: Case) -> None:
    await case.ready_cluster()
    v4, v6 = f"{case.subnet}.30", f"fd00::{case.number}:30"
    first = {
        "network": "default/production",
        "addresses": [{"address": f"{v4}/17", "gateway": case.gateway}, {"address": f"{v6}/64"}],
        "routes": [
            {"to": "10.20.0.0/16", "via": f"{case.subnet}.254", "metric": 50},
            {"to": "fd01::/48", "via": "fe80::1"},
        ],
    }
    settings = [{"network": "default/storage", "mtu": 9000}, first]
    machine = await case.ready_machine("one", networks=NETWORKS, networkInterfaces=settings)
    await case.until(HARVESTER_MACHINES, "one", is_true("VMIPAllocated"))
    await case.until(HARVESTER_MACHINES, "one", is_true("VMUpToDate"))
    reported = [entry["address"] for entry in machine["status"]["addresses"] if entry["type"] == "InternalIP"]
    assert reported[:2] == [v4, v6]

    vm = await case.vm("one")
    macs = [nic["macAddress"] for nic in vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"]]
    assert await nics(case, "one") == [
        {
            "type": "physical",
            "name": "eth0",
            "mac_address": macs[0],
            "subnets": [
                {
                    "type": "static",
                    "address": f"{v4}/17",
                    "gateway": case.gateway,
                    "routes": [{"destination": "10.20.0.0/16", "gateway": f"{case.subnet}.254", "metric": 50}],
                },
                {
                    "type": "static6",
                    "address": f"{v6}/64",
                    "routes": [{"destination": "fd01::/48", "gateway": "fe80::1"}],
                },
            ],
        },
        {"type": "physical", "name": "eth1", "mac_address": macs[1], "mtu": 9000, "subnets": [{"type": "dhcp"}]},
    ]
    await case.delete_machine("one")


async def test_route_that_the_guest_could_not_have_stops_its_creation(case: Case) -> None:
    await case.ready_cluster()
    route = {"to": "10.20.0.0/16", "via": f"{case.subnet}.254"}
    settings = [{"network": "default/production", "routes": [route]}]
    await case.create_machine("one", networkInterfaces=settings)
    text = (
        "cannot create cloud-init data: the interface on network 1 of networks: its route to 10.20.0.0/16 via "
        f"{case.subnet}.254 needs an IPv4 address of this interface"
    )
    await case.until(HARVESTER_MACHINES, "one", is_false("InfrastructureReady", "VMProvisioningFailed", text))
    await case.delete_machine("one")


async def test_each_interface_has_an_address_of_its_own_pool_and_returns_it(case: Case) -> None:
    first, second = await case.pool("first", 1, 3), await case.storage_pool("second", 5, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(first))
    route = {"to": "10.20.0.0/16", "via": f"{case.storage_subnet}.254"}
    settings = pooled(second, mtu=9000, routes=[route])
    one = await case.ready_machine("one", networks=NETWORKS, networkInterfaces=[settings])
    of_first, of_second = f"{case.subnet}.1", f"{case.storage_subnet}.5"
    assert one["status"]["allocatedIPAddress"] == of_first
    entry = {"address": of_second, "network": "default/storage", "pool": second}
    assert one["status"]["interfaceAddresses"] == [entry]
    assert await case.allocated(first) == {of_first: f"{case.name}/one"}
    assert await case.allocated(second) == {of_second: f"{case.name}/one.1-0"}
    reported = [entry["address"] for entry in one["status"]["addresses"] if entry["type"] == "InternalIP"]
    assert reported == [of_first, of_second]
    _, nic = await nics(case, "one")
    assert (nic["mtu"], nic["subnets"]) == (
        9000,
        [
            {
                "type": "static",
                "address": f"{of_second}/17",
                "routes": [{"destination": "10.20.0.0/16", "gateway": f"{case.storage_subnet}.254"}],
            }
        ],
    )

    # The next machine waits for the address, although the pool of its first interface has one.
    await case.create_machine("two", networks=NETWORKS, networkInterfaces=[pooled(second)])
    await case.until(HARVESTER_MACHINES, "two", is_false("VMIPAllocated", "VMIPPoolExhausted", second))
    await case.delete_machine("one")
    two = await case.until(HARVESTER_MACHINES, "two", is_ready, timeout=60)
    assert [entry["address"] for entry in two["status"]["interfaceAddresses"]] == [of_second]
    assert await case.allocated(second) == {of_second: f"{case.name}/two.1-0"}
    await case.delete_machine("two")
    assert (await case.allocated(first), await case.allocated(second)) == ({}, {})


async def test_first_interface_from_two_pools_next_to_claims_of_the_second(case: Case) -> None:
    await ipam.install(case.management)
    pool = await case.pool("pool", 1, 9)
    await case.ready_cluster()
    v6 = Pool([f"fd00::{case.number}:7"], 64, "fd00::1")
    async with IpamProvider(case.management, case.name, v6=v6).running():
        interface = pooled(pool, network="default/production")
        interface["addressesFromPools"].append(ipam.pool_reference("v6"))
        one = await case.ready_machine("one", networkInterfaces=[interface])
        assert "allocatedIPAddress" not in one["status"]
        (nic,) = await nics(case, "one")
        assert nic["subnets"] == [
            {"type": "static6", "address": f"fd00::{case.number}:7/64", "gateway": "fd00::1"},
            {"type": "static", "address": f"{case.subnet}.1/17", "gateway": case.gateway},
        ]
        assert list(await ipam.claims_of(case.management, case.name)) == ["one-0-1"]
        assert await case.allocated(pool) == {f"{case.subnet}.1": f"{case.name}/one.0-0"}
        await case.delete_machine("one")
        assert await case.allocated(pool) == {}


async def test_entry_of_an_interface_that_vanished_is_reserved_again(case: Case) -> None:
    pool = await case.storage_pool("pool", 1, 9)
    await case.ready_cluster()
    one = await case.ready_machine("one", networks=NETWORKS, networkInterfaces=[pooled(pool)])
    (entry,) = one["status"]["interfaceAddresses"]
    held = {entry["address"]: f"{case.name}/one.1-0"}
    await case.reserve(pool, entry["address"], None)
    await case.until(kinds.IP_POOLS, pool, lambda obj: obj["status"]["allocated"] == held, timeout=AT_ONCE)
    await case.until_event("one", "Normal", "AddressReservedAgain")

    # As after `clusterctl move`, which takes no status along.
    lost = {"status": {"interfaceAddresses": None}}
    await case.management.patch(HARVESTER_MACHINES, "one", case.name, lost, subresource="status")
    await case.patch(HARVESTER_MACHINES, "one", {"metadata": {"annotations": {"example.com/look": "again"}}})
    await case.until(HARVESTER_MACHINES, "one", lambda obj: obj["status"].get("interfaceAddresses") == [entry])

    # Another holder of the address of a running VM is reported.
    await case.reserve(pool, entry["address"], "team/other")
    text = f"address {entry['address']} of {case.name}/one.1-0 is held by team/other in IPPool {pool}"
    vm = await case.vm("one")
    machine = await case.until(HARVESTER_MACHINES, "one", is_false("VMIPAllocated", "VMIPAllocationFailed", text))
    assert is_ready(machine)
    assert uid_of(await case.vm("one")) == uid_of(vm)
    await case.reserve(pool, entry["address"], f"{case.name}/one.1-0")
    await case.until(HARVESTER_MACHINES, "one", is_true("VMIPAllocated"))
    await case.delete_machine("one")
    assert await case.allocated(pool) == {}


async def test_pool_of_another_network_or_none_is_named(case: Case) -> None:
    pool = await case.storage_pool("pool", 1, 9)
    await case.ready_cluster()
    settings = [pooled(pool, network="default/production"), pooled("absent")]
    await case.create_machine("one", networks=NETWORKS, networkInterfaces=settings)
    text = f"IPPool {pool} serves network default/storage only, not default/production: name another pool"
    await case.until(HARVESTER_MACHINES, "one", is_false("VMIPAllocated", "VMIPAllocationFailed", text))
    text = "IPPool absent does not exist on Harvester: create it there, or name another"
    await case.until(HARVESTER_MACHINES, "one", is_false("VMIPAllocated", "VMIPAllocationFailed", text))
    await case.delete_machine("one")
    assert await case.allocated(pool) == {}
