"""What was known of a cluster stays for a while when its Harvester cannot be asked; and what is missing is named."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml

from caphv.api import resources
from caphv.api.names import LOAD_BALANCER_SUFFIX, generated_names
from caphv.api.object import SECRETS, SERVICES, Key, Obj, key_of
from caphv.runtime.errors import Forbidden
from reconciler.cluster.loadbalancer import control_plane_vms
from reconciler.cluster.manifest import with_credentials
from reconciler.memory.periods import GRACE_SECONDS
from tests.support.reconciler import parking
from tests.support.reconciler.guests import PLACE, Guests
from tests.support.reconciler.infrastructure import BY_POOL, delete, existing_pool, with_load_balancer
from tests.support.reconciler.memorycase import Cached, MemoryCase, of_kind, stall

pytestmark = pytest.mark.unit

RANGE = {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.14", "gateway": "10.0.0.1"}


async def ready(monkeypatch: pytest.MonkeyPatch, **spec: Any) -> MemoryCase:
    case = MemoryCase(monkeypatch, **spec)
    await case.reconcile()
    case.assign("10.0.0.9")
    await case.reconcile()
    assert case.condition("Ready")[0] == "True"
    return case


@pytest.mark.virtual_time
async def test_a_ready_cluster_stays_ready_while_caches_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    case.session.is_settled = False
    requeue = await case.reconcile()
    assert requeue is not None
    assert 0 < requeue <= GRACE_SECONDS
    assert case.condition("HarvesterConnectionReady")[0] == "True"
    await asyncio.sleep(GRACE_SECONDS + 1)
    await case.reconcile()
    assert case.condition("HarvesterConnectionReady") == ("False", "HarvesterConnectionInProgress")


@pytest.mark.virtual_time
async def test_a_connection_that_was_known_in_between_begins_a_new_grace_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await ready(monkeypatch)
    for _ in range(2):
        case.session.is_settled = False
        await case.reconcile()
        await asyncio.sleep(GRACE_SECONDS - 1)
        await case.reconcile()
        assert case.condition("HarvesterConnectionReady")[0] == "True"
        case.session.is_settled, case.session.available = True, False
        await case.reconcile()
        assert case.condition("HarvesterConnectionReady")[0] == "False"
        case.session.available = True
        await case.reconcile()
        assert case.condition("HarvesterConnectionReady")[0] == "True"


async def test_a_cluster_that_is_not_ready_keeps_its_reason_while_caches_are_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = MemoryCase(monkeypatch)
    await case.reconcile()
    assert case.condition("LoadBalancerReady") == ("False", "InfrastructureProvisioningInProgress")
    before = case.obj["status"]
    case.session.is_settled = False
    await case.reconcile()
    assert case.obj["status"] == before


async def test_machines_are_requeued_when_the_connection_is_lost_and_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await ready(monkeypatch)
    case.add_machine("cp-0")
    requeued = []
    monkeypatch.setattr(case.context.queues.machines, "add", requeued.append)
    for available, count in ((False, 1), (False, 1), (True, 2), (True, 2)):
        case.session.available = available
        await case.reconcile()
        assert requeued == [Key("team", "cp-0")] * count


async def test_a_new_cluster_reports_at_once_that_it_is_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    case.session.is_settled = False
    await case.reconcile()
    assert case.condition("HarvesterConnectionReady") == ("False", "HarvesterConnectionInProgress")


# What this process has written is known before a watch delivers it


async def test_objects_that_were_created_are_not_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch, loadBalancerConfig=BY_POOL)
    case.harvester.put(existing_pool())
    stall(monkeypatch, case.harvester, SERVICES, resources.IP_POOLS, resources.LOAD_BALANCERS)
    for _ in range(2):
        await case.reconcile()
    assert list(of_kind(case.harvester.requests, "Service")) == ["create"]
    assert len(list(of_kind(case.harvester.requests, "IPPool"))) == 1

    case.assign("10.0.0.10")
    (service,) = case.harvester.stored(SERVICES)
    case.session.services.observe(service)
    case.add_machine("cp-0")
    for _ in range(2):
        await case.reconcile()
    assert list(of_kind(case.harvester.requests, "LoadBalancer")) == ["create"]


async def test_a_load_balancer_that_the_cache_lacks_is_read_instead_of_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await with_load_balancer(monkeypatch)
    monkeypatch.setattr(Cached, "lags", {"LoadBalancer"})
    case.events.clear()
    await case.reconcile()
    assert case.condition("LoadBalancerReady")[0] == "True"
    assert ("Normal", "LoadBalancerCreated") not in case.events


async def test_a_delivered_token_is_known_without_its_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    stall(monkeypatch, case.workload, SECRETS)
    for _ in range(2):
        await case.reconcile()
        assert case.condition("CloudProviderConfigReady")[0] == "True"
    assert len(case.harvester.issued) == 1

    # Nor is a deletion by others taken for what the cache still has.
    case.clock[0] += 1000
    await case.workload.delete(SECRETS, *PLACE[1:])
    case.restart()
    for _ in range(2):
        await case.reconcile()
        assert case.condition("CloudProviderConfigReady")[0] == "True"
    assert len(case.harvester.issued) == 2


async def test_deletion_ends_although_watches_deliver_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_load_balancer(monkeypatch, loadBalancerConfig={"ipamType": "pool", "ipPool": RANGE})
    case.machines.clear()
    stall(monkeypatch, case.harvester, SERVICES, resources.IP_POOLS, resources.LOAD_BALANCERS)
    await delete(case)
    assert case.management.find("HarvesterCluster", "demo", "team") is None
    deleted = [request.split()[1] for request in case.harvester.requests if request.startswith("delete")]
    assert sorted(deleted) == ["IPPool", "LoadBalancer", "Service"], "each once"


async def test_what_others_deleted_meanwhile_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_load_balancer(monkeypatch, loadBalancerConfig={"ipamType": "pool", "ipPool": RANGE})
    case.machines.clear()
    watched = (SERVICES, resources.IP_POOLS, resources.LOAD_BALANCERS)
    stall(monkeypatch, case.harvester, *watched)
    for resource in watched:
        for obj in case.harvester.stored(resource):
            await case.harvester.delete(resource, *reversed(key_of(obj)))
    case.harvester.requests.clear()
    await delete(case)
    assert case.management.find("HarvesterCluster", "demo", "team") is None
    assert len(case.harvester.requests) == len(set(case.harvester.requests)), "each is tried once"


async def test_a_vm_that_was_stopped_for_parking_is_not_stopped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    parking.park(case)
    parking.add_vm(case, "w")
    parking.add_node(case, "w", parked_boot="w-run/boot", cordoned_by_park=parking.SINCE)
    stall(monkeypatch, case.harvester, resources.VIRTUAL_MACHINES)
    for _ in range(2):
        await case.reconcile()
    assert case.harvester.requests.count("patch VirtualMachine w") == 1


async def test_a_missing_right_to_create_pools_names_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch, vmNetworkConfig={"ipPool": {**RANGE, "vmNetwork": "default/production"}})
    case.harvester.errors["create IPPool"] = Forbidden(403, "Forbidden", "cannot create ippools")
    await case.reconcile()
    (message,) = (each["message"] for each in case.obj["status"]["conditions"] if each["type"] == "VMIPPoolReady")
    assert "--target-namespace vms --create-ip-pools" in message


async def test_vms_of_the_control_plane_are_those_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    first = case.add_machine("cp-0")
    case.add_machine("w-0", control_plane=False)
    case.add_machine("cp-1")
    await case.harvester.delete(resources.VIRTUAL_MACHINES, "cp-1", "vms")
    assert [vm["metadata"]["name"] for vm in control_plane_vms(case.scope())] == [first["metadata"]["name"]]


async def test_the_address_of_a_load_balancer_in_deletion_is_not_reserved_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Harvester releases it, and would find it taken by a reservation that it does not know."""
    case = await with_load_balancer(monkeypatch, loadBalancerConfig=BY_POOL)
    (balancer,), (stored,) = case.harvester.stored(resources.LOAD_BALANCERS), case.harvester.stored(resources.IP_POOLS)
    metadata = {**balancer["metadata"], "deletionTimestamp": "2026-11-28T00:00:00Z", "finalizers": ["harvester"]}
    case.harvester.put({**balancer, "metadata": metadata})
    (address,) = stored["status"]["allocated"]
    case.harvester.put({**stored, "status": {**stored["status"], "allocated": {}}})
    await case.reconcile()
    assert case.harvester.stored(resources.IP_POOLS)[0]["status"]["allocated"] == {}

    case.harvester.put(balancer)
    await case.harvester.delete(resources.LOAD_BALANCERS, *reversed(key_of(balancer)))
    await case.reconcile()
    assert list(case.harvester.stored(resources.IP_POOLS)[0]["status"]["allocated"]) == [address]
    assert list(of_kind(case.harvester.requests, "LoadBalancer"))[-1] == "create"


