"""The load balancer follows the spec, takes traffic of its own cluster only, and changes hands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from caphv.api.object import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, Obj, uid_of
from reconciler.memory.periods import FORCE_DELETE_SECONDS
from sandbox.harvester import kinds
from tests.support.reconciler.case import AT_ONCE, CLUSTERS, HARVESTER_CLUSTERS, Case
from tests.support.reconciler.cases import create_later, opened
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true
from tests.support.reconciler.environment import Environment
from tests.support.reconciler.idleness import until_quiet
from tests.support.reconciler.loadbalancer import balanced, place, until_spec
from tests.support.simulation import virtual_machine
from tests.support.waiting import until

pytestmark = pytest.mark.integration

MACHINE_TYPE, CLUSTER = "harvestercluster/machinetype", "caphv.io/cluster"
LISTENER = {"name": "rke2", "port": 9345, "protocol": "TCP", "backendPort": 9345}
FOREIGN = {"caphv.io/management-cluster": "lost", "caphv.io/owner-uid": "lost"}


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
    await until_quiet(case.environment)
    since = case.environment.audit_position(case.environment.harvester)
    for value in ("1", "2", "3"):
        annotations = {"caphv.io/reconcile-at": value}
        await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": annotations}})
        await asyncio.sleep(0.3)
    assert await case.writes(since) == []


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
    (address,) = {entry["address"] for entry in machine["status"]["addresses"]}
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
    guest = {
        "harvesterhci.io/creator": "docker-machine-driver-harvester",
        "guestcluster.harvesterhci.io/name": case.name,
    }
    assert after["metadata"]["labels"] == {**label, CLUSTER: ours, **guest}


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
    rejected = is_false("HarvesterConnectionReady", "HarvesterAuthenticationFailed")
    await case.until(HARVESTER_CLUSTERS, case.name, rejected)
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    says = is_false("HarvesterConnectionReady", "HarvesterAuthenticationFailed", "caphv.io/force-delete")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {"caphv.io/force-delete": "true"}}})
    await case.until_gone(HARVESTER_CLUSTERS, case.name, timeout=2 * FORCE_DELETE_SECONDS)
    await case.until_event(case.name, "Warning", "ForcedDeletion")
    assert f"LoadBalancer and Service {case.target}/{case.balancer}" in case.environment.provider.log
    await case.ask_deletion(SERVICES, case.balancer)


async def test_what_has_lost_its_cluster_waits_until_a_user_releases(case: Case, other: Case) -> None:
    await case.ready_cluster()
    # The garbage collector deletes it with its Cluster: nothing may be done before the provider knows of both.
    await case.pause_object(HARVESTER_CLUSTERS, case.name, paused=True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"))
    await case.patch(CLUSTERS, case.name, {"metadata": {"finalizers": None}})
    await case.ask_deletion(CLUSTERS, case.name)
    await case.until_gone(CLUSTERS, case.name)
    await create_later(other)
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    await case.pause_object(HARVESTER_CLUSTERS, case.name, paused=False)
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
