"""Which volumes of a guest are recorded and deleted, and how long a silent workload API is waited for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caphv.api import names, resources
from caphv.api.conditions import rfc3339
from caphv.api.guestparts import (
    belongs_to_others,
    entry_of,
    proof_annotations,
    proof_entries,
    reclaim_policy,
    recorded_guest,
)
from caphv.api.object import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SERVICE_ACCOUNTS,
    Key,
    Obj,
    Resource,
    annotations_of,
)
from caphv.api.ownership import Owner, record
from caphv.runtime.errors import Conflict, Forbidden
from tests.support.reconciler.infrastructure import delete, ready
from tests.support.reconciler.memorycase import TARGET, MemoryCase, stall

pytestmark = pytest.mark.unit

POLICIES = {"pvc-delete": "Delete", "pvc-retain": "Retain"}
PLUGGED = (*POLICIES, "by-hand")


def add_vm(case: MemoryCase, name: str, *claims: str, cluster: str = "team.demo", **source: bool) -> Obj:
    """Add a VM of a cluster with claims, by default hot-plugged ones."""
    source = source or {"hotpluggable": True}
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim, **source}} for claim in claims]
    metadata = {
        "name": name,
        "namespace": TARGET,
        "labels": {names.CLUSTER_LABEL: cluster},
        "annotations": {names.OWNER_CLUSTER_ANNOTATION: "management-uid"},
    }
    return case.harvester.put(
        {
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": metadata,
            "spec": {"template": {"metadata": {}, "spec": {"volumes": volumes}}},
        }
    )


async def with_volumes(monkeypatch: pytest.MonkeyPatch, **spec: str) -> MemoryCase:
    """A ready cluster with a node, two volumes of its CSI driver, and one that a user hot-plugged."""
    case = await ready(monkeypatch, **spec)
    for name in PLUGGED:
        metadata = {"name": name, "namespace": TARGET, "uid": f"{name}-uid"}
        case.harvester.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata})
    for name, policy in POLICIES.items():
        csi = {"driver": "driver.harvesterhci.io", "volumeHandle": name}
        volume = {"csi": csi, "persistentVolumeReclaimPolicy": policy}
        case.workload.put({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})
    case.guests_answer = True
    add_vm(case, "worker", *PLUGGED)
    case.machines.append({"metadata": {"name": "worker", "namespace": "team", "uid": "w"}, "spec": {}})
    await case.reconcile()
    return case


async def end(case: MemoryCase) -> set[str]:
    """Delete VMs and cluster; answers the names of the claims that stay."""
    case.machines.clear()
    for vm in case.harvester.stored(resources.VIRTUAL_MACHINES):
        await case.harvester.delete(resources.VIRTUAL_MACHINES, vm["metadata"]["name"], TARGET)
    await delete(case)
    return {claim["metadata"]["name"] for claim in case.harvester.stored(PERSISTENT_VOLUME_CLAIMS)}


def claims(case: MemoryCase) -> dict[str, Obj]:
    return {claim["metadata"]["name"]: claim for claim in case.harvester.stored(PERSISTENT_VOLUME_CLAIMS)}


def delete_cluster(case: MemoryCase, seconds_ago: float) -> None:
    """Delete the Cluster, whose machines are deleted before its HarvesterCluster."""
    case.cluster["metadata"]["deletionTimestamp"] = rfc3339(datetime.now(UTC) - timedelta(seconds=seconds_ago))


async def test_volumes_are_deleted_by_their_reclaim_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    assert {name: reclaim_policy(claim) for name, claim in claims(case).items()} == {**POLICIES, "by-hand": ""}
    requests = list(case.harvester.requests)
    await case.reconcile()
    assert case.harvester.requests == requests, "what is recorded is not written again"

    assert await end(case) == {"pvc-retain", "by-hand"}
    assert {("Normal", "GuestVolumeDeleted"), ("Warning", "GuestVolumesKept")} <= set(case.events)


async def test_nothing_is_written_before_the_deletion_and_all_is_kept_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await with_volumes(monkeypatch)
    assert not any(annotations_of(claim) for claim in claims(case).values())
    delete_cluster(case, 0)
    await case.reconcile()
    assert all(recorded_guest(claim) for claim in claims(case).values())
    assert await end(case) == set(PLUGGED)
    assert ("Warning", "GuestVolumesKept") in case.events


async def test_volume_of_a_lost_cluster_that_this_one_has_now_is_recorded_as_contested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it would be taken for a leftover of the lost cluster while no Pod uses it."""
    case = await with_volumes(monkeypatch)
    lost = Owner("HarvesterCluster", "team", "lost", "lost-uid", "management-uid")
    claim = claims(case)["pvc-delete"]
    annotations = proof_annotations(claim, [entry_of(lost)]) | {names.RECLAIM_POLICY_ANNOTATION: "Delete"}
    case.harvester.put({**claim, "metadata": {**claim["metadata"], "annotations": annotations}})
    await case.reconcile()
    recorded = claims(case)
    assert belongs_to_others(recorded["pvc-delete"])
    assert reclaim_policy(recorded["pvc-delete"]) == ""
    assert not any(annotations_of(claim) for name, claim in recorded.items() if name != "pvc-delete")


