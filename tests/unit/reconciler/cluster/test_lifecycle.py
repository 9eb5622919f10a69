"""The life of a cluster's infrastructure: what is created, in which order, and kept as it is."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api import resources
from caphv.api.names import CLUSTER_FINALIZER, ConditionType
from caphv.api.object import NAMESPACES, SERVICES
from caphv.api.ownership import record
from caphv.runtime.errors import ApiError, Forbidden, Invalid, NotFound, Unauthorized, Unreachable
from tests.support.reconciler.infrastructure import (
    ADDRESS,
    BY_POOL,
    RANGE,
    delete,
    existing_pool,
    ready,
    with_load_balancer,
)
from tests.support.reconciler.memorycase import TARGET, MemoryCase

pytestmark = pytest.mark.unit


async def test_infrastructure_comes_with_an_address_by_dhcp(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    await case.reconcile()
    assert case.obj["metadata"]["finalizers"] == [CLUSTER_FINALIZER]
    assert case.harvester.find("Namespace", TARGET) is not None
    (service,) = case.harvester.stored(SERVICES)
    assert service["spec"]["loadBalancerIP"] == "0.0.0.0"
    assert service["metadata"]["annotations"]["caphv.io/owner"] == "HarvesterCluster/team/demo"
    assert case.condition("LoadBalancerReady") == ("False", "InfrastructureProvisioningInProgress")
    assert case.condition("Ready")[0] == "False"
    assert "controlPlaneEndpoint" not in case.obj["spec"]
    case.assign(ADDRESS)
    await case.reconcile()
    assert case.obj["spec"]["controlPlaneEndpoint"] == {"host": ADDRESS, "port": 6443}
    assert case.obj["status"]["initialization"]["provisioned"]
    assert case.obj["status"]["ready"]
    assert case.events == [
        ("Normal", "TargetNamespaceCreated"),
        ("Normal", "ControlPlaneEndpointSet"),
        ("Normal", "InfrastructureReady"),
    ]
    assert case.condition("InitMachineCreated") == ("False", "MachineNotFound")
    assert case.harvester.stored(resources.LOAD_BALANCERS) == []


async def test_nothing_is_written_when_all_is_as_it_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_load_balancer(monkeypatch, loadBalancerConfig=BY_POOL)
    before = len(case.harvester.requests), len(case.management.requests), len(case.events)
    await case.reconcile()
    assert (len(case.harvester.requests), len(case.management.requests), len(case.events)) == before


async def test_address_of_a_pool_is_reserved_before_the_service_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch, loadBalancerConfig=BY_POOL)
    with_pool = existing_pool()
    case.harvester.put(with_pool)
    await case.reconcile()
    (stored,) = case.harvester.stored(resources.IP_POOLS)
    (service,) = case.harvester.stored(SERVICES)
    assert stored["status"]["allocated"] == {ADDRESS: f"{TARGET}/{service['metadata']['name']}"}
    assert service["spec"]["loadBalancerIP"] == ADDRESS


async def test_pool_without_an_address_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch, loadBalancerConfig=BY_POOL)
    full = existing_pool()
    full["status"]["allocated"] = {f"10.0.0.{number}": "another/one" for number in range(10, 15)}
    case.harvester.put(full)
    await case.reconcile()
    assert case.condition("LoadBalancerReady") == ("False", "InfrastructureProvisioningFailed")
    assert ("Warning", "InfrastructureProvisioningFailed") in case.events
    assert case.harvester.stored(SERVICES) == []


@pytest.mark.parametrize("ref", ["balancers", "default/balancers"])
async def test_pool_is_named_with_or_without_a_namespace(monkeypatch: pytest.MonkeyPatch, ref: str) -> None:
    case = MemoryCase(monkeypatch, loadBalancerConfig={"ipamType": "pool", "ipPoolRef": ref})
    case.harvester.put(existing_pool())
    await case.reconcile()
    assert case.harvester.stored(SERVICES)[0]["spec"]["loadBalancerIP"] == ADDRESS


async def test_no_pool_is_an_error_of_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch, loadBalancerConfig={"ipamType": "pool"})
    await case.reconcile()
    assert case.condition("LoadBalancerReady") == ("False", "InfrastructureProvisioningFailed")
    assert ("Warning", "InfrastructureProvisioningFailed") in case.events
    assert case.condition("Ready")[0] == "False"
    assert case.events.count(("Warning", "InfrastructureProvisioningFailed")) == 1
    await case.reconcile()
    assert case.events.count(("Warning", "InfrastructureProvisioningFailed")) == 1, "it is reported once"


async def test_described_pools_are_created_and_named_in_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    balancers = {"ipamType": "pool", "ipPool": {**RANGE, "vmNetwork": "production"}}
    machines = {
        "ipPool": {
            **RANGE,
            "subnet": "10.1.0.0/24",
            "rangeStart": "10.1.0.10",
            "rangeEnd": "10.1.0.14",
            "gateway": "10.1.0.1",
        }
    }
    machines |= {"gateway": "10.1.0.1", "subnetMask": "255.255.255.0"}
    case = MemoryCase(monkeypatch, loadBalancerConfig=balancers, vmNetworkConfig=machines)
    await case.reconcile()
    found = {obj["metadata"]["name"]: obj for obj in case.harvester.stored(resources.IP_POOLS)}
    spec = case.obj["spec"]
    names = spec["loadBalancerConfig"]["ipPoolRef"], spec["vmNetworkConfig"]["ipPoolRef"]
    assert set(names) == set(found)
    assert found[names[0]]["spec"]["selector"] == {"network": f"{TARGET}/production"}
    assert found[names[0]]["spec"]["ranges"] == [RANGE]
    assert "selector" not in found[names[1]]["spec"]
    assert all(obj["metadata"]["annotations"]["caphv.io/owner-uid"] == "demo-uid" for obj in found.values())
    for condition in (
        ConditionType.VM_IP_POOL_READY,
        ConditionType.VM_IP_POOL_CREATED,
        ConditionType.CUSTOM_IP_POOL_CREATED,
    ):
        assert case.condition(condition)[0] == "True", condition
    assert case.events.count(("Normal", "IPPoolCreated")) == 2
    # The Go provider recorded no owner: its condition says that it has created them.
    for obj in found.values():
        case.harvester.put({**obj, "metadata": {**obj["metadata"], "annotations": {}}})
    case.assign(ADDRESS)
    await case.reconcile()
    owned = [
        obj["metadata"]["annotations"].get("caphv.io/owner-uid") for obj in case.harvester.stored(resources.IP_POOLS)
    ]
    assert owned == ["demo-uid"] * 2
    # Deletion takes both away, and the address first.
    await case.reconcile()
    await delete(case)
    assert case.harvester.stored(resources.IP_POOLS) == []


NETWORK = {"ipPool": RANGE, "gateway": "10.0.0.1", "subnetMask": "255.0.0.0"}


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("vmNetworkConfig", {**NETWORK, "ipPoolRef": "given"}),
        ("vmNetworkConfig", {**NETWORK, "ipPoolRefs": ["given"]}),
        ("loadBalancerConfig", {"ipamType": "pool", "ipPool": RANGE, "ipPoolRef": "given"}),
    ],
)
async def test_no_described_pool_is_created_if_the_spec_names_one(
    monkeypatch: pytest.MonkeyPatch, field: str, config: dict[str, Any]
) -> None:
    case = MemoryCase(monkeypatch, **{field: config})
    await case.reconcile()
    assert case.harvester.stored(resources.IP_POOLS) == []
    assert case.obj["spec"][field] == config


async def test_a_described_pool_that_has_no_addresses_is_an_error_of_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch, vmNetworkConfig={**NETWORK, "ipPool": {**RANGE, "subnet": "10.0.0.0/99"}})
    assert await case.reconcile() is None, "only another spec helps"
    assert case.condition("VMIPPoolReady") == ("False", "VMIPPoolCreationFailed")
    assert case.events.count(("Warning", "VMIPPoolCreationFailed")) == 1
    assert case.harvester.stored(resources.IP_POOLS) == []


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (Forbidden(403, "Forbidden", "cannot create ippools"), ("False", "VMIPPoolCreationFailed")),
        (Invalid(422, "Invalid", "overlaps"), ("False", "VMIPPoolCreationFailed")),
    ],
)
async def test_refused_pool_is_tried_again_in_a_minute(
    monkeypatch: pytest.MonkeyPatch, error: ApiError, condition: tuple[str, str]
) -> None:
    case = MemoryCase(monkeypatch, vmNetworkConfig=NETWORK)
    case.harvester.errors["create IPPool"] = error
    assert await case.reconcile() == 60.0
    assert case.condition("VMIPPoolReady") == condition
    assert case.events.count(("Warning", "VMIPPoolCreationFailed")) == 1
    assert "ipPoolRef" not in case.obj["spec"]["vmNetworkConfig"]


async def test_pool_of_machines_that_does_not_exist_blocks_only_without_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = {"ipPoolRefs": ["first", "second"], "gateway": "10.0.0.1", "subnetMask": "255.255.255.0"}
    case = MemoryCase(monkeypatch, vmNetworkConfig=network)
    case.harvester.put(existing_pool("firsts"))
    await case.reconcile()
    assert case.condition("VMIPPoolReady") == ("False", "VMIPPoolNotFound")
    assert case.events.count(("Warning", "VMIPPoolNotFound")) == 1
    (ready,) = (each for each in case.obj["status"]["conditions"] if each["type"] == "VMIPPoolReady")
    assert 'IPPool first, did you mean "firsts"?, second of vmNetworkConfig does not exist' in ready["message"]
    assert case.harvester.stored(SERVICES) == []
    case.harvester.put(existing_pool("second"))
    await case.reconcile()
    assert case.condition("VMIPPoolReady")[0] == "True"
    assert case.harvester.stored(SERVICES)
    # Its creation requeues the cluster.
    before = len(case.context.queues.clusters)
    case.context.topics.notify(("pool", "harvester", "first"))
    assert len(case.context.queues.clusters) >= before


async def test_annotation_adopts_nothing_of_another_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tenants share an account on Harvester, and one asks for adoption of the other's Service."""
    case = MemoryCase(monkeypatch)
    metadata = {"name": "demo", "namespace": "victim", "uid": "victim-uid"}
    victim = {**case.obj, "metadata": metadata}
    case.management.put(victim)
    case.management.put({**case.obj, "metadata": {**case.obj["metadata"], "annotations": {"caphv.io/adopt": "true"}}})
    name = case.scope().load_balancer_name
    owner = record(case.context.owner("HarvesterCluster", victim))
    service = {"name": name, "namespace": TARGET, "annotations": owner}
    case.harvester.put({"apiVersion": "v1", "kind": "Service", "metadata": service, "spec": {}})
    await case.reconcile()
    assert case.condition("LoadBalancerReady") == ("False", "InfrastructureProvisioningFailed")
    assert ("Warning", "InfrastructureProvisioningFailed") in case.events
    (stored,) = case.harvester.stored(SERVICES)
    assert stored["metadata"]["annotations"] == owner
    # Once its owner no longer exists, the annotation is sufficient.
    await case.management.delete(resources.HARVESTER_CLUSTERS, "demo", "victim")
    await case.reconcile()
    (stored,) = case.harvester.stored(SERVICES)
    assert stored["metadata"]["annotations"] == {**owner, **record(case.scope().owner)}


