"""Where machines get their addresses from: pools in order, history, static configuration, DHCP."""

from __future__ import annotations

import pytest

from caphv.api.object import NAMESPACES, Obj
from sandbox.harvester import kinds
from tests.support.reconciler.case import AT_ONCE, HARVESTER_MACHINES, MASK, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true

pytestmark = pytest.mark.integration


def address_of(machine: Obj) -> str:
    status = machine["status"]
    half = len(status["addresses"]) // 2
    assert [entry["type"] for entry in status["addresses"]] == ["ExternalIP"] * half + ["InternalIP"] * half
    return status["addresses"][0]["address"]


async def test_pools_are_used_in_order_and_the_next_when_one_is_full(case: Case) -> None:
    small, large = await case.pool("small", 1, 1), await case.pool("large", 11, 20)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(small, large, dnsServers=["9.9.9.9"]))
    one = await case.ready_machine("one")
    two = await case.ready_machine("two")
    for machine, pool, address in ((one, small, f"{case.subnet}.1"), (two, large, f"{case.subnet}.11")):
        name = machine["metadata"]["name"]
        assert (machine["status"]["allocatedIPAddress"], machine["status"]["allocatedPoolRef"]) == (address, pool)
        assert address_of(machine) == address
        assert is_true("VMIPAllocated")(machine)
        assert await case.allocated(pool) == {address: f"{case.name}/{name}"}
    found = await case.harvester.get(kinds.IP_POOLS, small)
    assert (found["status"]["available"], found["status"]["lastAllocated"]) == (0, f"{case.subnet}.1")
    _, network = await case.user_data("one")
    static = {"type": "static", "address": f"{case.subnet}.1", "netmask": MASK, "gateway": case.gateway}
    assert network["config"][0]["subnets"] == [static]
    assert network["config"][1] == {"type": "nameserver", "address": ["9.9.9.9"]}


async def test_pool_of_another_network_is_passed_over(case: Case) -> None:
    other = await case.pool("other", 1, 5, network="default/storage")
    same = await case.pool("same", 11, 15, network="default/production")
    await case.ready_cluster(vmNetworkConfig=case.vm_network(other, same))
    machine = await case.ready_machine("one")
    assert machine["status"]["allocatedPoolRef"] == same
    assert await case.allocated(other) == {}


async def test_bare_network_is_one_of_the_target_namespace(case: Case) -> None:
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    network = await case.harvester.get(kinds.NETWORKS, "production", "default")
    metadata = {"name": "own", "namespace": case.target, "annotations": network["metadata"]["annotations"]}
    await case.harvester.create(kinds.NETWORKS, {**network, "metadata": metadata})
    bounds = {"rangeStart": f"{case.subnet}.1", "rangeEnd": f"{case.subnet}.5", "gateway": case.gateway}
    described = {"subnet": f"{case.environment.prefix}.0.0/17", **bounds, "vmNetwork": "own"}
    await case.ready_cluster(
        vmNetworkConfig={"ipPool": described, "gateway": case.gateway, "subnetMask": "255.255.128.0"}
    )
    machine = await case.ready_machine("one", networks=["own"])
    assert is_true("VMUpToDate")(machine)
    (found,) = (await case.vm("one"))["spec"]["template"]["spec"]["networks"]
    assert found["multus"] == {"networkName": f"{case.target}/own"}
    pool = await case.harvester.get(kinds.IP_POOLS, machine["status"]["allocatedPoolRef"])
    assert pool["spec"]["selector"] == {"network": f"{case.target}/own"}
    # As the Go provider wrote it: the same network, and no difference.
    bare = {"spec": {"template": {"spec": {"networks": [{**found, "multus": {"networkName": "own"}}]}}}}
    await case.patch(kinds.VIRTUAL_MACHINES, "one", bare)
    await case.patch(HARVESTER_MACHINES, "one", {"spec": {"cpu": 4}})
    says = is_false("VMUpToDate", "VMDiffers", "cores is 2, not 4")
    differing = await case.until(HARVESTER_MACHINES, "one", says)
    assert "networks" not in condition_of(differing, "VMUpToDate")["message"]


async def test_machine_has_pools_of_its_own(case: Case) -> None:
    common, own = await case.pool("common", 1, 5), await case.pool("own", 11, 15)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(common))
    machine = await case.ready_machine("one", vmNetworkConfig=case.vm_network(own))
    assert machine["status"]["allocatedPoolRef"] == own


async def test_address_that_the_pool_holds_for_the_machine_is_adopted(case: Case) -> None:
    first, second = await case.pool("first", 1, 5), await case.pool("second", 11, 15)
    await case.reserve(second, f"{case.subnet}.13", f"{case.name}/one")
    await case.ready_cluster(vmNetworkConfig=case.vm_network(first, second))
    machine = await case.ready_machine("one")
    assert address_of(machine) == machine["status"]["allocatedIPAddress"] == f"{case.subnet}.13"
    assert await case.allocated(first) == {}


