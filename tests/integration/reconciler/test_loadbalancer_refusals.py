"""A load balancer or Service that Harvester refuses is reported until it is accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from caphv.api.object import SERVICES, Resource
from sandbox.harvester import kinds
from tests.support.reconciler.case import HARVESTER_CLUSTERS, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready
from tests.support.reconciler.loadbalancer import taken_over

pytestmark = pytest.mark.integration

LISTENER = {"name": "rke2", "port": 9345, "protocol": "TCP", "backendPort": 9345}
QUOTA = "none-allowed"


@pytest.fixture
def none_allowed(case: Case) -> Callable[[Resource], Awaitable[None]]:
    """Let Harvester refuse new objects of a kind in the case's namespace, by a quota."""

    async def refuse(resource: Resource) -> None:
        hard = {f"count/{resource.plural}" + (f".{resource.group}" if resource.group else ""): "0"}
        metadata = {"name": QUOTA, "namespace": case.target}
        quota = kinds.typed(kinds.RESOURCE_QUOTAS, {"metadata": metadata, "spec": {"hard": hard}})
        await case.harvester.create(kinds.RESOURCE_QUOTAS, quota)
        # Kubernetes enforces what its controller has counted, and that does not run here.
        status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
        await case.harvester.patch(kinds.RESOURCE_QUOTAS, QUOTA, case.target, status, subresource="status")

    return refuse


async def allow_again(case: Case) -> None:
    """Lift the quota, and reconcile."""
    await case.harvester.delete(kinds.RESOURCE_QUOTAS, QUOTA, case.target)
    annotations = {"caphv.io/reconcile-at": "now"}
    await asyncio.sleep(1)
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": annotations}})


async def test_refused_load_balancer_is_reported_although_the_cluster_was_ready(
    case: Case, none_allowed: Callable[[Resource], Awaitable[None]]
) -> None:
    await case.ready_cluster()
    await none_allowed(kinds.LOAD_BALANCERS)
    await case.create_machine("first", control_plane=True)
    text = f"Harvester refuses to create LoadBalancer {case.target}/{case.balancer}: "
    says = is_false("LoadBalancerReady", "InfrastructureProvisioningFailed", text)
    found = await case.until(HARVESTER_CLUSTERS, case.name, says)
    assert "exceeded quota" in condition_of(found, "LoadBalancerReady")["message"]
    assert condition_of(found, "Ready")["status"] == "False"
    await case.until_event(case.name, "Warning", "InfrastructureProvisioningFailed")
    await allow_again(case)
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
    await taken_over(case)


async def test_stored_listeners_that_harvester_refuses_are_reported_until_they_are_corrected(case: Case) -> None:
    listeners = [{"name": "api-443", "port": 443, "protocol": "TCP", "backendPort": 6443}]
    # The CRD lets through what was stored before its rule: it has an endpoint.
    endpoint = {"host": f"{case.subnet}.9", "port": 6443}
    config = {"ipamType": "dhcp", "listeners": listeners}
    await case.ready_cluster(loadBalancerConfig=config, controlPlaneEndpoint=endpoint)
    await case.create_machine("first", control_plane=True)
    says = is_false("LoadBalancerReady", "InfrastructureProvisioningFailed", "duplicate backendPort 6443")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"loadBalancerConfig": {"listeners": [LISTENER]}}})
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
    await taken_over(case)


async def test_refused_service_is_reported_although_the_cluster_was_ready(
    case: Case, none_allowed: Callable[[Resource], Awaitable[None]]
) -> None:
    await case.ready_cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": "load-balancers"})
    await none_allowed(SERVICES)
    await case.ask_deletion(SERVICES, case.balancer)
    text = f"Harvester refuses to create Service {case.target}/{case.balancer}: "
    await case.until(
        HARVESTER_CLUSTERS, case.name, is_false("LoadBalancerReady", "InfrastructureProvisioningFailed", text)
    )
    await allow_again(case)
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