async def test_foreign_objects_are_neither_used_nor_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    await case.reconcile()
    (service,) = case.harvester.stored(SERVICES)
    service["metadata"]["annotations"] |= {"caphv.io/owner": "HarvesterCluster/other/demo", "caphv.io/owner-uid": "x"}
    case.harvester.put(service)
    case.assign(ADDRESS)
    await case.reconcile()
    assert case.condition("LoadBalancerReady") == ("False", "InfrastructureProvisioningFailed")
    assert ("Warning", "InfrastructureProvisioningFailed") in case.events
    assert "controlPlaneEndpoint" not in case.obj["spec"]
    await delete(case)
    assert case.harvester.stored(SERVICES) == [case.harvester.find("Service", service["metadata"]["name"], TARGET)]


async def test_service_of_the_go_provider_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    await case.reconcile()
    (service,) = case.harvester.stored(SERVICES)
    service["metadata"]["annotations"] = {}
    case.harvester.put(service)
    case.assign(ADDRESS)
    await case.reconcile()
    (service,) = case.harvester.stored(SERVICES)
    assert service["metadata"]["annotations"]["caphv.io/owner-uid"] == "demo-uid"
    assert ("Normal", "Adopted") in case.events
    assert case.obj["spec"]["controlPlaneEndpoint"]["host"] == ADDRESS