async def test_machine_of_the_same_name_gets_the_address_it_had(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.ready_machine("one")
    had = (await case.ready_machine("two"))["status"]["allocatedIPAddress"]
    await case.delete_machine("one")
    await case.delete_machine("two")
    found = await case.harvester.get(kinds.IP_POOLS, pool)
    assert found["status"]["allocatedHistory"][had] == f"{case.name}/two"
    assert found["status"]["available"] == 5
    assert (await case.ready_machine("two"))["status"]["allocatedIPAddress"] == had


async def test_exhausted_pool_is_reported_and_a_freed_address_taken_at_once(case: Case) -> None:
    pool = await case.pool("pool", 1, 2)
    await case.reserve(pool, f"{case.subnet}.1", "another/owner")
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.ready_machine("one")
    await case.create_machine("two")
    says = is_false("VMIPAllocated", "VMIPPoolExhausted", pool)
    waiting = await case.until(HARVESTER_MACHINES, "two", says)
    assert is_false("Ready", "VMIPPoolExhausted")(waiting)
    assert await case.names(kinds.VIRTUAL_MACHINES) == ["one"]
    await case.until_event("two", "Warning", "VMIPPoolExhausted")
    await case.reserve(pool, f"{case.subnet}.1", None)
    await case.vm("two", timeout=AT_ONCE)
    machine = await case.until(HARVESTER_MACHINES, "two", is_ready)
    assert address_of(machine) == f"{case.subnet}.1"


async def drop_entry(case: Case, pool: str, address: str) -> None:
    """Remove an entry as a user does who edits the pool."""
    await case.reserve(pool, address, None)
    await case.patch(kinds.IP_POOLS, pool, {"status": {"allocatedHistory": {address: None}}})


async def test_address_whose_entry_vanished_is_reserved_again(case: Case) -> None:
    pool = await case.pool("pool", 1, 2)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    one = await case.ready_machine("one")
    address = one["status"]["allocatedIPAddress"]
    await drop_entry(case, pool, address)
    await case.until(
        kinds.IP_POOLS, pool, lambda obj: obj["status"]["allocated"] == {address: f"{case.name}/one"}, timeout=AT_ONCE
    )
    await case.until_event("one", "Normal", "AddressReservedAgain")
    two = await case.ready_machine("two")
    assert two["status"]["allocatedIPAddress"] != address
    found = await case.harvester.get(kinds.IP_POOLS, pool)
    assert (found["status"]["total"], found["status"]["available"]) == (2, 0)
    assert (await case.get(HARVESTER_MACHINES, "one"))["status"]["allocatedIPAddress"] == address


async def test_address_of_a_vm_without_an_entry_goes_to_no_new_machine(case: Case) -> None:
    pool = await case.pool("pool", 1, 2)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    address = (await case.ready_machine("one"))["status"]["allocatedIPAddress"]
    # Nothing reserves it again: neither the paused machine, nor after the loss of its status.
    await case.pause_object(HARVESTER_MACHINES, "one", paused=True)
    await case.until(HARVESTER_MACHINES, "one", is_true("Paused"))
    lost = {"status": {"allocatedIPAddress": None}}
    await case.management.patch(HARVESTER_MACHINES, "one", case.name, lost, subresource="status")
    await drop_entry(case, pool, address)
    two = await case.ready_machine("two")
    assert two["status"]["allocatedIPAddress"] == f"{case.subnet}.2" != address
    # The VM of the third one waits until the first has gone.
    await case.create_machine("three")
    await case.until(HARVESTER_MACHINES, "three", is_false("VMIPAllocated", "VMIPPoolExhausted", pool))
    await case.pause_object(HARVESTER_MACHINES, "one", paused=False)
    await case.delete_machine("one")
    three = await case.until(HARVESTER_MACHINES, "three", is_ready)
    assert three["status"]["allocatedIPAddress"] == address


async def test_machine_that_waits_for_bootstrap_data_leaves_its_address_to_others(case: Case) -> None:
    pool = await case.pool("pool", 1, 1)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    for name, bootstrap in (("unnamed", None), ("absent", "later")):
        await case.create_machine(name, bootstrap=bootstrap)
        await case.until(HARVESTER_MACHINES, name, is_false("Ready", "InfrastructureProvisioningInProgress"))
    assert await case.allocated(pool) == {}
    assert (await case.ready_machine("one"))["status"]["allocatedIPAddress"] == f"{case.subnet}.1"


async def test_static_address_inside_a_pool_goes_to_no_other_machine(case: Case) -> None:
    pool = await case.pool("pool", 1, 2)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    static = {"address": f"{case.subnet}.1", "gateway": case.gateway}
    # It has no VM yet: its bootstrap data is missing.
    await case.create_machine("static", bootstrap=None, networkConfig=static)
    await case.until(HARVESTER_MACHINES, "static", lambda obj: obj.get("status"))
    assert (await case.ready_machine("one"))["status"]["allocatedIPAddress"] == f"{case.subnet}.2"


async def test_external_endpoint_inside_a_pool_goes_to_no_machine(case: Case) -> None:
    pool = await case.pool("pool", 1, 2)
    await case.ready_cluster(
        vmNetworkConfig=case.vm_network(pool),
        loadBalancerConfig={"ipamType": "none"},
        controlPlaneEndpoint={"host": f"{case.subnet}.1", "port": 6443},
    )
    assert (await case.ready_machine("one"))["status"]["allocatedIPAddress"] == f"{case.subnet}.2"
    assert (await case.allocated(pool)).keys() == {f"{case.subnet}.2"}


async def test_address_of_an_external_endpoint_is_free_once_its_cluster_is_deleted(case: Case, other: Case) -> None:
    pool = await case.pool("pool", 1, 1)
    endpoint = {"host": f"{case.subnet}.1", "port": 6443}
    await other.ready_cluster(loadBalancerConfig={"ipamType": "none"}, controlPlaneEndpoint=endpoint)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.create_machine("one")
    await case.until(HARVESTER_MACHINES, "one", is_false("VMIPAllocated", "VMIPPoolExhausted", pool))

    await other.delete()
    await case.vm("one", timeout=AT_ONCE)
    assert address_of(await case.until(HARVESTER_MACHINES, "one", is_ready)) == f"{case.subnet}.1"


async def test_address_that_another_id_got_is_reported_and_nothing_else_changes(case: Case) -> None:
    pool = await case.pool("pool", 1, 2)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    address = (await case.ready_machine("one"))["status"]["allocatedIPAddress"]
    await case.reserve(pool, address, "another/owner")
    says = is_false("VMIPAllocated", "VMIPAllocationFailed", "is held by another/owner")
    reported = await case.until(HARVESTER_MACHINES, "one", says, timeout=AT_ONCE)
    assert is_ready(reported)
    assert reported["status"]["allocatedIPAddress"] == address
    await case.until_event("one", "Warning", "VMIPAllocationFailed")
    await case.reserve(pool, address, None)
    await case.until(HARVESTER_MACHINES, "one", is_true("VMIPAllocated"), timeout=AT_ONCE)
    assert await case.allocated(pool) == {address: f"{case.name}/one"}
    await case.patch(kinds.IP_POOLS, pool, {"status": {"available": 1}})


async def test_machines_that_come_together_get_different_addresses(case: Case) -> None:
    pool = await case.pool("pool", 1, 8)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    names = [f"m-{number}" for number in range(8)]
    for name in names:
        await case.create_machine(name)
    machines = [await case.until(HARVESTER_MACHINES, name, is_ready) for name in names]
    allocated = await case.allocated(pool)
    assert {address_of(machine) for machine in machines} == set(allocated)
    assert sorted(allocated.values()) == [f"{case.name}/{name}" for name in names]
    assert (await case.harvester.get(kinds.IP_POOLS, pool))["status"]["available"] == 0


async def test_static_address_takes_its_mask_from_the_cluster(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    address = f"{case.subnet}.200"
    static = {"address": address, "gateway": case.gateway, "dnsServers": ["9.9.9.9"]}
    machine = await case.ready_machine("one", networkConfig=static)
    assert address_of(machine) == address
    assert is_true("VMIPAllocated")(machine)
    assert await case.allocated(pool) == {}
    _, network = await case.user_data("one")
    assert network["config"][0]["subnets"][0]["netmask"] == MASK


async def test_without_configuration_the_guest_asks_dhcp(case: Case) -> None:
    await case.ready_cluster()
    machine = await case.ready_machine("one")
    assert address_of(machine).split(".")[2] in map(str, range(32, 48))
    assert "allocatedIPAddress" not in machine["status"]
    user, network = await case.user_data("one")
    assert network == {}
    assert "dhclient" in str(user["bootcmd"])
    assert "eth0" in str(user["bootcmd"])


async def test_second_interface_asks_dhcp_next_to_the_pool(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    machine = await case.ready_machine("one", networks=["default/production", "default/storage"])
    assert address_of(machine) == f"{case.subnet}.1"
    types = [address["type"] for address in machine["status"]["addresses"]]
    assert types == ["ExternalIP", "ExternalIP", "InternalIP", "InternalIP"]
    user, network = await case.user_data("one")
    assert [entry["subnets"][0]["type"] for entry in network["config"]] == ["static", "dhcp"]
    assert "eth1" in str(user["bootcmd"])
    vm = await case.vm("one")
    networks = vm["spec"]["template"]["spec"]["networks"]
    assert [(entry["name"], entry["multus"]["networkName"]) for entry in networks] == [
        ("nic-1", "default/production"),
        ("nic-2", "default/storage"),
    ]
