"""How a cluster is paused and its VMs are stopped."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from caphv.api.names import (
    EVACUATED_STRATEGY_ANNOTATION,
    EXPIRES_AT_ANNOTATION,
    OWNER_UID_ANNOTATION,
    PARK_ANNOTATION,
    PARKED_SINCE_ANNOTATION,
    PARKED_STRATEGY_ANNOTATION,
    RENEW_AT_ANNOTATION,
)
from caphv.api.object import annotations_of
from caphv.api.resources import VIRTUAL_MACHINES
from caphv.runtime.errors import Forbidden, Invalid, ServerFault, Unauthorized, Unreachable
from reconciler.cluster.parking import phase
from tests.support.reconciler.guests import delivered, tokens
from tests.support.reconciler.infrastructure import ready
from tests.support.reconciler.memorycase import TARGET, MemoryCase
from tests.support.reconciler.parking import (
    REFUSED,
    SINCE,
    add_node,
    add_vm,
    change_cluster,
    is_cordoned,
    message_of,
    node_of,
    park,
    resume,
    vm_of,
)

pytestmark = pytest.mark.unit


async def test_deletion_of_a_parked_cluster_ends_its_pause_although_harvester_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await ready(monkeypatch)
    park(case, deletionTimestamp=SINCE, finalizers=["x"])
    case.session.available = False
    await case.reconcile()
    assert case.cluster["spec"]["paused"] is False
    assert PARKED_SINCE_ANNOTATION not in annotations_of(case.cluster)
    assert case.condition("Parked") == ("", "")


async def test_a_cluster_is_paused_although_harvester_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may replace its machines while the hosts are shut down."""
    case = await ready(monkeypatch)
    change_cluster(case, paused=False, annotations={PARK_ANNOTATION: "true"})
    case.session.available = False
    await case.reconcile()
    assert case.cluster["spec"]["paused"] is True
    assert PARKED_SINCE_ANNOTATION in annotations_of(case.cluster)


async def test_a_vm_that_an_evacuation_has_stopped_does_not_end_the_marking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of a control plane are marked before its first server stops for parking."""
    case = await ready(monkeypatch)
    park(case)
    evacuated = {EVACUATED_STRATEGY_ANNOTATION: "Always"}
    add_vm(case, "c1", control_plane=True, strategy="Halted", annotations=evacuated)
    for name in ("c2", "c3"):
        add_vm(case, name, control_plane=True)
        add_node(case, name, unschedulable=False)
    await case.reconcile()
    assert [is_cordoned(case, name) for name in ("c2", "c3")] == [True, True]


async def test_a_worker_that_was_started_while_the_cluster_is_parked_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await ready(monkeypatch)
    park(case)
    add_vm(case, "cp", control_plane=True, strategy="Halted", former="RerunOnFailure")
    add_vm(case, "w", strategy="Halted", former="RerunOnFailure")
    await case.reconcile()
    assert case.condition("Parked")[0] == "True"
    case.harvester.put({**vm_of(case, "w"), "spec": {**vm_of(case, "w")["spec"], "runStrategy": "Always"}})
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_a_vm_that_was_parked_elsewhere_keeps_the_record_until_it_is_adopted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a move or a restore, VMs name the previous machines."""
    case = await ready(monkeypatch)
    resume(case)
    vm = add_vm(case, "w", strategy="Halted", former="RerunOnFailure")
    owner = vm["metadata"]["annotations"]
    vm = case.harvester.put({**vm, "metadata": {**vm["metadata"], "annotations": {**owner, OWNER_UID_ANNOTATION: "x"}}})
    await case.reconcile()
    assert case.condition("Parked") == ("False", "ParkBlocked")
    assert ("Warning", "ParkBlocked") in case.events
    assert "kubectl patch cluster demo -n team" in message_of(case)
    assert PARKED_SINCE_ANNOTATION in annotations_of(case.cluster)
    case.context.memory.machine(case.machines[-1]).adoption_refusal = "it belongs to another"
    await case.reconcile()
    assert message_of(case).endswith("; the last attempt failed: it belongs to another")

    resume(case, paused=False)
    assert 0 < (await case.reconcile() or 0) <= 10
    assert case.condition("Parked") == ("False", "ParkBlocked")
    assert ("Warning", "ParkBlocked") in case.events
    case.harvester.put({**vm, "metadata": {**vm["metadata"], "annotations": owner}})
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"


