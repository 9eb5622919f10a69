"""Which changes of a management or workload cluster requeue which objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import resources
from caphv.api.names import (
    CONTROL_PLANE_LABEL,
    UNINITIALIZED_TAINT,
)
from caphv.api.object import Obj
from caphv.runtime.cache import Change
from tests.support.reconciler.handlers import CLUSTER, MACHINE, PROVIDER_ID, READY, Fixture, node

pytestmark = pytest.mark.unit


TAINTS = [{"key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule"}]
INITIALIZED = node(providerID=PROVIDER_ID)


def test_initialization_of_a_node_does_not_requeue_its_machine() -> None:
    assert not Fixture(providerID=PROVIDER_ID).node(node(taints=TAINTS), INITIALIZED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(None, INITIALIZED, id="registers"),
        pytest.param(INITIALIZED, None, id="deleted"),
        pytest.param(INITIALIZED, node(uid="2", providerID=PROVIDER_ID), id="registers again"),
        pytest.param(INITIALIZED, node(providerID=PROVIDER_ID, taints=TAINTS), id="tainted"),
        pytest.param(node(taints=TAINTS), node(), id="without providerID"),
        pytest.param(node(), node(providerID="other://1"), id="providerID of another cloud provider"),
    ],
)
def test_other_changes_of_a_node_requeue_its_machine(old: Obj | None, new: Obj | None) -> None:
    assert Fixture(providerID=PROVIDER_ID).node(old, new)


@pytest.mark.parametrize("before", [{}, {"nodeInfo": {"systemUUID": "former"}}], ids=["unknown", "another"])
def test_node_that_turns_out_to_be_the_guest_of_the_vm_requeues_its_machine(before: Obj) -> None:
    """An earlier machine may have left the Node, and the kubelet of the new guest takes it over."""
    old, new = {**INITIALIZED, "status": before}, {**INITIALIZED, "status": {"nodeInfo": {"systemUUID": "guest"}}}
    assert Fixture(providerID=PROVIDER_ID).node(old, new)
    assert not Fixture(providerID=PROVIDER_ID).node(new, new)


def test_node_that_gets_a_provider_id_requeues_a_machine_without_one() -> None:
    assert Fixture().node(node(), INITIALIZED)


def test_deletion_of_a_machine_does_not_requeue_a_cluster_that_is_ready() -> None:
    assert not Fixture().deleted()


def test_deletion_of_a_control_plane_machine_requeues_its_cluster() -> None:
    assert Fixture().deleted(**{CONTROL_PLANE_LABEL: ""})


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(None, id="created"),
        pytest.param({"ownerReferences": [{"kind": "RKE2ControlPlane"}]}, id="owned by its Machine"),
        pytest.param({"ready": False}, id="ready"),
    ],
)
async def test_new_control_plane_machine_requeues_the_others_of_the_control_plane(before: Obj | None) -> None:
    """The older one stays until the load balancer serves the newer one."""
    fixture, labels = Fixture(), {CONTROL_PLANE_LABEL: ""}
    metadata = {"namespace": MACHINE.namespace, "name": "new", "labels": labels}
    new: Obj = {"metadata": {**metadata, "ownerReferences": [{"kind": "Machine"}]}, "status": {"ready": True}}
    former: Obj | None = None
    if before is not None:
        former = {"metadata": {**new["metadata"], **before}, "status": {"ready": before.get("ready", True)}}
    old: Obj = {"metadata": {"namespace": MACHINE.namespace, "name": "old", "labels": labels}}
    fixture.machines += [old, new]
    fixture.handlers.harvester_machine(Change(resources.HARVESTER_MACHINES, former, new))
    assert {(await fixture.queue.get()).name for _ in range(len(fixture.queue))} >= {"old"}


@pytest.mark.parametrize(
    ("spec", "conditions", "requeued"),
    [
        ({"controlPlaneBackups": {"keep": 1}}, [], True),
        ({"controlPlaneBackups": {"keep": 1}}, [{"type": "ControlPlaneBackupsReady", "status": "False"}], False),
        ({}, [], False),
    ],
)
def test_first_control_plane_machine_that_runs_requeues_a_cluster_with_backups(
    spec: Obj, conditions: list[Obj], requeued: bool
) -> None:
    fixture = Fixture()
    fixture.cluster |= {"spec": spec, "status": {"conditions": conditions}}
    metadata = {"namespace": MACHINE.namespace, "name": "new", "labels": {CONTROL_PLANE_LABEL: ""}}
    old: Obj = {"metadata": metadata, "status": {"ready": False}}
    fixture.handlers.harvester_machine(Change(resources.HARVESTER_MACHINES, old, {**old, "status": {"ready": True}}))
    assert (len(fixture.clusters) == 1) is requeued


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"status": {}}, id="not ready"),
        pytest.param({"status": {**READY, "failureDomains": [{"name": "a"}]}}, id="failure domain not available"),
        pytest.param(
            {"metadata": {"namespace": "team", "name": "cluster", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
            id="being deleted",
        ),
    ],
)
def test_deletion_of_a_machine_requeues_a_cluster_that_may_wait_for_it(changes: Obj) -> None:
    fixture = Fixture()
    fixture.cluster |= changes
    assert fixture.deleted()


async def test_deletion_of_a_machine_requeues_a_cluster_that_is_being_reconciled() -> None:
    fixture = Fixture()
    fixture.clusters.add(CLUSTER)
    await fixture.clusters.get()
    fixture.deleted()
    fixture.clusters.done(CLUSTER)
    assert len(fixture.clusters) == 1


@pytest.mark.parametrize(("ipam_type", "queued"), [("none", 1), ("dhcp", 0)])
def test_outage_of_a_workload_api_concerns_clusters_with_an_external_endpoint(ipam_type: str, queued: int) -> None:
    fixture = Fixture()
    fixture.cluster["spec"] = {
        "loadBalancerConfig": {"ipamType": ipam_type},
        "infrastructureRef": {"kind": "HarvesterCluster", "name": CLUSTER.name},
    }
    caches = cast(Any, fixture.handlers)._caches
    caches.clusters = SimpleNamespace(get=lambda *_: fixture.cluster)
    fixture.handlers.workload_reach(CLUSTER)
    assert len(fixture.clusters) == queued