# The LoadBalancer


async def test_load_balancer_comes_with_the_first_control_plane_vm(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch, loadBalancerConfig=BY_POOL)
    case.add_machine("worker-0", control_plane=False)
    await case.reconcile()
    assert case.harvester.stored(resources.LOAD_BALANCERS) == []
    case.add_machine("cp-0")
    await case.reconcile()
    (balancer,) = case.harvester.stored(resources.LOAD_BALANCERS)
    assert balancer["spec"]["ipPool"] == "balancers"
    assert balancer["spec"]["backendServerSelector"] == {"harvestercluster/machinetype": ["controlplane-demo"]}
    assert case.condition("InitMachineCreated")[0] == "True"
    assert case.events.count(("Normal", "LoadBalancerCreated")) == 1


async def test_selector_gets_the_label_of_the_cluster_when_all_vms_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    labels = {"caphv.io/cluster": "team.demo"}
    case.add_machine("cp-0", **labels)
    await case.reconcile()
    (balancer,) = case.harvester.stored(resources.LOAD_BALANCERS)
    assert balancer["spec"]["backendServerSelector"].get("caphv.io/cluster") == ["team.demo"]
    case.add_machine("cp-1")
    await case.reconcile()
    (balancer,) = case.harvester.stored(resources.LOAD_BALANCERS)
    assert "caphv.io/cluster" not in balancer["spec"]["backendServerSelector"]
    assert ("Normal", "LoadBalancerUpdated") in case.events