@pytest.mark.parametrize("running", [True, False])
async def test_a_vm_with_the_deprecated_field_is_parked_by_its_run_strategy(
    monkeypatch: pytest.MonkeyPatch, running: bool
) -> None:
    case = await ready(monkeypatch)
    park(case)
    vm = add_vm(case, "w")
    case.harvester.put({**vm, "spec": {"running": running, "template": {}}})
    await case.reconcile()
    if running:
        assert vm_of(case, "w")["spec"] == {"runStrategy": "Halted", "template": {}}
        assert annotations_of(vm_of(case, "w"))[PARKED_STRATEGY_ANNOTATION] == "Always"
    else:
        assert vm_of(case, "w")["spec"] == {"running": False, "template": {}}


async def draining(monkeypatch: pytest.MonkeyPatch) -> MemoryCase:
    """A cluster whose workers do not stop yet, because one Node cannot be cordoned."""
    case = await ready(monkeypatch)
    park(case)
    for name in ("cp", "w"):
        add_vm(case, name, control_plane=name == "cp")
        add_node(case, name, unschedulable=False)
    case.workload.errors["patch Node cp"] = REFUSED
    await case.reconcile()
    return case


async def test_nodes_that_a_webhook_keeps_delay_parking_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await draining(monkeypatch)
    assert "Node cp cannot be cordoned" in message_of(case)
    assert is_cordoned(case, "w"), "the others are"
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"

    assert case.scope().memory.parking.drain_since is not None
    case.scope().memory.parking.drain_since = time.monotonic() - 200
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_workers_are_drained_again_after_a_park_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await draining(monkeypatch)
    assert case.scope().memory.parking.drain_since is not None
    case.scope().memory.parking.drain_since = time.monotonic() - 200

    resume(case)
    await case.reconcile()
    assert PARKED_SINCE_ANNOTATION in annotations_of(case.cluster), "it is still being resumed"
    park(case)
    await case.reconcile()
    assert is_cordoned(case, "w")
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"


