"""Machines with addresses of IPAM providers: claimed before their VM exists, released after it."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj, uid_of
from caphv.runtime.errors import NotFound
from sandbox.harvester import kinds
from tests.support import ipam
from tests.support.ipam import IpamProvider, Pool
from tests.support.reconciler.case import AT_ONCE, CLUSTER_LABEL, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true
from tests.support.waiting import until

pytestmark = pytest.mark.integration

ALLOCATED = "VMIPAllocated"
HOLD = "example.com/hold"


def provider(case: Case, *hosts: int, version: str = ipam.VERSION) -> IpamProvider:
    """A provider with a pool of these addresses of the production network, and one for IPv6."""
    v4 = Pool([f"{case.subnet}.{host}" for host in hosts], 17, case.gateway)
    v6 = Pool([f"fd00::{case.number}:{host}" for host in hosts], 64, "fd00::1")
    return IpamProvider(case.management, case.name, version=version, v4=v4, v6=v6)


def addresses_of(machine: Obj, kind: str) -> list[str]:
    listed = machine["status"].get("addresses") or ()
    return [entry["address"] for entry in listed if entry["type"] == kind]


async def claims(case: Case) -> dict[str, Obj]:
    return await ipam.claims_of(case.management, case.name)


async def has_vm(case: Case, name: str) -> bool:
    try:
        await case.harvester.get(kinds.VIRTUAL_MACHINES, name, case.target)
    except NotFound:
        return False
    return True


async def no_claims(case: Case) -> None:
    async def gone() -> bool:
        return not await claims(case)

    await until(gone, "claims stay")


async def test_machine_waits_for_the_api_of_claims_and_takes_it_at_once(case: Case) -> None:
    await ipam.uninstall(case.management)
    await case.ready_cluster()
    await case.create_machine("one", networkInterfaces=[ipam.interface("v4")])
    text = "the management cluster has no IPAddressClaims of ipam.cluster.x-k8s.io: install"
    await case.until(HARVESTER_MACHINES, "one", is_false(ALLOCATED, "IPAMNotAvailable", text))
    assert not await has_vm(case, "one")

    # Others are not affected.
    await case.ready_machine("two")
    # As a core before 1.11 does. The provider uses this version in the other tests, too.
    await ipam.install(case.management, "v1beta1")
    pending = is_false(ALLOCATED, "VMIPClaimPending", "waiting for InClusterIPPool v4 to answer IPAddressClaim one-0-0")
    await case.until(HARVESTER_MACHINES, "one", pending)
    async with provider(case, 1, version="v1beta1").running() as pools:
        await case.until(HARVESTER_MACHINES, "one", is_ready)
        for name in ("one", "two"):
            await case.delete_machine(name)
        await until(lambda: not pools.pools["v4"].used, "the address stays in use")


async def test_dual_stack_guest_has_the_claimed_addresses_until_its_vm_no_longer_exists(case: Case) -> None:
    await ipam.install(case.management)
    await case.ready_cluster()
    settings = ipam.interface("v4", "v6", dnsServers=["9.9.9.9"], dnsSearch=["example.com"])
    await case.create_machine("one", networkInterfaces=[settings])
    await case.until(HARVESTER_MACHINES, "one", is_false(ALLOCATED, "VMIPClaimPending"))
    assert not await has_vm(case, "one")

    machine = await case.get(HARVESTER_MACHINES, "one")
    made = await claims(case)
    assert sorted(made) == ["one-0-0", "one-0-1"]
    for index, pool in enumerate(("v4", "v6")):
        claim = made[f"one-0-{index}"]
        assert claim["spec"] == {"clusterName": case.name, "poolRef": ipam.pool_reference(pool)}
        assert claim["metadata"]["labels"] == {CLUSTER_LABEL: case.name}
        (owner,) = claim["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("HarvesterMachine", uid_of(machine))

    v4, v6 = f"{case.subnet}.7", f"fd00::{case.number}:7"
    async with provider(case, 7).running() as pools:
        machine = await case.until(HARVESTER_MACHINES, "one", is_ready)
        assert addresses_of(machine, "InternalIP") == addresses_of(machine, "ExternalIP") == [v4, v6]
        assert condition_of(machine, ALLOCATED)["status"] == "True"
        vm = await case.vm("one")
        (nic,) = vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"]
        _, network_data = await case.user_data("one")
        subnets = [
            {"type": "static", "address": f"{v4}/17", "gateway": case.gateway},
            {"type": "static6", "address": f"{v6}/64", "gateway": "fd00::1"},
        ]
        assert network_data["config"] == [
            {"type": "physical", "name": "eth0", "mac_address": nic["macAddress"], "subnets": subnets},
            {"type": "nameserver", "address": ["9.9.9.9"], "search": ["example.com"]},
        ]
        await case.until(HARVESTER_MACHINES, "one", is_true("VMUpToDate"))

        # No other machine gets the addresses while something of the VM is left.
        await case.patch(kinds.VIRTUAL_MACHINES, "one", {"metadata": {"finalizers": [HOLD]}})
        await case.ask_deletion(HARVESTER_MACHINES, "one")
        await case.vm("one", lambda vm: vm["metadata"].get("deletionTimestamp"))
        await until(lambda: _instance_gone(case, "one"))
        assert all("deletionTimestamp" not in claim["metadata"] for claim in (await claims(case)).values())
        assert len(await claims(case)) == 2
        await case.patch(kinds.VIRTUAL_MACHINES, "one", {"metadata": {"finalizers": []}})
        await case.delete_machine("one")
        await no_claims(case)
        assert not pools.pools["v4"].used


async def _instance_gone(case: Case, name: str) -> bool:
    try:
        await case.harvester.get(kinds.INSTANCES, name, case.target)
    except NotFound:
        return True
    return False


async def test_machine_waits_for_a_free_address_of_its_pool(case: Case) -> None:
    await ipam.install(case.management)
    await case.ready_cluster()
    async with provider(case, 9).running():
        await case.ready_machine("one", networkInterfaces=[ipam.interface("v4")])
        await case.create_machine("two", networkInterfaces=[ipam.interface("v4")])
        text = "InClusterIPPool v4 has no free address: add a range to it, or free one (no free address)"
        await case.until(HARVESTER_MACHINES, "two", is_false(ALLOCATED, "VMIPPoolExhausted", text))
        await case.delete_machine("one")
        await case.vm("two", timeout=AT_ONCE)
        machine = await case.until(HARVESTER_MACHINES, "two", is_ready)
        assert addresses_of(machine, "InternalIP") == [f"{case.subnet}.9"]
        await case.delete_machine("two")
        await no_claims(case)


async def test_claim_of_another_owner_is_neither_used_nor_deleted(case: Case) -> None:
    await ipam.install(case.management)
    await case.ready_cluster()
    await case.create(ipam.CLAIMS, "one-0-0", {"poolRef": ipam.pool_reference("v4")})
    await case.create_machine("one", networkInterfaces=[ipam.interface("v4")])
    text = "IPAddressClaim one-0-0 belongs to another owner: delete it"
    await case.until(HARVESTER_MACHINES, "one", is_false(ALLOCATED, "VMIPAllocationFailed", text))
    await case.delete_machine("one")
    assert list(await claims(case)) == ["one-0-0"]

    await case.create_machine("one", networkInterfaces=[ipam.interface("v4")])
    await case.until(HARVESTER_MACHINES, "one", is_false(ALLOCATED, "VMIPAllocationFailed", text))
    async with provider(case, 11).running():
        await case.management.delete(ipam.CLAIMS, "one-0-0", case.name)
        await case.until(HARVESTER_MACHINES, "one", is_ready)
        await case.delete_machine("one")
        await no_claims(case)


async def test_claim_of_another_pool_is_named_and_follows_the_spec_once_deleted(case: Case) -> None:
    await ipam.install(case.management)
    await case.ready_cluster()
    await case.create_machine("one", networkInterfaces=[ipam.interface("absent")])
    pending = is_false(ALLOCATED, "VMIPClaimPending", "check that the pool exists and has a free address")
    await case.until(HARVESTER_MACHINES, "one", pending)
    await case.patch(HARVESTER_MACHINES, "one", {"spec": {"networkInterfaces": [ipam.interface("v4")]}})
    text = "IPAddressClaim one-0-0 is not for InClusterIPPool v4: delete it"
    await case.until(HARVESTER_MACHINES, "one", is_false(ALLOCATED, "VMIPAllocationFailed", text))
    async with provider(case, 12).running():
        await case.management.delete(ipam.CLAIMS, "one-0-0", case.name)
        machine = await case.until(HARVESTER_MACHINES, "one", is_ready)
        assert addresses_of(machine, "InternalIP") == [f"{case.subnet}.12"]
        await case.delete_machine("one")
        await no_claims(case)


async def test_lost_claim_of_a_running_machine_is_reported_and_its_vm_stays(case: Case) -> None:
    await ipam.install(case.management)
    await case.ready_cluster()
    async with provider(case, 13, 14).running():
        before = await case.ready_machine("one", networkInterfaces=[ipam.interface("v4")])
        vm = await case.vm("one")
        await case.management.delete(ipam.CLAIMS, "one-0-0", case.name)
        text = "IPAddressClaim one-0-0 (InClusterIPPool v4) no longer exists"
        machine = await case.until(HARVESTER_MACHINES, "one", is_false(ALLOCATED, "VMIPAllocationFailed", text))
        assert is_ready(machine)
        assert machine["status"]["addresses"] == before["status"]["addresses"]
        assert uid_of(await case.vm("one")) == uid_of(vm)
        await no_claims(case)
        await case.delete_machine("one")


async def test_second_interface_from_a_pool_next_to_a_static_first_one(case: Case) -> None:
    await ipam.install(case.management)
    await case.ready_cluster()
    static = {"address": f"{case.subnet}.20", "gateway": case.gateway, "subnetMask": "255.255.128.0"}
    async with provider(case, 21).running():
        machine = await case.ready_machine(
            "one",
            networks=["default/production", "default/storage"],
            networkConfig=static,
            networkInterfaces=[ipam.interface("v6", network="default/storage")],
        )
        assert addresses_of(machine, "InternalIP") == [f"{case.subnet}.20", f"fd00::{case.number}:21"]
        await case.delete_machine("one")
        await no_claims(case)