async def test_edited_load_balancer_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_load_balancer(monkeypatch)
    (balancer,) = case.harvester.stored(resources.LOAD_BALANCERS)
    case.harvester.put({**balancer, "spec": {**balancer["spec"], "listeners": []}})
    await case.reconcile()
    (repaired,) = case.harvester.stored(resources.LOAD_BALANCERS)
    assert repaired["spec"]["listeners"] == balancer["spec"]["listeners"]


async def test_vm_of_another_owner_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    vm = case.add_machine("cp-0")
    vm["metadata"]["annotations"] = {"caphv.io/owner": "HarvesterMachine/other/cp-0", "caphv.io/owner-uid": "x"}
    case.harvester.put(vm)
    await case.reconcile()
    assert case.harvester.stored(resources.LOAD_BALANCERS) == []


@pytest.mark.parametrize("kind", [Forbidden, Invalid])
async def test_refused_request_is_reported_and_retried(monkeypatch: pytest.MonkeyPatch, kind: type[ApiError]) -> None:
    case = MemoryCase(monkeypatch)
    error = kind(403, "", "cannot create services")
    error.server = "harvester"
    case.harvester.errors["create Service"] = error
    assert await case.reconcile() is not None
    assert case.condition("LoadBalancerReady")[0] == case.condition("Ready")[0] == "False"
    assert "Warning" in {kind for kind, _ in case.events}
    case.harvester.errors.clear()
    await case.reconcile()
    assert case.harvester.stored(SERVICES)


async def test_unreachable_harvester_keeps_a_ready_cluster_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    case.harvester.errors["create LoadBalancer"] = Unreachable("no answer")
    case.add_machine("cp-0")
    with pytest.raises(Unreachable):
        await case.reconcile()
    assert case.condition("Ready")[0] == "True"


async def test_rejected_credentials_are_probed_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    case.harvester.errors["create Service"] = Unauthorized(401, "Unauthorized", "")
    assert await case.reconcile() is not None
    assert ("", "probed") in case.events
    assert case.condition("HarvesterConnectionReady") == ("False", "HarvesterAuthenticationFailed")
    assert ("Warning", "HarvesterAuthenticationFailed") in case.events


