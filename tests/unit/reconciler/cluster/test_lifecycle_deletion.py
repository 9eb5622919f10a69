"""The deletion of a cluster's infrastructure: in which order, what is waited for, and what stays."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
from prometheus_client import REGISTRY

from caphv.api import resources
from caphv.api.conditions import get_condition
from caphv.api.names import (
    BALANCER_CLUSTER_LABEL,
    BALANCER_SERVICE_LABEL,
    BALANCER_SERVICE_NAMESPACE_LABEL,
    CLUSTER_FINALIZER,
)
from caphv.api.object import SERVICES, Key
from caphv.runtime.errors import Forbidden, ServerFault
from tests.support.reconciler.infrastructure import BY_POOL, RANGE, delete, ready, with_load_balancer
from tests.support.reconciler.memorycase import KEY, TARGET, Cached, MemoryCase, of_kind, stall

pytestmark = pytest.mark.unit


async def test_deletion_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_load_balancer(monkeypatch, loadBalancerConfig=BY_POOL)
    case.machines.clear()
    await delete(case)
    assert case.management.find("HarvesterCluster", "demo", "team") is None
    assert case.harvester.stored(resources.LOAD_BALANCERS) == case.harvester.stored(SERVICES) == []
    (stored,) = case.harvester.stored(resources.IP_POOLS)
    assert stored["status"]["allocated"] == {}
    order = list(of_kind(case.harvester.requests, "LoadBalancer")), list(of_kind(case.harvester.requests, "Service"))
    assert [verbs[-1] for verbs in order] == ["delete", "delete"]
    deleted = [request.split()[1] for request in case.harvester.requests if request.startswith("delete")]
    assert deleted == ["LoadBalancer", "Service"]
    assert ("Normal", "InfrastructureDeleted") in case.events


async def test_cluster_that_was_deleted_releases_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    released: list[Key] = []

    async def release(key: Key) -> None:
        released.append(key)

    case.context.sessions.release = release  # type: ignore[method-assign]
    before = case.context.memory.cluster(case.obj)
    obj = case.obj
    await delete(case)
    await case.reconcile()
    assert case.management.find("HarvesterCluster", "demo", "team") is None
    assert released[-1:] == [KEY]
    assert case.context.memory.cluster(obj) is not before


@pytest.mark.parametrize("operation", ["normal", "delete"])
async def test_the_duration_of_a_reconcile_is_measured(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    case = await ready(monkeypatch)
    count = partial(
        REGISTRY.get_sample_value, "caphv_cluster_reconcile_duration_seconds_count", {"operation": operation}
    )
    before = count() or 0
    await (case.reconcile() if operation == "normal" else delete(case, times=1))
    assert count() == before + 1


async def test_annotation_to_adopt_is_dropped_once_all_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    annotations = {"caphv.io/adopt": "true", "example.com/keep": "x"}
    case.management.put({**case.obj, "metadata": {**case.obj["metadata"], "annotations": annotations}})
    await case.reconcile()
    assert case.obj["metadata"]["annotations"] == {"example.com/keep": "x"}
    assert case.condition("Ready")[0] == "True"


async def test_deletion_waits_for_each_object(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_load_balancer(monkeypatch, loadBalancerConfig=BY_POOL)
    case.machines.clear()
    (balancer,) = case.harvester.stored(resources.LOAD_BALANCERS)
    balancer["metadata"]["finalizers"] = ["harvester"]
    case.harvester.put(balancer)
    await delete(case)
    assert case.obj["metadata"]["finalizers"] == [CLUSTER_FINALIZER]
    assert case.harvester.stored(SERVICES), "the Service has the address as long as the LoadBalancer exists"
    assert list(of_kind(case.harvester.requests, "LoadBalancer")).count("delete") == 1
    assert case.condition("InfrastructureReady") == ("False", "InfrastructureProvisioningInProgress")


async def test_deletion_leaves_nothing_that_watches_have_not_delivered_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_load_balancer(monkeypatch, loadBalancerConfig=BY_POOL)
    case.machines.clear()
    monkeypatch.setattr(Cached, "lags", {"LoadBalancer", "Service"})
    await delete(case)
    assert case.management.find("HarvesterCluster", "demo", "team") is None
    assert case.harvester.stored(resources.LOAD_BALANCERS) == case.harvester.stored(SERVICES) == []


async def test_deletion_waits_for_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_load_balancer(monkeypatch)
    await delete(case)
    assert case.obj["metadata"]["finalizers"] == [CLUSTER_FINALIZER]
    assert case.harvester.stored(resources.LOAD_BALANCERS)


async def test_address_of_another_cluster_is_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch, loadBalancerConfig=BY_POOL)
    (stored,) = case.harvester.stored(resources.IP_POOLS)
    stored["status"]["allocated"] |= {"10.0.0.11": f"{TARGET}/another", "10.0.0.12": "team/one"}
    case.harvester.put(stored)
    await delete(case)
    (stored,) = case.harvester.stored(resources.IP_POOLS)
    assert stored["status"]["allocated"] == {"10.0.0.11": f"{TARGET}/another", "10.0.0.12": "team/one"}


async def test_pool_that_may_not_be_deleted_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    balancers = {"ipamType": "pool", "ipPool": RANGE}
    case = await ready(monkeypatch, loadBalancerConfig=balancers)
    case.harvester.errors["delete IPPool"] = Forbidden(403, "Forbidden", "cannot delete ippools")
    await delete(case)
    assert 0 < (await case.reconcile() or 0) <= 60, "the right may be granted"
    assert case.condition("InfrastructureReady") == ("False", "InfrastructureProvisioningFailed")
    assert ("Warning", "InfrastructureProvisioningFailed") in case.events
    assert case.obj["metadata"]["finalizers"] == [CLUSTER_FINALIZER]
    case.harvester.errors.clear()
    await delete(case)
    assert case.harvester.stored(resources.IP_POOLS) == []


async def test_holders_of_addresses_of_a_pool_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch, loadBalancerConfig={"ipamType": "pool", "ipPool": RANGE})
    labels = {BALANCER_SERVICE_LABEL: "web", BALANCER_SERVICE_NAMESPACE_LABEL: "shop", BALANCER_CLUSTER_LABEL: "guest"}
    for name, more, workload in (("guests", labels, "cluster"), ("users", {}, "vm")):
        metadata = {"name": name, "namespace": TARGET, "labels": more}
        head = {"apiVersion": resources.LOAD_BALANCERS.api_version, "kind": "LoadBalancer"}
        case.harvester.put({**head, "metadata": metadata, "spec": {"workloadType": workload}})
    machine = {"apiVersion": resources.HARVESTER_MACHINES.api_version, "kind": "HarvesterMachine"}
    case.management.put({**machine, "metadata": {"name": "worker", "namespace": "team"}})

    (stored,) = case.harvester.stored(resources.IP_POOLS)
    holders = [f"{TARGET}/guests", f"{TARGET}/users", "team/worker", "team/former", "team/a", "team/b", "team/c"]
    own = stored["status"]["allocated"]
    stored["status"]["allocated"] = {f"10.0.0.{number}": holder for number, holder in enumerate(holders, 11)} | own
    case.harvester.put(stored)
    await delete(case)

    assert case.condition("InfrastructureReady") == ("False", "IPPoolInUse")
    assert ("Warning", "IPPoolInUse") in case.events
    named = (
        f"Service shop/web of guest guest (LoadBalancer {TARGET}/guests) has address 10.0.0.11, "
        f"LoadBalancer {TARGET}/users has address 10.0.0.12, HarvesterMachine team/worker has address 10.0.0.13, "
        "team/former has address 10.0.0.14, team/a has address 10.0.0.15 and 2 more have others; delete them"
    )
    assert named in message_of(case, "InfrastructureReady")
    stored["status"]["allocated"] = {"10.0.0.14": "team/former"}
    case.harvester.put(stored)
    await case.reconcile()
    assert "and team/former has address 10.0.0.14; delete them" in message_of(case, "InfrastructureReady")
    stored["status"]["allocated"] = {}
    case.harvester.put(stored)
    await delete(case)
    assert case.harvester.stored(resources.IP_POOLS) == []


async def test_a_pool_that_was_deleted_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache still has the addresses that others held."""
    case = await ready(monkeypatch, loadBalancerConfig={"ipamType": "pool", "ipPool": RANGE})
    (stored,) = case.harvester.stored(resources.IP_POOLS)
    stored["status"]["allocated"] |= {"10.0.0.12": "team/former"}
    case.harvester.put(stored)
    stall(monkeypatch, case.harvester, resources.IP_POOLS)
    await case.harvester.delete(resources.IP_POOLS, stored["metadata"]["name"])
    await delete(case)
    assert case.management.find("HarvesterCluster", "demo", "team") is None