async def test_policies_outlive_the_workload_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    case.guests_answer = False
    assert await end(case) == {"pvc-retain", "by-hand"}


async def test_volume_that_changed_to_retain_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    volume = case.workload.find("PersistentVolume", "pvc-delete")
    assert volume is not None
    case.workload.put({**volume, "spec": {**volume["spec"], "persistentVolumeReclaimPolicy": "Retain"}})
    await case.reconcile()
    assert await end(case) == set(PLUGGED)


async def test_what_was_recorded_is_known_before_its_watch_delivers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    stall(monkeypatch, case.harvester, PERSISTENT_VOLUME_CLAIMS)
    await case.workload.delete(PERSISTENT_VOLUMES, "pvc-delete")
    case.harvester.requests.clear()
    for _ in range(2):
        await case.reconcile()
    assert case.harvester.requests == ["patch PersistentVolumeClaim pvc-delete"]


async def test_deletion_waits_for_a_volume_although_no_watch_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes keeps it until no Pod uses it."""
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    claim = claims(case)["pvc-delete"]
    metadata = {**claim["metadata"], "finalizers": ["kubernetes.io/pvc-protection"]}
    case.harvester.put({**claim, "metadata": metadata})
    stall(monkeypatch, case.harvester, PERSISTENT_VOLUME_CLAIMS)
    await end(case)
    assert case.condition("InfrastructureReady") == ("False", "InfrastructureProvisioningInProgress")
    assert case.harvester.requests.count("delete PersistentVolumeClaim pvc-delete") == 1


@pytest.mark.parametrize("error", [Conflict, Forbidden])
async def test_refused_record_keeps_the_volume_and_its_vms(
    monkeypatch: pytest.MonkeyPatch, error: type[Conflict]
) -> None:
    """The policy on the claim is no longer the one that the user has set."""
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    volume = case.workload.find("PersistentVolume", "pvc-delete")
    assert volume is not None
    case.workload.put({**volume, "spec": {**volume["spec"], "persistentVolumeReclaimPolicy": "Retain"}})
    case.harvester.errors["patch PersistentVolumeClaim pvc-delete"] = error(409, "", "no")
    delete_cluster(case, 0)
    assert 0 < (await case.reconcile() or 0) <= 10
    assert not case.context.memory.cluster(case.obj).volumes.recorded
    case.guests_answer = False
    assert await end(case) == set(PLUGGED)


async def test_repeated_end_of_a_deletion_keeps_the_volume_of_a_refused_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last steps are repeated after a conflict, when no guest answers any more."""
    case = await with_volumes(monkeypatch, guestVolumes="Delete", cloudConfig={"delivery": "File"})
    volume = case.workload.find("PersistentVolume", "pvc-delete")
    assert volume is not None
    case.workload.put({**volume, "spec": {**volume["spec"], "persistentVolumeReclaimPolicy": "Retain"}})
    case.harvester.errors["patch PersistentVolumeClaim pvc-delete"] = Forbidden(403, "", "no")
    delete_cluster(case, 0)
    await case.reconcile()

    case.guests_answer = False
    case.management.errors["patch HarvesterCluster demo"] = Conflict(409, "", "it has changed")
    with pytest.raises(Conflict):
        await end(case)
    case.management.errors.clear()
    assert await end(case) == set(PLUGGED)
    assert case.management.find("HarvesterCluster", "demo", "team") is None


