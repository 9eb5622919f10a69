"""The load balancer follows the spec, keeps its address, takes traffic of its own cluster only, and changes hands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from caphv.api.object import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, Obj, Resource, uid_of
from sandbox.harvester import kinds
from tests.support.reconciler.case import AT_ONCE, CLUSTERS, HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.cases import opened
from tests.support.reconciler.conditions import condition_of, is_false, is_ready
from tests.support.reconciler.environment import Environment
from tests.support.reconciler.loadbalancer import place
from tests.support.simulation import virtual_machine
from tests.support.waiting import until

pytestmark = pytest.mark.integration

MACHINE_TYPE, CLUSTER = "harvestercluster/machinetype", "caphv.io/cluster"
LISTENER = {"name": "rke2", "port": 9345, "protocol": "TCP", "backendPort": 9345}
QUOTA = "none-allowed"
FOREIGN = {"caphv.io/management-cluster": "lost", "caphv.io/owner-uid": "lost"}


async def balanced(case: Case, **config: object) -> Obj:
    """A cluster with a control plane machine and a load balancer that has its address."""
    await case.ready_cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": "load-balancers", **config})
    await case.ready_machine("first", control_plane=True)
    return await taken_over(case)


async def taken_over(case: Case, timeout: float = 30.0) -> Obj:
    return await case.until(
        kinds.LOAD_BALANCERS, case.balancer, lambda obj: obj.get("status", {}).get("address"), timeout=timeout
    )


async def until_spec(case: Case, wanted: Obj) -> None:
    def fulfilled(obj: Obj) -> bool:
        return all(obj["spec"].get(name) == value for name, value in wanted.items())

    await case.until(kinds.LOAD_BALANCERS, case.balancer, fulfilled, timeout=AT_ONCE)


# The spec


async def test_changes_of_the_spec_reach_listeners_ports_and_description(case: Case) -> None:
    before = await balanced(case, description="old")
    config: Obj = {"listeners": [LISTENER], "description": "new"}
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"loadBalancerConfig": config}})
    await until_spec(case, {"listeners": [LISTENER, *before["spec"]["listeners"]], "description": "new"})
    ports = {9345, 6443}
    await case.until(SERVICES, case.balancer, lambda obj: {port["port"] for port in obj["spec"]["ports"]} == ports)
    await case.patch(
        HARVESTER_CLUSTERS, case.name, {"spec": {"loadBalancerConfig": {"listeners": None, "description": None}}}
    )
    await until_spec(case, {"listeners": before["spec"]["listeners"], "description": None})


async def test_drift_is_repaired_at_once_and_reported(case: Case) -> None:
    before = (await balanced(case, listeners=[LISTENER]))["spec"]
    selector = {MACHINE_TYPE: ["another"], "tier": ["gold"]}
    changed = {"listeners": [], "backendServerSelector": selector, "healthCheck": {"port": 1}, "description": "mine"}
    await case.patch(kinds.LOAD_BALANCERS, case.balancer, {"spec": changed})
    await until_spec(case, {name: before.get(name) for name in changed})
    await case.until_event(case.name, "Normal", "LoadBalancerUpdated")


async def test_what_is_as_it_should_be_is_not_written(case: Case) -> None:
    await balanced(case)
    await asyncio.sleep(1)
    since = case.environment.audit_position(case.environment.harvester)
    for value in ("1", "2", "3"):
        annotations = {"caphv.io/reconcile-at": value}
        await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": annotations}})
        await asyncio.sleep(0.3)
    assert await case.writes(since) == []


# The address


async def test_address_is_safe_through_many_takeovers(case: Case, other: Case) -> None:
    pool = await case.pool("tight", 1, 4)
    await case.ready_cluster(
        loadBalancerConfig={"ipamType": "pool", "ipPoolRef": pool}, vmNetworkConfig=case.vm_network("machines-a")
    )
    endpoint = (await case.get(HARVESTER_CLUSTERS, case.name))["spec"]["controlPlaneEndpoint"]
    await case.ready_machine("first", control_plane=True)
    await taken_over(case)
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
    assert await case.allocated(pool) == {endpoint["host"]: f"{case.target}/{case.balancer}"}
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


# Refusals


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


# Two clusters of one name


async def test_vm_of_a_cluster_of_the_same_name_gets_no_traffic(case: Case) -> None:
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    labels = {MACHINE_TYPE: f"controlplane-{case.name}", CLUSTER: f"elsewhere.{case.name}"}
    theirs = virtual_machine(case.target, "theirs")
    theirs["metadata"]["annotations"]["caphv.io/owner"] = "HarvesterMachine/elsewhere/theirs"
    theirs["metadata"]["labels"] = labels
    theirs["spec"]["template"]["metadata"] = {"labels": labels}
    await case.harvester.create(kinds.VIRTUAL_MACHINES, theirs)
    await case.ready_cluster()
    assert is_false("InitMachineCreated", "MachineNotFound")(await case.get(HARVESTER_CLUSTERS, case.name))
    assert await case.names(kinds.LOAD_BALANCERS) == []
    machine = await case.ready_machine("first", control_plane=True)
    (address,) = [entry["address"] for entry in machine["status"]["addresses"]]
    await case.until(
        kinds.LOAD_BALANCERS, case.balancer, lambda obj: (obj.get("status") or {}).get("backendServers") == [address]
    )
    await until_spec(
        case,
        {
            "backendServerSelector": {
                MACHINE_TYPE: [f"controlplane-{case.name}"],
                CLUSTER: [f"{case.name}.{case.name}"],
            }
        },
    )
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "theirs")
    await case.until_gone(kinds.VIRTUAL_MACHINES, "theirs")
    for disk in await case.names(PERSISTENT_VOLUME_CLAIMS):
        if disk.startswith("theirs"):
            await case.ask_deletion(PERSISTENT_VOLUME_CLAIMS, disk)


async def test_control_plane_of_the_go_provider_is_labelled_without_a_restart(case: Case) -> None:
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    old = virtual_machine(case.target, "first")
    secret = {"metadata": {"name": "first-cloud-init", "namespace": case.target}}
    text = "#cloud-config\npackages: [qemu-guest-agent]\n"
    await case.harvester.create(SECRETS, {**secret, "stringData": {"userdata": text}})
    label = {MACHINE_TYPE: f"controlplane-{case.name}"}
    old["metadata"]["labels"] = label
    old["spec"]["template"]["metadata"] = {"labels": label}
    vm = await case.harvester.create(kinds.VIRTUAL_MACHINES, old)
    instance = await case.until(kinds.INSTANCES, "first", lambda obj: obj.get("status", {}).get("interfaces"))
    await case.ready_cluster()
    await case.ready_machine("first", control_plane=True, providerID=f"harvester://{uid_of(vm)}")
    ours = f"{case.name}.{case.name}"
    await case.until(kinds.INSTANCES, "first", lambda obj: obj["metadata"]["labels"].get(CLUSTER) == ours)
    await until_spec(case, {"backendServerSelector": {MACHINE_TYPE: [f"controlplane-{case.name}"], CLUSTER: [ours]}})
    assert uid_of(await case.get(kinds.INSTANCES, "first")) == uid_of(instance)
    after = await case.vm("first")
    assert after["spec"]["template"]["spec"] == vm["spec"]["template"]["spec"]
    assert after["metadata"]["labels"] == {**label, CLUSTER: ours}


# Whose it is


async def test_service_and_load_balancer_of_the_go_provider_are_adopted(case: Case) -> None:
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    service = await place(case, case.balancer, {})
    spec = {"workloadType": "vm", "ipam": "dhcp", "listeners": [], "description": ""}
    metadata = {"name": case.balancer, "namespace": case.target}
    old = await case.harvester.create(
        kinds.LOAD_BALANCERS, kinds.typed(kinds.LOAD_BALANCERS, {"metadata": metadata, "spec": spec})
    )
    await case.ready_cluster()
    for kind, before in ((SERVICES, service), (kinds.LOAD_BALANCERS, old)):
        taken = await case.get(kind, case.balancer)
        assert uid_of(taken) == uid_of(before)
        assert taken["metadata"]["annotations"]["caphv.io/owner"] == f"HarvesterCluster/{case.name}/{case.name}"
    await case.until_event(case.name, "Normal", "Adopted")
    assert [entry["port"] for entry in (await case.get(kinds.LOAD_BALANCERS, case.balancer))["spec"]["listeners"]]


async def test_what_another_management_cluster_recorded_is_taken_over_on_demand_only(case: Case) -> None:
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    owner = {**FOREIGN, "caphv.io/owner": f"HarvesterCluster/{case.name}/{case.name}"}
    service = await place(case, case.balancer, owner)
    await case.cluster()
    says = is_false("LoadBalancerReady", "InfrastructureProvisioningFailed", "caphv.io/adopt")
    found = await case.until(HARVESTER_CLUSTERS, case.name, says)
    assert f"HarvesterCluster/{case.name}/{case.name}" in condition_of(found, "LoadBalancerReady")["message"]
    await case.until_event(case.name, "Warning", "InfrastructureProvisioningFailed")
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {"caphv.io/adopt": "true"}}})
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready, timeout=AT_ONCE)
    taken = await case.get(SERVICES, case.balancer)
    assert uid_of(taken) == uid_of(service)
    assert taken["metadata"]["annotations"]["caphv.io/management-cluster"] != "lost"
    gone = await case.get(HARVESTER_CLUSTERS, case.name)
    assert "caphv.io/adopt" not in gone["metadata"].get("annotations", {})


async def test_pool_of_a_lost_management_cluster_is_taken_over_and_deleted_in_the_end(case: Case) -> None:
    described = {
        "subnet": f"{case.environment.prefix}.0.0/17",
        "rangeStart": f"{case.subnet}.1",
        "rangeEnd": f"{case.subnet}.4",
        "gateway": case.gateway,
    }
    name = f"{case.name}-{case.name}-ippool"
    owner = {**FOREIGN, "caphv.io/owner": f"HarvesterCluster/{case.name}/{case.name}"}
    spec = {"ranges": [dict(described)]}
    described["vmNetwork"] = "default/production"
    status = {"total": 4, "available": 4, "lastAllocated": ""}
    pool = {"metadata": {"name": name, "annotations": owner}, "spec": spec, "status": status}
    await case.harvester.create(kinds.IP_POOLS, kinds.typed(kinds.IP_POOLS, pool))
    await case.cluster(loadBalancerConfig={"ipamType": "pool", "ipPool": described})
    await case.until(
        HARVESTER_CLUSTERS, case.name, is_false("CustomIPPoolCreated", "CustomPoolCreationInHarvesterFailed", name)
    )
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {"caphv.io/adopt": "true"}}})
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready, timeout=AT_ONCE)
    await case.delete()
    assert await case.leftovers() == []


async def test_address_of_a_refused_service_stays_with_its_owner(case: Case) -> None:
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    pool = await case.pool("theirs", 1, 4)
    address, holder = f"{case.subnet}.1", f"{case.target}/{case.balancer}"
    await case.reserve(pool, address, holder)
    await place(case, case.balancer, {**FOREIGN, "caphv.io/owner": "HarvesterCluster/a/b"}, address)
    await case.cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": pool})
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("LoadBalancerReady", "InfrastructureProvisioningFailed"))
    await case.delete()
    assert await case.allocated(pool) == {address: holder}
    await case.ask_deletion(SERVICES, case.balancer)
    await case.reserve(pool, address, None)


# Long names


@pytest.fixture
def long(environment: Environment, runner: asyncio.Runner) -> Iterator[Case]:
    """A cluster whose names on Harvester are too long."""
    with opened(environment, runner, prefix="a-cluster-with-a-very-long-name") as case:
        yield case


async def test_long_name_ends_in_a_hash(long: Case) -> None:
    await long.ready_cluster()
    (name,) = await long.names(SERVICES)
    assert len(name) <= 63
    assert name != long.balancer[:63].rstrip("-")
    assert name.endswith("-lb")


async def test_name_of_the_go_provider_stays(long: Case) -> None:
    await long.harvester.create(NAMESPACES, {"metadata": {"name": long.target}})
    old = long.balancer[:63].rstrip("-")
    pool = await long.pool("go", 1, 4)
    await long.reserve(pool, f"{long.subnet}.2", f"{long.target}/{old}")
    await place(long, old, {}, f"{long.subnet}.2")
    found = await long.ready_cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": pool})
    assert found["spec"]["controlPlaneEndpoint"]["host"] == f"{long.subnet}.2"
    await long.ready_machine("first", control_plane=True)
    await until(lambda: _named(long, old), lambda: "the load balancer does not come under the old name")
    assert await long.names(SERVICES) == [old]
    await long.delete()
    assert await long.allocated(pool) == {}


async def _named(case: Case, name: str) -> bool:
    return await case.names(kinds.LOAD_BALANCERS) == [name]


async def test_cut_name_of_another_cluster_is_left_to_it(long: Case) -> None:
    await long.harvester.create(NAMESPACES, {"metadata": {"name": long.target}})
    old = long.balancer[:63].rstrip("-")
    await place(long, old, {**FOREIGN, "caphv.io/owner": "HarvesterCluster/a/b"})
    await long.ready_cluster()
    assert len(await long.names(SERVICES)) == 2
    await long.delete()
    assert await long.names(SERVICES) == [old]
    await long.ask_deletion(SERVICES, old)


# Release


async def test_deletion_without_harvester_waits_until_a_user_releases(case: Case) -> None:
    await case.ready_cluster()
    await case.identity(case.environment.identity(token="expired"))
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("Ready", "HarvesterAuthenticationFailed"))
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    says = is_false("HarvesterConnectionReady", "HarvesterAuthenticationFailed", "caphv.io/force-delete")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {"caphv.io/force-delete": "true"}}})
    await case.until_gone(HARVESTER_CLUSTERS, case.name, timeout=AT_ONCE)
    await case.until_event(case.name, "Warning", "ForcedDeletion")
    assert f"LoadBalancer and Service {case.target}/{case.balancer}" in case.environment.provider.log
    await case.ask_deletion(SERVICES, case.balancer)


async def test_what_has_lost_its_cluster_waits_until_a_user_releases(case: Case) -> None:
    await case.ready_cluster()
    await case.patch(CLUSTERS, case.name, {"metadata": {"finalizers": None}})
    await case.ask_deletion(CLUSTERS, case.name)
    await case.until_gone(CLUSTERS, case.name)
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    says = is_false("InfrastructureReady", "InfrastructureProvisioningFailed", 'caphv.io/force-delete: "true"')
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {"caphv.io/force-delete": "true"}}})
    await case.until_gone(HARVESTER_CLUSTERS, case.name, timeout=AT_ONCE)
    assert await case.names(SERVICES) == [case.balancer]  # another management cluster may have it
    await case.ask_deletion(SERVICES, case.balancer)


async def test_with_harvester_there_nothing_is_released(case: Case) -> None:
    await case.ready_cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": "load-balancers"})
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {"caphv.io/force-delete": "true"}}})
    await case.delete()
    assert await case.leftovers() == []
    assert ("Warning", "ForcedDeletion") not in await case.events(case.name)