def message_of(case: MemoryCase, name: str) -> str:
    return str((get_condition(case.obj["status"]["conditions"], name) or {}).get("message"))


async def test_address_of_a_shared_pool_stays_while_the_service_announces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch, loadBalancerConfig=BY_POOL)
    (service,) = case.harvester.stored(SERVICES)
    service["metadata"]["finalizers"] = ["service.kubernetes.io/load-balancer-cleanup"]
    case.harvester.put(service)
    await delete(case)
    (stored,) = case.harvester.stored(resources.IP_POOLS)
    assert list(stored["status"]["allocated"]) == [service["spec"]["loadBalancerIP"]]
    assert case.obj["metadata"]["finalizers"] == [CLUSTER_FINALIZER]


async def test_nothing_announces_the_address_while_others_keep_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is free, so the pool gives it to others."""
    case = await ready(monkeypatch, loadBalancerConfig={"ipamType": "pool", "ipPool": RANGE})
    (stored,) = case.harvester.stored(resources.IP_POOLS)
    stored["status"]["allocated"] |= {"10.0.0.12": "team/other"}
    case.harvester.put(stored)
    await delete(case)
    assert case.condition("InfrastructureReady") == ("False", "IPPoolInUse")
    (stored,) = case.harvester.stored(resources.IP_POOLS)
    assert stored["status"]["allocated"] == {"10.0.0.12": "team/other"}
    assert case.harvester.stored(SERVICES) == []


async def test_address_leaves_a_pool_of_the_cluster_before_the_pool_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch, loadBalancerConfig={"ipamType": "pool", "ipPool": RANGE})
    before = len(case.harvester.requests)
    await delete(case)
    assert list(of_kind(case.harvester.requests[before:], "IPPool")) == ["patch", "delete"]


async def test_nothing_is_deleted_by_an_outdated_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks may exist, and would be left behind."""
    case = await with_load_balancer(monkeypatch, loadBalancerConfig=BY_POOL)
    case.machines.clear()
    case.namespace.current = False
    before = list(case.harvester.requests)
    await delete(case)
    assert case.harvester.requests == before
    assert case.obj["metadata"]["finalizers"] == [CLUSTER_FINALIZER]
    case.namespace.current = True
    await delete(case)
    assert case.management.find("HarvesterCluster", "demo", "team") is None


