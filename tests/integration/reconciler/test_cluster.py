"""The infrastructure of a cluster: failure domains, control plane endpoint, load balancer, pools."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from caphv.api.names import CLUSTER_FINALIZER, LEGACY_CLUSTER_FINALIZER
from caphv.api.object import NAMESPACES, NODES, SERVICES, Obj, labels_of, uid_of
from caphv.runtime.errors import NotFound
from sandbox.harvester import kinds
from tests.support.reconciler.case import AT_ONCE, CLUSTERS, HARVESTER_CLUSTERS, HARVESTER_MACHINES, MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true
from tests.support.waiting import until

pytestmark = pytest.mark.integration

ZONE = "topology.kubernetes.io/zone"
POOL = "load-balancers"


async def test_ready_cluster_says_so_in_every_way(case: Case) -> None:
    await case.cluster()
    found = await case.ready()
    assert is_ready(found)
    for kind in ("HarvesterConnectionReady", "TargetNamespaceReady", "LoadBalancerReady", "InfrastructureReady"):
        condition = condition_of(found, kind)
        assert (condition["status"], condition["reason"]) == ("True", kind)
        assert condition["observedGeneration"] <= found["metadata"]["generation"]
    assert condition_of(found, "Ready")["observedGeneration"] == found["metadata"]["generation"]
    assert condition_of(found, "Paused")["reason"] == "NotPaused"
    assert found["metadata"]["finalizers"] == [CLUSTER_FINALIZER]
    await case.until_event(case.name, "Normal", "InfrastructureReady")


async def test_nothing_happens_before_the_core_has_set_the_owner(case: Case) -> None:
    await case.identity()
    spec = {
        "targetNamespace": case.target,
        "identitySecret": {"name": "identity", "namespace": case.name},
        "loadBalancerConfig": {"ipamType": "dhcp"},
    }
    await case.create(HARVESTER_CLUSTERS, case.name, spec)
    reference = {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "HarvesterCluster", "name": case.name}
    finalizers = ["cluster.x-k8s.io/core"]
    cluster = await case.create(CLUSTERS, case.name, {"infrastructureRef": reference}, finalizers=finalizers)
    alone = await case.get(HARVESTER_CLUSTERS, case.name)
    assert "status" not in alone
    assert "finalizers" not in alone["metadata"]
    owner = {name: cluster[name] for name in ("apiVersion", "kind")}
    owner |= {name: cluster["metadata"][name] for name in ("name", "uid")}
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"ownerReferences": [owner]}})
    await case.ready()


async def test_legacy_finalizer_is_swapped(case: Case) -> None:
    await case.identity()
    await case.create_cluster(finalizers=[LEGACY_CLUSTER_FINALIZER, "example.com/other"])
    found = await case.ready()
    assert sorted(found["metadata"]["finalizers"]) == sorted(["example.com/other", CLUSTER_FINALIZER])
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"finalizers": [CLUSTER_FINALIZER]}})


async def test_failure_domains_stay_zones_when_a_host_loses_its_label(case: Case) -> None:
    await case.cluster()
    found = await case.ready()
    assert found["status"]["failureDomains"] == domains("zone-1", "zone-2", "zone-3", key=ZONE)
    async with without_zone(case, "harvester-2"):
        await until_domains(case, domains("zone-1", "zone-3", key=ZONE))
    await until_domains(case, domains("zone-1", "zone-2", "zone-3", key=ZONE))


async def test_failure_domains_are_hosts_where_not_all_have_a_zone(case: Case) -> None:
    async with without_zone(case, "harvester-2"):
        await case.cluster()
        await until_domains(case, domains("harvester-1", "harvester-2", "harvester-3", key="kubernetes.io/hostname"))


async def test_control_planes_may_be_kept_to_some_failure_domains_that_are_there(case: Case) -> None:
    await case.cluster(controlPlaneFailureDomains=["elsewhere"])
    refused = await case.until(
        HARVESTER_CLUSTERS, case.name, is_false("InfrastructureReady", "InfrastructureProvisioningFailed")
    )
    message = condition_of(refused, "InfrastructureReady")["message"]
    assert "elsewhere" in message
    assert "zone-1, zone-2, zone-3" in message
    spec = {"controlPlaneFailureDomains": ["zone-3", "zone-1"]}
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": spec})
    found = await case.ready()
    assert found["status"]["failureDomains"] == domains(
        "zone-1", "zone-2", "zone-3", key=ZONE, control_plane=("zone-1", "zone-3")
    )


async def test_domain_of_a_machine_that_takes_no_machines_is_reported(case: Case) -> None:
    await case.ready_cluster()
    machine = await case.ready_machine("one", control_plane=True)
    domain = machine["status"]["failureDomain"]
    hosts = [host for host in (await case.harvester.list(NODES))["items"] if labels_of(host).get(ZONE) == domain]
    try:
        for host in hosts:
            await case.harvester.patch(NODES, host["metadata"]["name"], "", {"spec": {"unschedulable": True}})
        reported = is_false("FailureDomainsAvailable", "FailureDomainUnavailable", f"{domain} (machine one): host ")
        found = await case.until(HARVESTER_CLUSTERS, case.name, reported)
        assert domain in {each["name"] for each in found["status"]["failureDomains"]}
        await case.until_event(case.name, "Warning", "FailureDomainUnavailable")
    finally:
        for host in hosts:
            await case.harvester.patch(NODES, host["metadata"]["name"], "", {"spec": {"unschedulable": None}})
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("FailureDomainsAvailable"))


def domains(*names: str, key: str, control_plane: Collection[str] = ()) -> list[Obj]:
    return [
        {"name": name, "controlPlane": name in (control_plane or names), "attributes": {"topologyKey": key}}
        for name in names
    ]


async def until_domains(case: Case, expected: list[Obj]) -> None:
    await case.until(
        HARVESTER_CLUSTERS,
        case.name,
        lambda obj: obj.get("status", {}).get("failureDomains") == expected,
        timeout=AT_ONCE,
    )


@asynccontextmanager
async def without_zone(case: Case, host: str) -> AsyncIterator[None]:
    zone = (await case.harvester.get(NODES, host))["metadata"]["labels"][ZONE]
    await case.harvester.patch(NODES, host, "", {"metadata": {"labels": {ZONE: None}}})
    try:
        yield
    finally:
        await case.harvester.patch(NODES, host, "", {"metadata": {"labels": {ZONE: zone}}})


# Endpoint and load balancer


async def test_endpoint_by_dhcp_replaces_the_placeholder_of_a_class(case: Case) -> None:
    await case.cluster(controlPlaneEndpoint={"host": "0.0.0.0", "port": 6443})
    found = await case.ready()
    service = await case.get(SERVICES, case.balancer)
    assert service["spec"]["loadBalancerIP"] == "0.0.0.0"
    assert found["spec"]["controlPlaneEndpoint"] == {"host": ingress(service), "port": 6443}
    assert ingress(service).startswith(f"{case.environment.prefix}.")
    assert service["metadata"]["labels"]["loadbalancer.harvesterhci.io/servicelb"] == "true"


async def test_endpoint_by_pool_is_reserved_before_it_is_announced(case: Case) -> None:
    await case.cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": POOL})
    found = await case.ready()
    service = await case.get(SERVICES, case.balancer)
    host = found["spec"]["controlPlaneEndpoint"]["host"]
    assert ingress(service) == service["spec"]["loadBalancerIP"] == host
    assert (await case.allocated(POOL))[host] == f"{case.target}/{case.balancer}"


async def test_load_balancer_comes_with_the_first_control_plane_vm(case: Case) -> None:
    listener = {"name": "rke2", "port": 9345, "protocol": "TCP", "backendPort": 9345}
    balancer = {"ipamType": "pool", "ipPoolRef": POOL, "listeners": [listener], "description": "for tests"}
    await case.cluster(loadBalancerConfig=balancer)
    before = await case.ready()
    assert is_false("InitMachineCreated", "MachineNotFound")(before)
    await case.ready_machine("worker")
    assert await case.names(kinds.LOAD_BALANCERS) == []
    await case.create_machine("first", control_plane=True)
    taken = await case.until(kinds.LOAD_BALANCERS, case.balancer, lambda obj: obj.get("status", {}).get("address"))
    after = await case.until(HARVESTER_CLUSTERS, case.name, is_true("InitMachineCreated"))
    host = after["spec"]["controlPlaneEndpoint"]["host"]
    assert taken["status"]["address"] == host == before["spec"]["controlPlaneEndpoint"]["host"]
    assert (await case.allocated(POOL))[host] == f"{case.target}/{case.balancer}"
    spec = taken["spec"]
    assert (spec["workloadType"], spec["ipam"], spec["ipPool"]) == ("vm", "pool", POOL)
    assert spec["description"] == "for tests"
    assert [(entry["name"], entry["port"]) for entry in spec["listeners"]] == [("rke2", 9345), ("api-server", 6443)]
    assert spec["healthCheck"] == {
        "port": 6443,
        "successThreshold": 1,
        "failureThreshold": 3,
        "periodSeconds": 5,
        "timeoutSeconds": 5,
    }
    assert spec["backendServerSelector"] == {
        "harvestercluster/machinetype": [f"controlplane-{case.name}"],
        "caphv.io/cluster": [f"{case.name}.{case.name}"],
    }


async def test_lost_placeholder_is_recreated_with_the_same_address(case: Case) -> None:
    await case.cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": POOL})
    endpoint = (await case.ready())["spec"]["controlPlaneEndpoint"]
    old = await case.get(SERVICES, case.balancer)
    await case.ask_deletion(SERVICES, case.balancer)
    new = await case.until(
        SERVICES, case.balancer, lambda obj: obj["metadata"]["uid"] != old["metadata"]["uid"], timeout=AT_ONCE
    )
    assert new["spec"]["loadBalancerIP"] == endpoint["host"]
    found = await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
    assert found["spec"]["controlPlaneEndpoint"] == endpoint


async def test_target_namespace_that_was_deleted_is_created_again(case: Case) -> None:
    await case.cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": POOL})
    endpoint = (await case.ready())["spec"]["controlPlaneEndpoint"]
    old = await case.harvester.get(NAMESPACES, case.target)
    await case.harvester.delete(NAMESPACES, case.target)

    async def is_another() -> bool:
        with contextlib.suppress(NotFound):
            return bool((await case.harvester.get(NAMESPACES, case.target))["metadata"]["uid"] != uid_of(old))
        return False

    await until(is_another, "there is no new namespace")
    new = await case.until(SERVICES, case.balancer, lambda _: True)
    assert new["spec"]["loadBalancerIP"] == endpoint["host"]
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def test_service_of_another_owner_is_refused_and_kept(case: Case) -> None:
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    foreign = {"caphv.io/owner": "HarvesterCluster/other/other", "caphv.io/owner-uid": "1"}
    labels = {"loadbalancer.harvesterhci.io/servicelb": "true"}
    metadata = {"name": case.balancer, "namespace": case.target, "annotations": foreign, "labels": labels}
    spec = {"type": "LoadBalancer", "loadBalancerIP": "0.0.0.0", "ports": [{"port": 6443}]}
    theirs = await case.harvester.create(SERVICES, {"metadata": metadata, "spec": spec})
    await case.cluster()
    says = is_false("LoadBalancerReady", "InfrastructureProvisioningFailed", "belongs to HarvesterCluster/other/other")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    await case.until_gone(HARVESTER_CLUSTERS, case.name)
    assert (await case.get(SERVICES, case.balancer))["metadata"]["uid"] == theirs["metadata"]["uid"]
    await case.ask_deletion(SERVICES, case.balancer)


# Pools


async def test_pools_of_the_description_are_created_used_and_deleted(case: Case) -> None:
    def described(first: int, last: int) -> Obj:
        return {
            "subnet": f"{case.environment.prefix}.0.0/17",
            "rangeStart": f"{case.subnet}.{first}",
            "rangeEnd": f"{case.subnet}.{last}",
            "gateway": case.gateway,
            "vmNetwork": "default/production",
        }

    await case.cluster(
        loadBalancerConfig={"ipamType": "pool", "ipPool": described(1, 2)},
        vmNetworkConfig={"ipPool": described(11, 12), "gateway": case.gateway, "subnetMask": "255.255.128.0"},
    )
    found = await case.ready()
    balancers, machines = f"{case.name}-{case.name}-ippool", f"{case.name}-{case.name}-vm-ippool"
    assert found["spec"]["loadBalancerConfig"]["ipPoolRef"] == balancers
    assert found["spec"]["vmNetworkConfig"]["ipPoolRef"] == machines
    assert condition_of(found, "CustomIPPoolCreated")["reason"] == "CustomIPPoolCreatedSuccessfully"
    assert is_true("VMIPPoolCreatedByController")(found)
    assert is_true("VMIPPoolReady")(found)
    assert found["spec"]["controlPlaneEndpoint"]["host"] == f"{case.subnet}.1"
    machine = await case.ready_machine("first", control_plane=True)
    assert machine["status"]["allocatedIPAddress"] == f"{case.subnet}.11"
    assert machine["status"]["allocatedPoolRef"] == machines
    await case.until(kinds.LOAD_BALANCERS, case.balancer, lambda obj: obj.get("status", {}).get("address"))
    await case.delete()
    assert await case.leftovers() == []


async def test_pool_that_harvester_refuses_is_named_until_it_is_corrected(case: Case) -> None:
    await case.pool("other", 1, 5, network="default/storage")
    bounds = {"rangeStart": f"{case.subnet}.5", "rangeEnd": f"{case.subnet}.9", "gateway": case.gateway}
    described = {"subnet": f"{case.environment.prefix}.0.0/17", **bounds, "vmNetwork": "default/production"}
    network = {"ipPool": described, "gateway": case.gateway, "subnetMask": "255.255.128.0"}
    await case.cluster(vmNetworkConfig=network)
    message = f"Harvester refuses IPPool {case.name}-{case.name}-vm-ippool: admission webhook"
    refused = is_false("VMIPPoolReady", "VMIPPoolCreationFailed", message)
    await case.until(HARVESTER_CLUSTERS, case.name, refused)
    await case.until_event(case.name, "Warning", "VMIPPoolCreationFailed")
    corrected = {"spec": {"vmNetworkConfig": {"ipPool": {"rangeStart": f"{case.subnet}.6"}}}}
    await case.patch(HARVESTER_CLUSTERS, case.name, corrected)
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def test_pool_that_harvester_does_not_delete_is_named_and_left_on_request(case: Case) -> None:
    bounds = {"rangeStart": f"{case.subnet}.1", "rangeEnd": f"{case.subnet}.5", "gateway": case.gateway}
    described = {"subnet": f"{case.environment.prefix}.0.0/17", **bounds, "vmNetwork": "default/production"}
    network = {"ipPool": described, "gateway": case.gateway, "subnetMask": "255.255.128.0"}
    await case.ready_cluster(vmNetworkConfig=network)
    pool, address = f"{case.name}-{case.name}-vm-ippool", f"{case.subnet}.5"
    await case.reserve(pool, address, "another/owner")
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    says = is_false("InfrastructureReady", "IPPoolInUse", f"another/owner has address {address}")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await case.until_event(case.name, "Warning", "IPPoolInUse")
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {"caphv.io/force-delete": "true"}}})
    await case.until_gone(HARVESTER_CLUSTERS, case.name)
    await case.until_event(case.name, "Warning", "ForcedDeletion")
    await case.reserve(pool, address, None)
    await case.ask_deletion(kinds.IP_POOLS, pool)


async def test_pool_that_the_cluster_does_not_describe_is_not_deleted(case: Case) -> None:
    pool = await case.pool("own", 1, 5)
    await case.cluster(
        loadBalancerConfig={"ipamType": "pool", "ipPoolRef": pool}, vmNetworkConfig=case.vm_network(pool)
    )
    await case.ready()
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    await case.until_gone(HARVESTER_CLUSTERS, case.name)
    assert await case.allocated(pool) == {}


async def test_missing_pool_is_named_and_picked_up_when_it_comes(case: Case) -> None:
    await case.cluster(vmNetworkConfig=case.vm_network(f"{case.name}-later"))
    says = is_false("VMIPPoolReady", "VMIPPoolNotFound", f"IPPool {case.name}-later of vmNetworkConfig")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await case.pool("later", 1, 5)
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready, timeout=AT_ONCE)


async def test_missing_load_balancer_pool_is_named_with_its_field(case: Case) -> None:
    await case.cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": f"{case.name}-balancers"})
    text = f"spec.loadBalancerConfig.ipPoolRef: IPPool {case.name}-balancers does not exist on Harvester: create it"
    await case.until(
        HARVESTER_CLUSTERS, case.name, is_false("LoadBalancerReady", "InfrastructureProvisioningFailed", text)
    )
    await case.pool("balancers", 1, 1)
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready, timeout=AT_ONCE)


async def test_exhausted_load_balancer_pool_continues_when_an_address_is_free(case: Case) -> None:
    pool = await case.pool("full", 1, 1)
    await case.reserve(pool, f"{case.subnet}.1", "another/owner")
    await case.cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": pool})
    await case.until(
        HARVESTER_CLUSTERS, case.name, is_false("LoadBalancerReady", "InfrastructureProvisioningFailed", pool)
    )
    await case.reserve(pool, f"{case.subnet}.1", None)
    found = await case.until(HARVESTER_CLUSTERS, case.name, is_ready, timeout=AT_ONCE)
    assert found["spec"]["controlPlaneEndpoint"]["host"] == f"{case.subnet}.1"


# The end


async def test_deletion_waits_for_machines_and_leaves_nothing(case: Case) -> None:
    pool = await case.pool("machines", 1, 5)
    await case.cluster(
        loadBalancerConfig={"ipamType": "pool", "ipPoolRef": POOL}, vmNetworkConfig=case.vm_network(pool)
    )
    await case.ready()
    await case.ready_machine("first", control_plane=True)
    await case.until(kinds.LOAD_BALANCERS, case.balancer, lambda obj: obj.get("status", {}).get("address"))
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    await case.until(
        HARVESTER_CLUSTERS,
        case.name,
        is_false("InfrastructureReady", "InfrastructureProvisioningInProgress", "waiting for 1 HarvesterMachine(s)"),
    )
    assert await case.names(kinds.LOAD_BALANCERS) == [case.balancer]
    assert await case.names(SERVICES) == [case.balancer]
    await case.ask_deletion(HARVESTER_MACHINES, "first")
    await case.until_gone(HARVESTER_CLUSTERS, case.name)
    assert await case.leftovers() == []
    with pytest.raises(NotFound):
        await case.get(HARVESTER_MACHINES, "first")
    assert await case.names(MACHINES) == ["first"]


async def test_address_of_a_cluster_without_machines_is_released(case: Case) -> None:
    await case.cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": POOL})
    host = (await case.ready())["spec"]["controlPlaneEndpoint"]["host"]
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    await case.until_gone(HARVESTER_CLUSTERS, case.name)
    assert host not in await case.allocated(POOL)


def ingress(service: Obj) -> str:
    return service["status"]["loadBalancer"]["ingress"][0]["ip"]