async def test_record_that_is_refused_once_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    volume = case.workload.find("PersistentVolume", "pvc-retain")
    assert volume is not None
    case.workload.put({**volume, "spec": {**volume["spec"], "persistentVolumeReclaimPolicy": "Delete"}})
    case.harvester.errors["patch PersistentVolumeClaim"] = Conflict(409, "", "no")
    delete_cluster(case, 0)
    await case.reconcile()
    case.harvester.errors.clear()
    await case.reconcile()
    assert case.context.memory.cluster(case.obj).volumes.recorded
    assert await end(case) == {"by-hand"}


async def test_volume_that_left_the_workload_cluster_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user removes the finalizer of a PersistentVolume to keep its disk."""
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    await case.workload.delete(PERSISTENT_VOLUMES, "pvc-delete")
    await case.reconcile()
    assert reclaim_policy(claims(case)["pvc-delete"]) == ""
    assert await end(case) == set(PLUGGED)


async def test_volume_that_another_vm_had_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    add_vm(case, "of-a-user", "pvc-delete", cluster="", hotpluggable=False)
    await case.reconcile()
    await case.harvester.delete(resources.VIRTUAL_MACHINES, "of-a-user", TARGET)
    assert belongs_to_others(claims(case)["pvc-delete"])
    assert await end(case) == set(PLUGGED)


async def test_disk_of_a_machine_that_a_user_hot_plugs_gets_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    annotations = record(Owner("HarvesterMachine", "team", "other", "uid", "management-uid"))
    metadata = {"name": "other-disk-0", "namespace": TARGET, "annotations": annotations}
    case.harvester.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata})
    add_vm(case, "second", "other-disk-0")
    await case.reconcile()
    assert annotations_of(claims(case)["other-disk-0"]) == annotations


async def test_restored_claim_is_not_the_guests(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the annotations of the one that was saved, and no VM any more."""
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    saved = claims(case)["pvc-delete"]
    case.harvester.put({**saved, "metadata": {**saved["metadata"], "name": "restored", "uid": "restored-uid"}})
    assert await end(case) == {"restored", "pvc-retain", "by-hand"}


async def test_policy_of_a_restored_claim_is_learnt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    saved = claims(case)["pvc-delete"]
    case.harvester.put({**saved, "metadata": {**saved["metadata"], "uid": "restored-uid"}})
    case.guests_answer = False
    await case.reconcile()
    assert recorded_guest(claims(case)["pvc-delete"])
    assert await end(case) == set(PLUGGED)


async def test_vm_with_a_claim_that_does_not_exist_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    add_vm(case, "second", "missing")
    assert await case.reconcile() == 300.0


async def test_forced_deletion_deletes_no_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    annotations = {**annotations_of(case.obj), names.FORCE_DELETE_ANNOTATION: "true"}
    case.management.put({**case.obj, "metadata": {**case.obj["metadata"], "annotations": annotations}})
    assert await end(case) == set(PLUGGED)


async def test_move_deletes_no_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    """It pauses the cluster and deletes its objects on the management cluster only."""
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    case.cluster["spec"]["paused"] = True
    case.machines.clear()
    await case.harvester.delete(resources.VIRTUAL_MACHINES, "worker", TARGET)
    case.harvester.requests.clear()
    await delete(case)
    assert claims(case).keys() == set(PLUGGED)
    assert not [request for request in case.harvester.requests if request.startswith("delete")]

    case.cluster["spec"]["paused"] = False
    await delete(case)
    assert claims(case).keys() == set(PLUGGED) - {"pvc-delete"}


def move(case: MemoryCase, *, by_caphv: bool) -> None:
    """Have the objects on another management cluster. The VM is not adopted yet."""
    annotations = {names.FORMER_OWNER_ANNOTATION: "management-uid/demo-uid"} if by_caphv else {}
    case.management.put(
        {**case.obj, "metadata": {**case.obj["metadata"], "uid": "new-uid", "annotations": annotations}}
    )
    case.context.management_cluster = "target-uid"
    case.context.memory = type(case.context.memory)()