async def test_address_is_not_released_once_harvester_became_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch, loadBalancerConfig=BY_POOL)
    case.machines.clear()
    services = case.session.services
    forgotten = services.observe_deletion

    def observe(*what: Any) -> Any:
        case.namespace.current = False
        return forgotten(*what)

    services.observe_deletion = observe
    await delete(case)
    (stored,) = case.harvester.stored(resources.IP_POOLS)
    assert len(stored["status"]["allocated"]) == 1
    case.namespace.current = True
    await delete(case)
    (stored,) = case.harvester.stored(resources.IP_POOLS)
    assert stored["status"]["allocated"] == {}


async def test_cluster_without_a_cloud_config_asks_for_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its identity may lack the right, which must not keep it from being deleted."""
    case = await ready(monkeypatch)
    for kind in ("ServiceAccount", "ClusterRoleBinding", "Secret"):
        case.harvester.errors[f"get {kind}"] = Forbidden(403, "Forbidden", "cannot get that")
    await delete(case)
    assert case.management.find("HarvesterCluster", "demo", "team") is None


async def test_deletion_with_a_cloud_config_does_not_wait_for_server_faults_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await ready(monkeypatch, cloudConfig={"delivery": "File"}, controlPlaneBackups={"keep": 2})
    case.harvester.serve(resources.VM_BACKUPS.api_version, resources.VM_BACKUPS.kind)
    fault = ServerFault(500, "InternalError", "failed calling webhook")
    case.harvester.errors["list VirtualMachineBackup"] = fault
    with pytest.raises(ServerFault):
        await delete(case)
    later = time.monotonic() + 61
    monkeypatch.setattr("reconciler.cluster.backups.time.monotonic", lambda: later)
    await delete(case)
    assert case.management.find("HarvesterCluster", "demo", "team") is None
    assert ("Warning", "BackupsKept") in case.events