async def test_lost_target_namespace_is_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    case.add_machine("cp-0")
    lost = NotFound(404, "NotFound", 'namespaces "vms" not found')
    lost.details = {"kind": "namespaces", "name": TARGET}
    case.harvester.errors["create LoadBalancer"] = lost
    with pytest.raises(NotFound):
        await case.reconcile()
    assert case.condition("TargetNamespaceReady")[0] == "False"
    del case.harvester.errors["create LoadBalancer"]
    await case.reconcile()
    assert case.condition("TargetNamespaceReady")[0] == "True"


async def test_target_namespace_that_a_machine_has_found_lost_is_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with an external endpoint itself creates nothing there."""
    endpoint = {"host": "10.0.0.9", "port": 6443}
    case = MemoryCase(monkeypatch, loadBalancerConfig={"ipamType": "none"}, controlPlaneEndpoint=endpoint)
    monkeypatch.setattr(case.context.workloads, "outage", lambda _: None, raising=False)
    await case.reconcile()
    assert case.condition("Ready")[0] == "True"
    await case.harvester.delete(NAMESPACES, TARGET)
    await case.reconcile()
    assert case.harvester.find("Namespace", TARGET) is None, "no request is sent without a cause"
    case.context.memory.cluster(case.obj).namespace_lost = True
    await case.reconcile()
    assert case.harvester.find("Namespace", TARGET)
    assert not case.context.memory.cluster(case.obj).namespace_lost


# The connection


async def test_harvester_of_a_cluster_is_remembered_and_no_other_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    assert case.obj["status"]["harvester"]["uid"] == "harvester-uid"
    case.add_machine("cp-0")
    case.session.uid = "another"
    await case.reconcile()
    assert case.condition("HarvesterConnectionReady") == ("False", "AnotherHarvester")
    assert ("Warning", "AnotherHarvester") in case.events
    assert case.obj["status"]["ready"] is False
    assert case.condition("Ready")[0] == "False"
    assert case.obj["status"]["harvester"]["uid"] == "harvester-uid"
    # Nothing would seem to be lost of a cluster without machines.
    case.machines.clear()
    await case.reconcile()
    assert case.obj["status"]["harvester"]["uid"] == "another"
    assert ("Warning", "HarvesterChanged") in case.events


async def test_deletion_on_another_harvester_would_delete_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    case.session.uid = "another"
    await delete(case)
    assert case.condition("HarvesterConnectionReady") == ("False", "AnotherHarvester")
    assert ("Warning", "AnotherHarvester") in case.events
    assert case.obj["status"]["ready"] is False
    assert case.harvester.stored(SERVICES)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"is_unauthorized": True}, "HarvesterAuthenticationFailed"),
        ({"synced": False, "missing_kind": "VirtualMachine"}, "HarvesterConnectionFailed"),
        ({"synced": False, "sync_error": "cannot list"}, "HarvesterConnectionFailed"),
        ({"available": False, "deployment_object": True}, "HarvesterConnectionFailed"),
        ({"available": False, "deployment_object": False}, "HarvesterConnectionFailed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
async def test_connection_that_does_not_work_says_why(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str
) -> None:
    case = MemoryCase(monkeypatch)
    vars(case.session).update(changes)
    await case.reconcile()
    assert case.condition("HarvesterConnectionReady") == ("False", reason)
    assert case.condition("Ready") == ("False", reason)
    assert case.harvester.requests == []


async def test_machines_hear_of_a_changed_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    case.add_machine("cp-0")
    await case.reconcile()
    assert len(case.context.queues.machines) == 0
    case.session.is_unauthorized = True
    await case.reconcile()
    assert len(case.context.queues.machines) == 1


@pytest.mark.parametrize("annotated", [True, False])
async def test_paused_cluster_is_left_alone(monkeypatch: pytest.MonkeyPatch, annotated: bool) -> None:
    case = MemoryCase(monkeypatch)
    if annotated:
        case.management.put(
            {**case.obj, "metadata": {**case.obj["metadata"], "annotations": {"cluster.x-k8s.io/paused": ""}}}
        )
    else:
        case.management.put({**case.cluster, "spec": {"paused": True}})
    await case.reconcile()
    assert case.harvester.requests == []
    assert case.condition("Paused")[0] == "True"
    assert "finalizers" not in case.obj["metadata"]