@pytest.mark.parametrize(("by_caphv", "kept"), [(True, {"pvc-retain", "by-hand"}), (False, set(PLUGGED))])
async def test_volume_that_no_vm_has_after_a_move_is_still_the_guests(
    monkeypatch: pytest.MonkeyPatch, by_caphv: bool, kept: set[str]
) -> None:
    """`clusterctl move` leaves no proof on the HarvesterCluster."""
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    add_vm(case, "worker")
    move(case, by_caphv=by_caphv)
    await case.reconcile()
    assert await end(case) == kept
    assert (("Warning", "GuestVolumesKept") in case.events) is by_caphv


async def test_volume_of_a_vm_that_is_not_adopted_yet_keeps_its_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    before = {name: proof_entries(claim) for name, claim in claims(case).items()}
    move(case, by_caphv=True)
    await case.reconcile()
    assert {name: proof_entries(claim) for name, claim in claims(case).items()} == before
    # Its machine adopts it, and the guest is deleted later.
    vm = add_vm(case, "worker", *PLUGGED)
    annotations = {names.OWNER_CLUSTER_ANNOTATION: "target-uid"}
    case.harvester.put({**vm, "metadata": {**vm["metadata"], "annotations": annotations}})
    await case.reconcile()
    own = {"target-uid/team/demo/new-uid"}
    assert {name: proof_entries(claim) for name, claim in claims(case).items()} == dict.fromkeys(PLUGGED, own)
    assert await end(case) == {"pvc-retain", "by-hand"}


async def test_account_of_the_guest_is_deleted_after_its_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete", cloudConfig={"delivery": "File"})
    assert case.harvester.stored(SERVICE_ACCOUNTS)
    domain = "cloudprovider.harvesterhci.io"
    labels = {f"{domain}/cluster": "demo", f"{domain}/serviceNamespace": "default", f"{domain}/serviceName": "web"}
    metadata = {"name": "demo-web", "namespace": TARGET, "uid": "web-uid", "labels": labels}
    balancer = {"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer", "metadata": metadata}
    case.harvester.put({**balancer, "spec": {"workloadType": "cluster"}})
    vm = case.harvester.find("VirtualMachine", "worker", TARGET)
    assert vm is not None
    vm["metadata"]["labels"][names.GUEST_CLUSTER_LABEL] = "demo"
    case.harvester.put(vm)
    await case.reconcile()
    case.harvester.requests.clear()

    assert await end(case) == {"pvc-retain", "by-hand"}
    deletions = [request for request in case.harvester.requests if request.startswith("delete")]
    places = [
        next(place for place, request in enumerate(deletions) if request.startswith(kind))
        for kind in ("delete LoadBalancer demo-web", "delete PersistentVolumeClaim", "delete ServiceAccount")
    ]
    assert places == sorted(places), deletions
    assert not case.harvester.stored(SERVICE_ACCOUNTS)


@pytest.mark.parametrize("error", [Conflict, Forbidden])
async def test_volume_that_harvester_does_not_delete_ends_no_deletion(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[Conflict]
) -> None:
    """A VM has it again, which Harvester reports as a conflict; a missing right needs a user."""
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    case.harvester.errors["delete PersistentVolumeClaim"] = error(
        409, "", "is used by VirtualMachine \x1b\n" + 5000 * "x"
    )
    if error is Forbidden:
        with pytest.raises(Forbidden):
            await end(case)
        assert case.condition("InfrastructureReady")[0] == "False"
        return
    assert await end(case) == set(PLUGGED)
    assert case.condition("InfrastructureReady")[0] == "False"
    assert await case.reconcile() == 2.0
    assert ("Warning", "GuestVolumesKept") not in case.events

    refused = case.context.memory.cluster(case.obj).volumes.refused
    refused.update({uid: refusal._replace(since=refusal.since - 31) for uid, refusal in refused.items()})
    with caplog.at_level("WARNING"):
        await case.reconcile()
    (message,) = (text for text in caplog.messages if text.startswith("GuestVolumesKept"))
    assert "pvc-delete: Harvester refused: is used by VirtualMachine " in message
    assert message.isprintable()
    assert len(message) < 600
    assert ("Warning", "GuestVolumesKept") in case.events
    assert case.management.find("HarvesterCluster", "demo", "team") is None


