"""When load balancers of a guest are recorded and deleted, and for how long Harvester is waited for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api import names, resources
from caphv.api.conditions import rfc3339
from caphv.api.guestparts import entry_of, proof_annotations, recorded_guest
from caphv.api.object import Obj, Resource, annotations_of
from caphv.api.ownership import Owner
from caphv.runtime.errors import Conflict, Forbidden
from tests.support.reconciler.infrastructure import delete, ready
from tests.support.reconciler.memorycase import TARGET, MemoryCase, stall

pytestmark = pytest.mark.unit


def balancer(case: MemoryCase, name: str = "web", guest: str = "demo") -> Obj:
    labels = {names.BALANCER_CLUSTER_LABEL: guest, names.BALANCER_SERVICE_LABEL: name}
    labels[names.BALANCER_SERVICE_NAMESPACE_LABEL] = "default"
    metadata = {"name": name, "namespace": TARGET, "labels": labels, "uid": f"{name}-uid"}
    return case.harvester.put(
        {
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
            "kind": "LoadBalancer",
            "metadata": metadata,
            "spec": {"workloadType": "cluster", "ipam": "pool"},
        }
    )


def add_node(case: MemoryCase) -> None:
    """Add a machine with a VM that has the provider's label and record."""
    vm = case.add_machine("worker", control_plane=False)
    vm["metadata"] |= {
        "labels": {names.CLUSTER_LABEL: "team.demo", names.GUEST_CLUSTER_LABEL: "demo"},
        "annotations": {names.OWNER_CLUSTER_ANNOTATION: "management-uid"},
    }
    case.harvester.put(vm)


async def remove_nodes(case: MemoryCase) -> None:
    case.machines.clear()
    await case.harvester.delete(resources.VIRTUAL_MACHINES, "worker", TARGET)


async def with_services(monkeypatch: pytest.MonkeyPatch) -> MemoryCase:
    """A ready cluster with a node and a Service, whose LoadBalancer is recorded."""
    case = await ready(monkeypatch)
    add_node(case)
    balancer(case)
    await case.reconcile()
    return case


async def test_vms_prove_a_load_balancer_that_is_deleted_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_services(monkeypatch)
    (stored,) = case.harvester.stored(resources.LOAD_BALANCERS)
    owner = recorded_guest(stored)
    assert owner is not None
    assert (owner.name, owner.uid) == ("demo", "demo-uid")

    await remove_nodes(case)
    await delete(case)
    assert case.harvester.stored(resources.LOAD_BALANCERS) == []
    assert case.management.find("HarvesterCluster", "demo", "team") is None
    assert ("Normal", "GuestLoadBalancerDeleted") in case.events


async def test_a_proof_is_written_once_although_watches_deliver_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    add_node(case)
    balancer(case)
    stall(monkeypatch, case.harvester, resources.LOAD_BALANCERS)
    for _ in range(2):
        await case.reconcile()
    assert case.harvester.requests.count("patch LoadBalancer web") == 1

    await remove_nodes(case)
    await delete(case)
    assert case.harvester.requests.count("delete LoadBalancer web") == 1
    assert case.management.find("HarvesterCluster", "demo", "team") is None


async def test_what_no_vm_has_proven_is_kept_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    balancer(case)
    balancer(case, "blog", "blog")
    await delete(case)
    assert {obj["metadata"]["name"] for obj in case.harvester.stored(resources.LOAD_BALANCERS)} == {"web", "blog"}
    assert ("Warning", "GuestLoadBalancersKept") in case.events
    assert case.management.find("HarvesterCluster", "demo", "team") is None


async def test_nothing_is_written_to_load_balancers_that_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_services(monkeypatch)
    requests = list(case.harvester.requests)
    await case.reconcile()
    assert case.harvester.requests == requests


@pytest.mark.parametrize(("error", "delay"), [(Conflict, 1.0), (Forbidden, 300.0)])
async def test_refused_record_does_not_block_the_cluster(
    monkeypatch: pytest.MonkeyPatch, error: type[Conflict], delay: float
) -> None:
    case = await ready(monkeypatch)
    add_node(case)
    balancer(case)
    case.harvester.errors["patch LoadBalancer"] = error(403, "", "no")
    assert await case.reconcile() == delay
    assert case.condition("Ready")[0] == "True"


@pytest.mark.parametrize("elapsed", [10, 500])
async def test_harvester_gets_a_bounded_time_to_release_the_address(
    monkeypatch: pytest.MonkeyPatch, elapsed: int
) -> None:
    case = await with_services(monkeypatch)
    (stored,) = case.harvester.stored(resources.LOAD_BALANCERS)
    requested = rfc3339(datetime.now(UTC) - timedelta(seconds=elapsed))
    stored["metadata"] |= {"finalizers": ["harvester"], "deletionTimestamp": requested}
    case.harvester.put(stored)
    await remove_nodes(case)
    await delete(case)

    is_over = elapsed == 500
    assert (case.management.find("HarvesterCluster", "demo", "team") is None) is is_over
    assert (("Warning", "GuestLoadBalancersRemain") in case.events) is is_over
    if not is_over:
        assert case.condition("InfrastructureReady") == ("False", "InfrastructureProvisioningInProgress")
        assert 100 < (await case.reconcile() or 0) <= 110