@pytest.mark.parametrize("strategy", ["RerunOnFailure", "Halted"])
async def test_a_request_that_fails_is_reported_and_repeated(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    case = await ready(monkeypatch)
    is_parking = strategy != "Halted"
    (park if is_parking else resume)(case)
    add_vm(case, "w", strategy=strategy, former="" if is_parking else "Always")
    case.harvester.errors["patch VirtualMachine w"] = REFUSED
    with pytest.raises(ServerFault):
        await case.reconcile()
    assert case.condition("Parked") == ("False", "Parking" if is_parking else "Resuming")
    assert message_of(case) == "a request failed, which is repeated: failed calling webhook"
    case.harvester.errors.clear()
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == ("Halted" if is_parking else "Always")


@pytest.mark.parametrize("obstacle", ["unauthorized", "of another"])
async def test_a_cluster_that_cannot_be_parked_is_back_soon(monkeypatch: pytest.MonkeyPatch, obstacle: str) -> None:
    case = await ready(monkeypatch)
    park(case)
    vm = add_vm(case, "w")
    if obstacle == "unauthorized":
        case.harvester.errors["patch VirtualMachine"] = Unauthorized(401, "Unauthorized", "no")
    else:
        annotations = {**vm["metadata"]["annotations"], OWNER_UID_ANNOTATION: "another"}
        case.harvester.put({**vm, "metadata": {**vm["metadata"], "annotations": annotations}})
    assert 0 < (await case.reconcile() or 0) <= 10
    assert (("", "probed") in case.events) is (obstacle == "unauthorized")


async def test_steps_that_other_clusters_interrupt_are_continued_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    park(case)
    for name in ("cp", "w"):
        add_vm(case, name, control_plane=name == "cp")
        add_node(case, name, unschedulable=False)
    monkeypatch.setattr(phase, "_MAX_STEPS", 1)
    assert await case.reconcile() == 0.01
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_nodes_are_marked_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    park(case)
    add_vm(case, "cp", control_plane=True)
    add_node(case, "cp", unschedulable=False)
    await case.reconcile()
    assert vm_of(case, "cp")["spec"]["runStrategy"] == "Halted"
    assert annotations_of(node_of(case, "cp"))["caphv.io/parked-boot"] == "cp-run/boot"


@pytest.mark.parametrize(("strategy", "renewed"), [("RerunOnFailure", "expiring-2"), ("Halted", "expiring-1")])
async def test_the_token_of_guests_is_renewed_until_all_of_them_are_stopped(
    monkeypatch: pytest.MonkeyPatch, strategy: str, renewed: str
) -> None:
    case = await delivered(monkeypatch)
    case.clock[0] += 1000
    park(case)
    for name in ("w", "cp-0"):
        add_vm(case, name, control_plane=True, strategy=strategy, former="" if strategy != "Halted" else "Always")
    case.note(RENEW_AT_ANNOTATION, (datetime.now(UTC) - timedelta(minutes=1)).isoformat())
    await case.reconcile()
    assert tokens(case.secret) == {renewed}


async def test_a_cluster_that_waits_for_harvester_is_back_for_the_token_of_its_guests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await delivered(monkeypatch)
    park(case)
    add_vm(case, "w")
    case.session.error = Unreachable("no answer")
    now = datetime.now(UTC)
    case.note(RENEW_AT_ANNOTATION, (now - timedelta(hours=1)).isoformat())
    case.note(EXPIRES_AT_ANNOTATION, (now + timedelta(hours=3)).isoformat())
    assert await case.reconcile() == pytest.approx(3600, abs=5)


@pytest.mark.parametrize(
    ("server", "verb", "refusal", "part"),
    [
        (
            "management",
            "patch Cluster",
            "clusters.cluster.x-k8s.io is forbidden",
            "may not pause the Cluster: grant its",
        ),
        ("management", "patch Cluster", "a policy forbids it", "a request was refused: a policy forbids it"),
        ("harvester", "patch VirtualMachine", "a webhook forbids it", "a request was refused: a webhook forbids it"),
    ],
)
async def test_a_request_that_is_refused_is_reported_once_and_repeated(
    monkeypatch: pytest.MonkeyPatch, server: str, verb: str, refusal: str, part: str
) -> None:
    case = await ready(monkeypatch)
    add_vm(case, "w")
    if server == "management":
        change_cluster(case, paused=False, annotations={PARK_ANNOTATION: "true"})
    else:
        park(case)
        add_node(case, "w", parked_boot="w-run/boot", cordoned_by_park=SINCE)
    getattr(case, server).errors[verb] = Forbidden(403, "Forbidden", refusal)
    case.events.clear()
    for _ in range(2):
        assert await case.reconcile() == 60.0
        assert case.condition("Parked") == ("False", "ParkBlocked")
        assert ("Warning", "ParkBlocked") in case.events
        assert part in message_of(case)
    assert case.events.count(("Warning", "ParkBlocked")) == 1
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"

    getattr(case, server).errors.clear()
    await case.reconcile()
    assert case.condition("Parked")[1] == "Parking"


async def test_a_vm_whose_stop_is_refused_keeps_no_other_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Harvester refuses any update of a VM whose network was deleted."""
    case = await ready(monkeypatch)
    park(case)
    for name in ("a", "b"):
        add_vm(case, name)
    case.harvester.errors["patch VirtualMachine a"] = Invalid(422, "Invalid", "its network does not exist")
    await case.reconcile()
    assert [vm_of(case, name)["spec"]["runStrategy"] for name in ("a", "b")] == ["RerunOnFailure", "Halted"]
    assert case.condition("Parked") == ("False", "ParkBlocked")
    assert "its network does not exist" in message_of(case)


async def test_a_vm_that_is_not_the_clusters_leaves_the_cluster_unpaused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    change_cluster(case, paused=False, annotations={PARK_ANNOTATION: "true"})
    case.add_machine("w", control_plane=False)
    await case.reconcile()
    assert case.condition("Parked") == ("False", "ParkBlocked")
    assert ("Warning", "ParkBlocked") in case.events
    assert not case.cluster["spec"].get("paused")
    assert PARKED_SINCE_ANNOTATION not in annotations_of(case.cluster)


async def test_deletion_of_a_parked_cluster_ends_its_pause_whatever_its_vms_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await ready(monkeypatch)
    park(case, deletionTimestamp=SINCE, finalizers=["x"])
    case.add_machine("not-adopted", control_plane=False)
    await case.reconcile()
    assert case.cluster["spec"]["paused"] is False
    assert PARKED_SINCE_ANNOTATION not in annotations_of(case.cluster)


async def test_a_cluster_that_is_not_to_be_parked_does_not_care_who_parked_a_vm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await ready(monkeypatch)
    vm = case.add_machine("w", control_plane=False)
    case.harvester.put({**vm, "metadata": {**vm["metadata"], "annotations": {PARKED_STRATEGY_ANNOTATION: "Always"}}})
    await case.reconcile()
    assert case.condition("Parked") == ("", "")


async def test_machines_without_a_vm_to_stop_are_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """One was not created yet, and one is being deleted: Harvester refuses changes of it."""
    case = await ready(monkeypatch)
    park(case)
    add_vm(case, "none")
    await case.harvester.delete(VIRTUAL_MACHINES, "none", TARGET)
    vm = add_vm(case, "deleted")
    case.harvester.put({**vm, "metadata": {**vm["metadata"], "deletionTimestamp": SINCE}})
    await case.reconcile()
    assert case.condition("Parked")[0] == "True"
    assert vm_of(case, "deleted")["spec"]["runStrategy"] == "RerunOnFailure"


async def test_parking_without_the_right_to_read_volumes_says_what_was_not_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await ready(monkeypatch)
    park(case)
    add_vm(case, "w", strategy="Halted", former="Always")
    case.harvester.errors["list VolumeAttachment"] = Forbidden(403, "Forbidden", "cannot list")
    await case.reconcile()
    assert case.condition("Parked")[0] == "True"
    assert "whether volumes are detached was not checked: cannot list" in message_of(case)


@pytest.mark.parametrize(
    ("attached", "volume", "claim", "waits"),
    [
        (True, "pv", "w-disk-0", True),
        (False, "pv", "w-disk-0", False),
        (True, "other", "w-disk-0", False),
        (True, "pv", "not-of-the-vm", False),
        (True, "", "w-disk-0", False),
    ],
)
async def test_parking_waits_only_for_attached_volumes_of_its_vms(
    monkeypatch: pytest.MonkeyPatch, attached: bool, volume: str, claim: str, waits: bool
) -> None:
    case = await ready(monkeypatch)
    park(case)
    vm = add_vm(case, "w", strategy="Halted", former="Always")
    volumes = [{"name": "disk-0", "persistentVolumeClaim": {"claimName": "w-disk-0"}}]
    case.harvester.put({**vm, "spec": {**vm["spec"], "template": {"spec": {"volumes": volumes}}}})
    spec = {"volumeName": "pv"} if volume else {}
    case.harvester.put(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim, "namespace": TARGET}}
        | {"spec": spec}
    )
    source = {"persistentVolumeName": volume} if volume else {}
    case.harvester.put(
        {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "a"}}
        | {"spec": {"source": source}, "status": {"attached": attached}}
    )
    await case.reconcile()
    assert (case.condition("Parked")[0] == "True") is not waits


async def test_volumes_that_are_waited_for_are_read_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """All attachments of Harvester are listed for it."""
    case = await ready(monkeypatch)
    park(case)
    vm = add_vm(case, "w", strategy="Halted")
    volumes = [{"name": "disk-0", "persistentVolumeClaim": {"claimName": "w-disk-0"}}]
    case.harvester.put({**vm, "spec": {**vm["spec"], "template": {"spec": {"volumes": volumes}}}})
    claim = {"metadata": {"name": "w-disk-0", "namespace": TARGET}, "spec": {"volumeName": "pv"}}
    case.harvester.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim})
    attachment = {"metadata": {"name": "a"}, "spec": {"source": {"persistentVolumeName": "pv"}}}
    attached = {"status": {"attached": True}}
    case.harvester.put({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", **attachment, **attached})
    assert await case.reconcile() == 10.0
    assert "waiting for volumes to be detached: w-disk-0" in message_of(case)