async def test_volume_that_is_written_meanwhile_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written may say that another VM had it."""
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    delete_volume = case.harvester.delete

    async def write_first(resource: Resource, name: str, namespace: str = "", **options: Any) -> Obj | None:
        if name == "pvc-delete":
            monkeypatch.setattr(case.harvester, "delete", delete_volume)
            stored = claims(case)[name]
            shared = proof_annotations(stored, [*proof_entries(stored), "another"])
            annotations = {**annotations_of(stored), **shared}
            case.harvester.put({**stored, "metadata": {**stored["metadata"], "annotations": annotations}})
        return await delete_volume(resource, name, namespace, **options)

    monkeypatch.setattr(case.harvester, "delete", write_first)
    assert await end(case) == set(PLUGGED)
    assert case.management.find("HarvesterCluster", "demo", "team") is None


@pytest.mark.parametrize("step", ["Cluster", "HarvesterCluster"])
async def test_restarted_provider_learns_policies_of_a_deleted_cluster(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It knows no workload cluster yet, and another phase may wait for long."""
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    volume = case.workload.find("PersistentVolume", "pvc-retain")
    assert volume is not None
    case.workload.put({**volume, "spec": {**volume["spec"], "persistentVolumeReclaimPolicy": "Delete"}})
    case.guests_answer = False

    async def ensure(_: Key) -> None:
        case.guests_answer = True

    monkeypatch.setattr(case.context.workloads, "ensure", ensure)
    delete_cluster(case, 0)
    if step == "HarvesterCluster":
        case.management.put(
            {**case.obj, "metadata": {**case.obj["metadata"], "deletionTimestamp": rfc3339(datetime.now(UTC))}}
        )
    await case.reconcile()
    assert reclaim_policy(claims(case)["pvc-retain"]) == "Delete"


async def test_workload_api_that_cannot_be_known_ends_no_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")

    async def ensure(_: Key) -> None:
        raise Forbidden(403, "", "no Secrets")

    monkeypatch.setattr(case.context.workloads, "ensure", ensure)
    await delete(case, times=0)
    assert 0 < (await case.reconcile() or 0) <= 10, "it is tried again"
    assert await end(case) == {"pvc-retain", "by-hand"}
    assert case.management.find("HarvesterCluster", "demo", "team") is None


@pytest.mark.parametrize("elapsed", [10, 500])
async def test_harvester_gets_a_bounded_time_to_delete_volumes(monkeypatch: pytest.MonkeyPatch, elapsed: int) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    stuck = claims(case)["pvc-delete"]
    requested = rfc3339(datetime.now(UTC) - timedelta(seconds=elapsed))
    stuck["metadata"] |= {"finalizers": ["kubernetes.io/pvc-protection"], "deletionTimestamp": requested}
    case.harvester.put(stuck)
    await end(case)
    is_over = elapsed == 500
    assert (case.management.find("HarvesterCluster", "demo", "team") is None) is is_over
    assert (("Warning", "GuestVolumesRemain") in case.events) is is_over


async def test_silent_workload_api_delays_the_vms_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    case.guests_answer = False
    memory = case.context.memory.cluster(case.obj)

    delete_cluster(case, 10)
    assert 0 < (await case.reconcile() or 0) <= 50
    assert not memory.volumes.recorded

    delete_cluster(case, 100)
    await case.reconcile()
    assert memory.volumes.recorded
    assert case.events.count(("Warning", "GuestVolumesNotLearnt")) == 1
    await case.reconcile()
    assert case.events.count(("Warning", "GuestVolumesNotLearnt")) == 1


async def test_workload_api_that_answers_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await with_volumes(monkeypatch, guestVolumes="Delete")
    delete_cluster(case, 0)
    await case.reconcile()
    assert case.context.memory.cluster(case.obj).volumes.recorded
    assert ("Warning", "GuestVolumesNotLearnt") not in case.events