@pytest.mark.parametrize("proof", ["restored", "adopted", ""])
async def test_load_balancer_from_before_a_move_needs_a_proof_of_it(
    monkeypatch: pytest.MonkeyPatch, proof: str
) -> None:
    case = await with_services(monkeypatch)
    (stored,) = case.harvester.stored(resources.LOAD_BALANCERS)
    former = Owner("HarvesterCluster", "team", "demo", "former-uid", "former-management")
    case.harvester.put(
        {**stored, "metadata": {**stored["metadata"], "annotations": proof_annotations(stored, [entry_of(former)])}}
    )
    if proof == "restored":
        annotations = {**annotations_of(case.obj), names.FORMER_OWNER_ANNOTATION: "former-management/former-uid"}
        case.management.put({**case.obj, "metadata": {**case.obj["metadata"], "annotations": annotations}})
    if proof == "adopted":
        for vm in case.harvester.stored(resources.VIRTUAL_MACHINES):
            annotations = {**annotations_of(vm), names.FORMER_CLUSTERS_ANNOTATION: "first,former-management"}
            case.harvester.put({**vm, "metadata": {**vm["metadata"], "annotations": annotations}})
    await case.reconcile()
    await remove_nodes(case)
    await delete(case)
    assert bool(case.harvester.stored(resources.LOAD_BALANCERS)) is (not proof)


@pytest.mark.parametrize(("uid", "kept"), [("harvester-uid", True), ("", True), ("another", False)])
async def test_namesake_with_another_address_of_the_harvester_contests_it(
    monkeypatch: pytest.MonkeyPatch, uid: str, kept: bool
) -> None:
    case = await with_services(monkeypatch)
    other = {"name": "demo", "namespace": "another", "uid": "other"}
    case.management.put({**case.cluster, "metadata": other})
    infrastructure = case.management.put({**case.obj, "metadata": other, "spec": {"targetNamespace": TARGET}})
    theirs = SimpleNamespace(server="https://192.0.2.1", uid=uid)
    monkeypatch.setattr(case.context.caches, "harvester_cluster_of", lambda _: infrastructure, raising=False)
    monkeypatch.setattr(case.context.sessions, "of", lambda key: case.session if key.namespace == "team" else theirs)
    await remove_nodes(case)
    await delete(case)
    assert bool(case.harvester.stored(resources.LOAD_BALANCERS)) is kept


async def test_load_balancer_that_is_written_meanwhile_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_services(monkeypatch)
    delete_balancer = case.harvester.delete

    async def write_first(resource: Resource, name: str, namespace: str = "", **options: Any) -> Obj | None:
        if name == "web":
            monkeypatch.setattr(case.harvester, "delete", delete_balancer)
            (stored,) = case.harvester.stored(resources.LOAD_BALANCERS)
            annotations = proof_annotations(stored, ["another"])
            case.harvester.put({**stored, "metadata": {**stored["metadata"], "annotations": annotations}})
        return await delete_balancer(resource, name, namespace, **options)

    await remove_nodes(case)
    monkeypatch.setattr(case.harvester, "delete", write_first)
    await delete(case)
    assert case.harvester.stored(resources.LOAD_BALANCERS)
    assert case.management.find("HarvesterCluster", "demo", "team") is None


@pytest.mark.parametrize("seconds_ago", [10, 700])
async def test_guest_that_still_runs_delays_the_deletion_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, seconds_ago: int
) -> None:
    """Its VM was left behind, and its cloud provider creates the LoadBalancer again each time."""
    case = await with_services(monkeypatch)
    (stored,) = case.harvester.stored(resources.LOAD_BALANCERS)
    requested = rfc3339(datetime.now(UTC))
    stored["metadata"] |= {"finalizers": ["harvester"], "deletionTimestamp": requested}
    case.harvester.put(stored)
    case.machines.clear()
    await delete(case, seconds_ago=seconds_ago)
    assert (case.management.find("HarvesterCluster", "demo", "team") is None) is (seconds_ago == 700)


async def test_forced_deletion_deletes_no_load_balancer(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_services(monkeypatch)
    annotations = {**annotations_of(case.obj), names.FORCE_DELETE_ANNOTATION: "true"}
    case.management.put({**case.obj, "metadata": {**case.obj["metadata"], "annotations": annotations}})
    await remove_nodes(case)
    await delete(case)
    assert [obj["metadata"]["name"] for obj in case.harvester.stored(resources.LOAD_BALANCERS)] == ["web"]
    assert ("Warning", "GuestLoadBalancersKept") in case.events
