"""Harvester 1.4, whose load balancer controller takes over no address that is only reserved."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from sandbox.harvester import kinds
from tests.support.reconciler.case import HARVESTER_CLUSTERS, Case
from tests.support.reconciler.conditions import is_false, is_ready, is_true
from tests.support.reconciler.environment import Environment
from tests.support.reconciler.ownharvester import on_harvester

pytestmark = pytest.mark.integration


async def with_backends(case: Case, address: str) -> Obj:
    """The LoadBalancer once it forwards the address of the endpoint to VMs."""
    found = await case.until(
        kinds.LOAD_BALANCERS, case.balancer, lambda obj: (obj.get("status") or {}).get("backendServers")
    )
    assert found["status"]["allocatedAddress"]["ip"] == found["status"]["address"] == address
    return found


async def test_load_balancer_gets_backends_at_the_reserved_address(environment: Environment) -> None:
    async with on_harvester(environment, "on-1-4", releases_duplicates=False) as case:
        found = await case.ready_cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": "load-balancers"})
        address, holder = found["spec"]["controlPlaneEndpoint"]["host"], f"{case.target}/{case.balancer}"
        await case.ready_machine("first", control_plane=True)
        before = await with_backends(case, address)
        # As an earlier version left it: reserved without history, and Harvester refuses the LoadBalancer an address.
        await case.pause(True)
        await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"))
        await case.ask_deletion(kinds.LOAD_BALANCERS, case.balancer)
        await case.until_gone(kinds.LOAD_BALANCERS, case.balancer)
        status = {"allocated": {address: holder}, "allocatedHistory": {address: None}}
        await case.patch(kinds.IP_POOLS, "load-balancers", {"status": status})
        metadata = {"name": case.balancer, "namespace": case.target}
        await case.harvester.create(
            kinds.LOAD_BALANCERS, kinds.typed(kinds.LOAD_BALANCERS, {"metadata": metadata, "spec": before["spec"]})
        )
        await case.until(
            kinds.LOAD_BALANCERS, case.balancer, lambda obj: "duplicate allocation" in str(obj.get("status"))
        )
        await case.pause(False)
        await with_backends(case, address)
        assert await case.allocated("load-balancers") == {address: holder}
        await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def test_address_that_another_took_is_reported_and_not_replaced(environment: Environment) -> None:
    async with on_harvester(environment, "on-1-4", releases_duplicates=False) as case:
        found = await case.ready_cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": "load-balancers"})
        address = found["spec"]["controlPlaneEndpoint"]["host"]
        await case.reserve("load-balancers", address, "another/owner")
        await case.create_machine("first", control_plane=True)
        text = f"address {address} of {case.target}/{case.balancer} is held by another/owner"
        says = is_false("LoadBalancerReady", "InfrastructureProvisioningFailed", text)
        await case.until(HARVESTER_CLUSTERS, case.name, says)
        assert await case.names(kinds.LOAD_BALANCERS) == []
        await case.reserve("load-balancers", address, None)
        await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
        await with_backends(case, address)
