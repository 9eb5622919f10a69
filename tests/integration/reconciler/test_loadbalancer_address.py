"""The load balancer keeps its address, whatever pools and IPAM type the spec asks for."""

from __future__ import annotations

import asyncio

import pytest

from caphv.api.object import NAMESPACES, SERVICES, Obj, uid_of
from sandbox.harvester import kinds
from tests.support.reconciler.case import AT_ONCE, HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_ready
from tests.support.reconciler.loadbalancer import balanced, place, taken_over, until_spec

pytestmark = pytest.mark.integration


async def test_address_is_safe_through_many_takeovers(case: Case, other: Case) -> None:
    pool = await case.pool("tight", 1, 4)
    await case.ready_cluster(
        loadBalancerConfig={"ipamType": "pool", "ipPoolRef": pool}, vmNetworkConfig=case.vm_network("machines-a")
    )
    endpoint = (await case.get(HARVESTER_CLUSTERS, case.name))["spec"]["controlPlaneEndpoint"]
    await case.ready_machine("first", control_plane=True)
    await taken_over(case)
    # A user removes its entry: another LoadBalancer would get the address.
    await case.reserve(pool, endpoint["host"], None)
    entry = {endpoint["host"]: f"{case.target}/{case.balancer}"}
    await case.until(kinds.IP_POOLS, pool, lambda obj: obj["status"]["allocated"] == entry, timeout=AT_ONCE)
    await case.until_event(case.name, "Normal", "AddressReservedAgain")
    # As many machines as there are other addresses come and go, of a cluster in another namespace.
    await other.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    for number in range(6):
        await case.ask_deletion(kinds.LOAD_BALANCERS, case.balancer)
        names = [f"m-{number}-{n}" for n in range(3)]
        await asyncio.gather(*(other.create_machine(name) for name in names))
        machines = [await other.until(HARVESTER_MACHINES, name, is_ready) for name in names]
        assert endpoint["host"] not in [machine["status"]["allocatedIPAddress"] for machine in machines]
        again = await taken_over(case)
        assert again["status"]["address"] == endpoint["host"]
        await asyncio.gather(*(other.delete_machine(name) for name in names))
    found = await case.get(HARVESTER_CLUSTERS, case.name)
    assert found["spec"]["controlPlaneEndpoint"] == endpoint
    assert await case.allocated(pool) == entry
    await case.delete()
    assert await case.allocated(pool) == {}


async def reported(case: Case, text: str) -> Obj:
    """The HarvesterCluster once it reports a source of the address that is not applied; it stays ready."""
    found = await case.until(
        HARVESTER_CLUSTERS,
        case.name,
        lambda obj: text in condition_of(obj, "LoadBalancerReady").get("message", ""),
        timeout=AT_ONCE,
    )
    assert condition_of(found, "LoadBalancerReady")["status"] == "True"
    assert is_ready(found)
    await case.until_event(case.name, "Warning", "LoadBalancerAddressKept")
    return found


async def unmoved(case: Case, before: Obj, pool: str) -> None:
    """Assert that LoadBalancer, Service and pool have the address of `before`, also a moment later."""
    await asyncio.sleep(1)
    address = before["status"]["address"]
    after = await case.get(kinds.LOAD_BALANCERS, case.balancer)
    service = await case.get(SERVICES, case.balancer)
    assert [after["spec"].get(name) for name in ("ipam", "ipPool")] == ["pool", pool]
    assert after["status"]["allocatedAddress"]["ip"] == after["status"]["address"] == address
    assert service["spec"]["loadBalancerIP"] == address
    assert address in await case.allocated(pool)


async def test_another_pool_does_not_move_the_address(case: Case) -> None:
    first, second = await case.pool("lb-a", 1, 4), await case.pool("lb-b", 5, 8)
    before = await balanced(case, ipPoolRef=first)
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"loadBalancerConfig": {"ipPoolRef": second}}})
    await reported(case, f"loadBalancerConfig.ipPoolRef: {second} is not applied")
    await unmoved(case, before, first)
    assert await case.allocated(second) == {}
    # Neither does it move when LoadBalancer and Service are recreated; other changes arrive.
    await case.ask_deletion(kinds.LOAD_BALANCERS, case.balancer)
    await case.until(kinds.LOAD_BALANCERS, case.balancer, lambda obj: uid_of(obj) != uid_of(before))
    await taken_over(case)
    await case.ask_deletion(SERVICES, case.balancer)
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"loadBalancerConfig": {"description": "new"}}})
    await until_spec(case, {"description": "new", "ipPool": first})
    await case.until(SERVICES, case.balancer, lambda obj: (obj.get("status") or {}).get("loadBalancer"))
    await unmoved(case, before, first)
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"loadBalancerConfig": {"ipPoolRef": first}}})
    await case.until(
        HARVESTER_CLUSTERS, case.name, lambda obj: not condition_of(obj, "LoadBalancerReady").get("message")
    )


async def test_new_first_pool_of_the_machines_does_not_move_the_address(case: Case) -> None:
    first, second = await case.pool("old", 1, 4), await case.pool("new", 5, 8)
    await case.ready_cluster(loadBalancerConfig={"ipamType": "pool"}, vmNetworkConfig=case.vm_network(first))
    await case.ready_machine("first", control_plane=True)
    before = await taken_over(case)
    spec = {"vmNetworkConfig": {"ipPoolRefs": [second, first]}}
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": spec})
    await reported(case, f"IPPool {second} of vmNetworkConfig is not applied")
    await unmoved(case, before, first)


async def test_another_ipam_type_is_reported_and_stops_nothing(case: Case) -> None:
    pool = await case.pool("lb-a", 1, 4)
    before = await balanced(case, ipPoolRef=pool)
    config = {"ipamType": "dhcp", "ipPoolRef": None, "description": "new"}
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"loadBalancerConfig": config}})
    await reported(case, "loadBalancerConfig.ipamType: dhcp is not applied")
    await until_spec(case, {"description": "new"})
    await unmoved(case, before, pool)


async def test_pool_that_the_go_provider_did_not_apply_does_not_move_the_address(case: Case) -> None:
    first, second = await case.pool("lb-a", 1, 4), await case.pool("lb-b", 5, 8)
    address, holder = f"{case.subnet}.1", f"{case.target}/{case.balancer}"
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    await case.reserve(first, address, holder)
    await place(case, case.balancer, {}, address)
    listener = {"name": "api-server", "port": 6443, "protocol": "TCP", "backendPort": 6443}
    spec = {"workloadType": "vm", "ipam": "pool", "ipPool": first, "listeners": [listener]}
    metadata = {"name": case.balancer, "namespace": case.target}
    await case.harvester.create(
        kinds.LOAD_BALANCERS, kinds.typed(kinds.LOAD_BALANCERS, {"metadata": metadata, "spec": spec})
    )
    before = await taken_over(case)
    endpoint = {"host": address, "port": 6443}
    config = {"ipamType": "pool", "ipPoolRef": second}
    found = await case.ready_cluster(loadBalancerConfig=config, controlPlaneEndpoint=endpoint)
    assert found["spec"]["controlPlaneEndpoint"] == endpoint
    await reported(case, f"loadBalancerConfig.ipPoolRef: {second} is not applied")
    await unmoved(case, before, first)
