"""A new cluster is refused if another one has its name in the target namespace; clusters that run are left alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.names import ADOPT_ANNOTATION, GUEST_CLUSTER_LABEL
from caphv.api.object import SERVICES, Obj
from caphv.api.ownership import Owner, record
from reconciler.machine.placement import CLUSTER_LABEL
from tests.support.reconciler.memorycase import INFRASTRUCTURE, TARGET, MemoryCase

pytestmark = pytest.mark.unit

PROVISIONED = {"initialization": {"provisioned": True}}


def add_other(
    case: MemoryCase,
    *,
    name: str = "demo",
    target: str = TARGET,
    status: Obj | None = None,
    created: str = "2126-01-01T00:00:00Z",
) -> None:
    owner = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": name, "uid": "other"}
    metadata = {"name": name, "namespace": "another", "uid": "other-uid", "ownerReferences": [owner]}
    metadata["creationTimestamp"] = created
    obj = {"apiVersion": INFRASTRUCTURE, "kind": "HarvesterCluster", "metadata": metadata}
    case.management.put({**obj, "spec": {"targetNamespace": target}, "status": status or {}})


def add_vm(case: MemoryCase, label: str, owner: Owner | None = None) -> None:
    labels = {GUEST_CLUSTER_LABEL: "demo", CLUSTER_LABEL: label}
    metadata: Obj = {"name": "theirs", "namespace": TARGET, "labels": labels}
    if owner:
        metadata["annotations"] = record(owner)
    case.harvester.put({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata, "spec": {}})


async def test_name_of_a_cluster_that_has_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    add_other(case, status=PROVISIONED)
    assert await case.reconcile()
    assert case.condition("InfrastructureReady") == ("False", "ClusterNameTaken")
    assert ("Warning", "ClusterNameTaken") in case.events
    assert case.condition("Ready") == ("False", "ClusterNameTaken")
    assert case.harvester.stored(SERVICES) == []
    assert [reason for _, reason in case.events].count("ClusterNameTaken") == 1


@pytest.mark.parametrize(
    ("created", "taken"),
    [("2026-01-01T00:00:00Z", True), ("2026-01-03T00:00:00Z", False), ("2026-01-02T00:00:00Z", True)],
    ids=["older", "newer", "as old, and first by name"],
)
async def test_of_two_new_clusters_the_older_one_keeps_the_name(
    monkeypatch: pytest.MonkeyPatch, created: str, taken: bool
) -> None:
    case = MemoryCase(monkeypatch)
    metadata = {**case.obj["metadata"], "creationTimestamp": "2026-01-02T00:00:00Z"}
    case.management.put({**case.obj, "metadata": metadata})
    add_other(case, created=created)
    await case.reconcile()
    assert (case.condition("InfrastructureReady")[1] == "ClusterNameTaken") is taken


@pytest.mark.parametrize("other", [None, SimpleNamespace(server="https://elsewhere")], ids=["none", "another"])
async def test_name_is_free_on_another_harvester(monkeypatch: pytest.MonkeyPatch, other: Any) -> None:
    case = MemoryCase(monkeypatch)
    add_other(case, status=PROVISIONED)
    sessions: Any = case.context.sessions
    sessions.of = lambda key: other if key.namespace == "another" else case.session
    await case.reconcile()
    assert case.condition("InfrastructureReady")[1] != "ClusterNameTaken"


async def test_name_of_a_vm_of_another_management_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    add_vm(case, "elsewhere.demo")
    await case.reconcile()
    assert case.condition("InfrastructureReady") == ("False", "ClusterNameTaken")
    assert ("Warning", "ClusterNameTaken") in case.events


OTHER_MANAGEMENT = Owner("HarvesterMachine", "team", "theirs", "their-uid", "another-management-uid")
NO_LONGER_HERE = Owner("HarvesterMachine", "team", "theirs", "their-uid", "management-uid")


@pytest.mark.parametrize("owner", [OTHER_MANAGEMENT, NO_LONGER_HERE], ids=["elsewhere", "left behind"])
async def test_name_of_a_vm_with_our_label_and_another_owner_is_refused(
    monkeypatch: pytest.MonkeyPatch, owner: Owner
) -> None:
    """Our label names no management cluster, and the load balancer would select the VM as a backend."""
    case = MemoryCase(monkeypatch)
    add_vm(case, "team.demo", owner)
    await case.reconcile()
    assert case.condition("InfrastructureReady") == ("False", "ClusterNameTaken")
    assert case.harvester.stored(SERVICES) == []


async def test_cluster_that_is_to_adopt_gets_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    metadata = {**case.obj["metadata"], "annotations": {ADOPT_ANNOTATION: "true"}}
    case.management.put({**case.obj, "metadata": metadata})
    add_vm(case, "team.demo", OTHER_MANAGEMENT)
    await case.reconcile()
    assert len(case.harvester.stored(SERVICES)) == 1


async def test_vm_of_a_machine_that_exists_takes_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    metadata = {"name": "theirs", "namespace": "team", "uid": "their-uid"}
    case.management.put({"apiVersion": INFRASTRUCTURE, "kind": "HarvesterMachine", "metadata": metadata, "spec": {}})
    add_vm(case, "team.demo", NO_LONGER_HERE)
    await case.reconcile()
    assert len(case.harvester.stored(SERVICES)) == 1


async def test_moved_cluster_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move loses its status, and its VMs have the record of the former management cluster until it adopts them."""
    case = MemoryCase(monkeypatch)
    case.add_machine("theirs")
    add_vm(case, "team.demo", OTHER_MANAGEMENT)
    await case.reconcile()
    assert len(case.harvester.stored(SERVICES)) == 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"name": "another", "status": PROVISIONED}, id="another name"),
        pytest.param({"target": "other", "status": PROVISIONED}, id="another target namespace"),
        pytest.param({}, id="newer"),
    ],
)
async def test_cluster_that_takes_no_name_is_created(monkeypatch: pytest.MonkeyPatch, other: Obj) -> None:
    case = MemoryCase(monkeypatch)
    add_other(case, **other)
    add_vm(case, "team.demo")
    await case.reconcile()
    assert case.condition("InfrastructureReady")[1] != "ClusterNameTaken"
    assert len(case.harvester.stored(SERVICES)) == 1


async def test_cluster_with_machines_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restore, before its status says that it has run."""
    case = MemoryCase(monkeypatch)
    case.add_machine("cp-0")
    add_other(case, status=PROVISIONED)
    await case.reconcile()
    assert len(case.harvester.stored(SERVICES)) == 1


async def test_cluster_that_has_run_is_left_alone_without_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    case.management.put({**case.obj, "status": PROVISIONED})
    add_other(case, status=PROVISIONED)
    add_vm(case, "elsewhere.demo")
    await case.reconcile()
    assert case.condition("InfrastructureReady")[1] != "ClusterNameTaken"
    assert len(case.harvester.stored(SERVICES)) == 1