async def test_a_service_under_the_name_of_the_go_provider_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    metadata = {**case.obj["metadata"], "name": "a-cluster-with-a-name-that-is-far-too-long-for-a-label-of-dns"}
    scope = case.scope()
    scope.obj = {**case.obj, "metadata": metadata}
    name = scope.load_balancer_name
    (former,) = set(generated_names(scope.obj, LOAD_BALANCER_SUFFIX)) - {name}
    service: Obj = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": former, "namespace": "vms"}}
    case.harvester.put({**service, "metadata": {**service["metadata"], "annotations": {"caphv.io/owner": "other"}}})
    assert scope.load_balancer_name == name, "of another owner"
    record = f"HarvesterCluster/team/{metadata['name']}"
    case.harvester.put({**service, "metadata": {**service["metadata"], "annotations": {"caphv.io/owner": record}}})
    assert scope.load_balancer_name == former
    assert len(case.harvester.stored(SERVICES)) == 1


@pytest.mark.parametrize("metadata", ["", "metadata:\n", "metadata: {}\n", "metadata: {name: cloud}\n"])
def test_a_secret_without_a_name_is_not_the_one(metadata: str) -> None:
    manifest = f"apiVersion: v1\nkind: Secret\n{metadata}"
    before, added = yaml.safe_load_all(with_credentials(manifest, "cloud", "config", "x"))
    assert before == yaml.safe_load(manifest)
    assert (added["metadata"]["name"], added["metadata"]["namespace"]) == ("cloud", "kube-system")
