"""A control plane behind a load balancer of its user: nothing on Harvester, and its outage is reported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from caphv.api.object import NODES, SERVICES, Obj
from caphv.runtime.errors import Invalid
from sandbox.harvester import kinds
from sandbox.processes import pki
from sandbox.processes.children import free_ports
from sandbox.processes.proxy import TcpProxy
from tests.support.reconciler.case import AT_ONCE, CLUSTERS, HARVESTER_CLUSTERS, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true
from tests.support.waiting import until

pytestmark = pytest.mark.integration

EXTERNAL = {"ipamType": "none"}


@asynccontextmanager
async def balancing(case: Case) -> AsyncIterator[TcpProxy]:
    """A load balancer of the user in front of the workload cluster's API server."""
    target = urlsplit(case.environment.workload.url)
    (port,) = free_ports(1)
    proxy = TcpProxy(("127.0.0.1", port), [(str(target.hostname), target.port or 0)])
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


async def is_initialized(case: Case) -> bool:
    node = await case.workload.get(NODES, "first")
    return bool(node["spec"].get("providerID"))


def spec_of(obj: Obj) -> Obj:
    return {name: obj["spec"].get(name) for name in ("controlPlaneEndpoint", "loadBalancerConfig")}


async def test_cluster_with_an_external_endpoint_has_nothing_for_it_on_harvester(case: Case) -> None:
    endpoint = {"host": "api.example.com", "port": 8443}
    pool = await case.pool("vms", 10, 20)
    found = await case.ready_cluster(
        loadBalancerConfig=EXTERNAL, controlPlaneEndpoint=endpoint, vmNetworkConfig=case.vm_network(pool)
    )
    await case.ready_machine("first", control_plane=True)
    found = await case.until(HARVESTER_CLUSTERS, case.name, is_true("InitMachineCreated"))
    assert is_ready(found)
    assert spec_of(found) == {"controlPlaneEndpoint": endpoint, "loadBalancerConfig": EXTERNAL}
    ready = condition_of(found, "LoadBalancerReady")
    assert (ready["status"], ready["message"]) == (
        "True",
        "control plane endpoint api.example.com:8443 is external: nothing on Harvester serves it",
    )
    assert await case.names(kinds.LOAD_BALANCERS) == []
    assert await case.names(SERVICES) == []
    assert list((await case.allocated(pool)).values()) == [f"{case.name}/first"]

    # No change moves the endpoint of a living cluster, and no part of it is lost by the attempt.
    for config in ({"ipamType": "dhcp"}, {"ipamType": "pool", "ipPoolRef": pool}):
        with pytest.raises(Invalid, match=r"ipamType.*must not change from"):
            await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"loadBalancerConfig": config}})
    assert is_ready(await case.get(HARVESTER_CLUSTERS, case.name))
    await case.delete()
    assert await case.leftovers() == []


async def test_provisioned_cluster_keeps_its_load_balancer(case: Case) -> None:
    before = await case.ready_cluster()
    with pytest.raises(Invalid, match=r"ipamType.*must not change from"):
        await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"loadBalancerConfig": EXTERNAL}})
    assert spec_of(await case.get(HARVESTER_CLUSTERS, case.name)) == spec_of(before)
    assert await case.names(SERVICES) == [case.balancer]


async def test_load_balancer_of_a_cluster_without_machines_makes_way(case: Case) -> None:
    """A user may correct `ipamType` as long as nothing uses the address."""
    pool = await case.pool("balancers", 10, 10)
    await case.reserve(pool, f"{case.subnet}.10", "other/balancer")
    await case.cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": pool})
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("LoadBalancerReady", "InfrastructureProvisioningFailed"))
    await case.reserve(pool, f"{case.subnet}.10", None)

    # The status is lost in a move, and with it what admission compares.
    await case.ready()
    lost = {"status": {"ready": None, "initialization": None}}
    await case.pause(True)
    await case.management.patch(HARVESTER_CLUSTERS, case.name, case.name, lost, subresource="status")
    endpoint = {"host": "172.16.0.5"}
    config = {"ipamType": "none", "ipPoolRef": None}
    patch = {"spec": {"loadBalancerConfig": config, "controlPlaneEndpoint": {**endpoint, "port": None}}}
    await case.patch(HARVESTER_CLUSTERS, case.name, patch)
    await case.pause(False)

    found = await case.ready()
    assert spec_of(found) == {"controlPlaneEndpoint": {**endpoint, "port": 6443}, "loadBalancerConfig": EXTERNAL}
    assert await case.names(SERVICES) == []
    assert await case.allocated(pool) == {}


async def test_destroyed_load_balancer_is_reported_and_so_is_its_return(case: Case) -> None:
    async with balancing(case) as proxy:
        host, port = proxy.listen
        await case.ready_cluster(loadBalancerConfig=EXTERNAL, controlPlaneEndpoint={"host": host, "port": port})
        await case.ready_machine("first", control_plane=True)
        kubeconfig = case.environment.workload.kubeconfig()
        kubeconfig["clusters"][0]["cluster"]["server"] = f"https://{host}:{port}"
        await case.write_secret(f"{case.name}-kubeconfig", {"value": pki.to_yaml(kubeconfig).decode()})
        initialized = {"status": {"initialization": {"controlPlaneInitialized": True}}}
        await case.management.patch(CLUSTERS, case.name, case.name, initialized, subresource="status")
        # The Node of a machine is known only by an answer through the endpoint.
        await case.register_node("first")
        await until(lambda: is_initialized(case), "Node first is not initialized")

        await proxy.close()
        unreachable = is_false("LoadBalancerReady", "ControlPlaneUnreachable")
        found = await case.until(HARVESTER_CLUSTERS, case.name, unreachable)
        message = condition_of(found, "LoadBalancerReady")["message"]
        assert message.startswith(f"the control plane does not answer at its external endpoint {host}:{port}")
        assert is_ready(found)

        # The watch tries again within seconds.
        await proxy.start()
        await case.until(HARVESTER_CLUSTERS, case.name, is_true("LoadBalancerReady"), timeout=10 + AT_ONCE)
