"""What a reconcile does for a cluster that is parked or resumed, with everything around it in memory."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caphv.api.conditions import get_condition
from caphv.api.names import (
    AVOIDED_HOSTS_ANNOTATION,
    EVACUATED_STRATEGY_ANNOTATION,
    EVACUATION_STARTED_ANNOTATION,
    INSUFFICIENT_QUOTA_ANNOTATION,
    OWNER_UID_ANNOTATION,
    PARK_ANNOTATION,
    PARKED_SINCE_ANNOTATION,
    PARKED_STRATEGY_ANNOTATION,
    PAUSED_BY_PARK_ANNOTATION,
    RENEW_AT_ANNOTATION,
    RUN_STRATEGY_ANNOTATION,
)
from caphv.api.object import Obj, annotations_of
from caphv.api.ownership import record
from caphv.runtime.errors import ServerFault
from reconciler.machine.placement import REQUIRED
from reconciler.machine.vm import RUN_STRATEGY
from tests.support.reconciler.guests import delivered, tokens
from tests.support.reconciler.infrastructure import ready
from tests.support.reconciler.memorycase import TARGET, MemoryCase

pytestmark = pytest.mark.unit

SINCE = "2026-11-27T10:00:00Z"
RECORD = {PARKED_SINCE_ANNOTATION: SINCE, PAUSED_BY_PARK_ANNOTATION: "true"}


def change_cluster(case: MemoryCase, *, paused: bool, annotations: dict[str, str], **metadata: Any) -> None:
    """Give the Cluster annotations, and a pause."""
    metadata = {**case.cluster["metadata"], "annotations": annotations, **metadata}
    case.cluster = case.management.put({**case.cluster, "metadata": metadata, "spec": {"paused": paused}})


def cluster(case: MemoryCase) -> Obj:
    found = case.management.find("Cluster", "demo", "team")
    assert found is not None
    return found


def park(case: MemoryCase, **metadata: Any) -> None:
    """Have the Cluster parked, and paused by parking."""
    change_cluster(case, paused=True, annotations={PARK_ANNOTATION: "true", **RECORD}, **metadata)


async def test_deletion_of_a_parked_cluster_ends_its_pause_although_harvester_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await ready(monkeypatch)
    park(case, deletionTimestamp=SINCE, finalizers=["x"])
    case.session.available = False
    await case.reconcile()
    assert cluster(case)["spec"]["paused"] is False
    assert PARKED_SINCE_ANNOTATION not in annotations_of(cluster(case))
    assert case.condition("Parked") == ("", "")


async def test_a_cluster_is_paused_although_harvester_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may replace its machines while the hosts are shut down."""
    case = await ready(monkeypatch)
    change_cluster(case, paused=False, annotations={PARK_ANNOTATION: "true"})
    case.session.available = False
    await case.reconcile()
    assert cluster(case)["spec"]["paused"] is True
    assert PARKED_SINCE_ANNOTATION in annotations_of(cluster(case))


def message_of(case: MemoryCase) -> str:
    """The message of condition `Parked`."""
    return str((get_condition(case.obj["status"]["conditions"], "Parked") or {}).get("message") or "")


def resume(case: MemoryCase, *, paused: bool = True) -> None:
    """Have the parked Cluster resumed."""
    change_cluster(case, paused=paused, annotations=dict(RECORD))


def add_vm(case: MemoryCase, name: str, *, strategy: str = "RerunOnFailure", former: str = "", **more: Any) -> Obj:
    """Add a machine whose VM is recorded as its own, with an instance unless it is halted."""
    vm = case.add_machine(name, control_plane=more.pop("control_plane", False))
    annotations = record(case.context.owner("HarvesterMachine", case.machines[-1]))
    annotations |= {PARKED_STRATEGY_ANNOTATION: former} if former else {}
    metadata = {**vm["metadata"], "annotations": annotations | more.pop("annotations", {})}
    if strategy != "Halted":
        run_instance(case, name, **more)
    return case.harvester.put({**vm, "metadata": metadata, "spec": {**vm["spec"], "runStrategy": strategy}})


def run_instance(case: MemoryCase, name: str, *, status: Obj | None = None, **metadata: Any) -> None:
    """Have an instance of a VM."""
    metadata = {"name": name, "namespace": TARGET, "uid": f"{name}-run", **metadata}
    obj = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata}
    case.harvester.put({**obj, "status": status or {"phase": "Running"}})


def vm_of(case: MemoryCase, name: str) -> Obj:
    found = case.harvester.find("VirtualMachine", name, TARGET)
    assert found is not None
    return found


def add_node(
    case: MemoryCase, name: str, *, ready: bool = True, unschedulable: bool = True, **annotations: str
) -> None:
    """Add the Node of a VM; names of annotations are those of caphv.io."""
    named = {f"caphv.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    status = {"conditions": [{"type": "Ready", "status": str(ready)}], "nodeInfo": {"bootID": "boot"}}
    spec = {"unschedulable": True} if unschedulable else {}
    metadata = {"name": name, "annotations": named, "creationTimestamp": SINCE}
    case.workload.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status})
    case.guests_answer = True


def node_of(case: MemoryCase, name: str) -> Obj:
    found = case.workload.find("Node", name)
    assert found is not None
    return found


def is_cordoned(case: MemoryCase, name: str) -> bool:
    return bool(node_of(case, name)["spec"].get("unschedulable"))


HELD = {"parked_boot": "former/former", "cordoned_by_park": SINCE}


async def test_a_vm_that_an_evacuation_has_stopped_is_started_by_the_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evacuation does nothing meanwhile, and the resume waits for the only server."""
    case = await ready(monkeypatch)
    park(case)
    evacuated = {EVACUATED_STRATEGY_ANNOTATION: "Manual", AVOIDED_HOSTS_ANNOTATION: "h0"}
    vm = add_vm(case, "cp", control_plane=True, strategy="Halted", annotations=evacuated)
    avoids = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["h0"]}
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [avoids]}]}}}
    vm["spec"]["template"] = {"spec": {"affinity": affinity}}
    case.harvester.put(vm)
    await case.reconcile()
    assert case.condition("Parked")[0] == "True"
    assert vm_of(case, "cp")["spec"]["runStrategy"] == "Halted"

    resume(case)
    await case.reconcile()
    started = vm_of(case, "cp")
    assert started["spec"]["runStrategy"] == RUN_STRATEGY, "with Manual it would not start"
    assert started["spec"]["template"]["spec"]["affinity"] == {"nodeAffinity": {}}, "the host may be the only one"
    assert AVOIDED_HOSTS_ANNOTATION not in annotations_of(started)
    assert annotations_of(started)[EVACUATED_STRATEGY_ANNOTATION] == "Manual", "the evacuation continues"
    assert EVACUATION_STARTED_ANNOTATION in annotations_of(started), "a halt from now on is a user's"
    run_instance(case, "cp")
    add_node(case, "cp", unschedulable=False)
    case.cluster = cluster(case)
    await case.reconcile()
    assert cluster(case)["spec"]["paused"] is False


async def test_a_vm_that_a_user_has_halted_during_an_evacuation_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    resume(case)
    evacuated = {EVACUATED_STRATEGY_ANNOTATION: "Always", EVACUATION_STARTED_ANNOTATION: "true"}
    add_vm(case, "w", strategy="Halted", annotations=evacuated)
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


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


async def test_nodes_are_uncordoned_after_a_user_has_ended_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    resume(case, paused=False)
    for name in ("cp", "w"):
        add_vm(case, name, control_plane=name == "cp")
    add_node(case, "cp", **HELD)
    add_node(case, "w", ready=False, **HELD)
    await case.reconcile()
    assert (is_cordoned(case, "cp"), is_cordoned(case, "w")) == (False, True)
    assert case.condition("Parked") == ("False", "Resuming")
    assert case.condition("Paused")[0] == "False", "machines are replaced as ever"

    case.workload.put({**node_of(case, "w"), "status": node_of(case, "cp")["status"]})
    case.cluster = cluster(case)
    await case.reconcile()
    assert not is_cordoned(case, "w")
    assert PARKED_SINCE_ANNOTATION not in annotations_of(cluster(case))
    assert case.condition("Parked") == ("", "")


async def test_a_cordon_that_is_left_of_an_earlier_time_becomes_that_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await ready(monkeypatch)
    park(case)
    for name in ("cp", "w"):
        add_vm(case, name, control_plane=name == "cp")
        add_node(case, name, parked_boot="former/former", cordoned_by_park="earlier" if name == "w" else SINCE)
    await case.reconcile()
    assert "caphv.io/cordoned-by-park" not in annotations_of(node_of(case, "w"))
    assert annotations_of(node_of(case, "cp"))["caphv.io/cordoned-by-park"] == SINCE


async def test_a_resume_that_waits_for_long_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    resume(case)
    add_vm(case, "w")
    add_node(case, "w", ready=False, **HELD)
    await case.reconcile()
    assert "end the pause" not in message_of(case)
    assert case.scope().memory.resume_since is not None
    case.scope().memory.resume_since = time.monotonic() - 900
    await case.reconcile()
    assert "waiting for Nodes of the workers: w; to have machines replaced" in message_of(case)
    assert "kubectl patch cluster demo -n team" in message_of(case)


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
    assert "kubectl patch cluster demo -n team" in message_of(case)
    assert PARKED_SINCE_ANNOTATION in annotations_of(cluster(case))
    case.context.memory.machine(case.machines[-1]).adoption_refusal = "it belongs to another"
    await case.reconcile()
    assert message_of(case).endswith("; the last attempt failed: it belongs to another")

    resume(case, paused=False)
    await case.reconcile()
    assert case.condition("Parked") == ("False", "ParkBlocked")
    case.harvester.put({**vm, "metadata": {**vm["metadata"], "annotations": owner}})
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"


@pytest.mark.parametrize("strategy", ["Manual", "RerunOnFailure", "Once"])
@pytest.mark.parametrize("instance", [None, "Succeeded"])
async def test_a_vm_that_a_user_has_stopped_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch, strategy: str, instance: str | None
) -> None:
    case = await ready(monkeypatch)
    park(case)
    vm = add_vm(case, "w", strategy="Halted")
    if instance:
        add_vm(case, "w", status={"phase": instance})
        case.machines.pop()
    spec, status = {**vm["spec"], "runStrategy": strategy}, {"printableStatus": "Stopped"}
    case.harvester.put({**vm, "spec": spec, "status": status})
    await case.reconcile()
    assert case.condition("Parked")[0] == "True"
    assert vm_of(case, "w")["spec"]["runStrategy"] == strategy
    assert PARKED_STRATEGY_ANNOTATION not in annotations_of(vm_of(case, "w"))


async def test_a_run_strategy_that_starts_no_vm_returns_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    resume(case)
    add_vm(case, "w", strategy="Halted", former="Manual")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == RUN_STRATEGY
    assert "waiting for VMs to start: w" in message_of(case)

    run_instance(case, "w")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Manual"
    assert annotations_of(vm_of(case, "w"))[RUN_STRATEGY_ANNOTATION] == "Manual"
    assert PARKED_STRATEGY_ANNOTATION not in annotations_of(vm_of(case, "w"))


async def test_a_node_of_an_instance_that_is_being_deleted_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that is resumed while it still stops waits for the next run of its VMs."""
    case = await ready(monkeypatch)
    resume(case)
    add_vm(case, "w", former="Always", deletionTimestamp=SINCE)
    add_node(case, "w", parked_boot="w-run/boot", cordoned_by_park=SINCE)
    await case.reconcile()
    assert is_cordoned(case, "w")
    assert PARKED_STRATEGY_ANNOTATION in annotations_of(vm_of(case, "w"))

    run_instance(case, "w", uid="next")
    case.workload.put({**node_of(case, "w"), "status": {**node_of(case, "w")["status"], "nodeInfo": {"bootID": "x"}}})
    await case.reconcile()
    assert not is_cordoned(case, "w")


async def test_a_vm_that_a_quota_keeps_stopped_is_named_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Harvester sets the run strategy of such a VM back to Halted."""
    case = await ready(monkeypatch)
    resume(case)
    halted = add_vm(case, "w", strategy="Halted", former="Always")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Always"
    annotations = {**annotations_of(halted), INSUFFICIENT_QUOTA_ANNOTATION: "exceeded quota: tight"}
    case.harvester.put({**halted, "metadata": {**halted["metadata"], "annotations": annotations}})
    await case.reconcile()
    assert case.condition("Parked") == ("False", "ParkBlocked")
    assert "does not start w because quota is missing: exceeded quota: tight; raise" in message_of(case)
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"

    case.scope().memory.started_at["w"] -= 300
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Always"


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


REFUSED = ServerFault(500, "InternalError", "failed calling webhook")


async def test_nodes_that_a_webhook_keeps_delay_parking_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    park(case)
    for name in ("cp", "w"):
        add_vm(case, name, control_plane=name == "cp")
        add_node(case, name, unschedulable=False)
    case.workload.errors["patch Node cp"] = REFUSED
    await case.reconcile()
    assert "Node cp cannot be cordoned" in message_of(case)
    assert is_cordoned(case, "w"), "the others are"
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"

    assert case.scope().memory.drain_since is not None
    case.scope().memory.drain_since = time.monotonic() - 200
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_a_node_that_cannot_be_uncordoned_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The webhook may run on the other one."""
    case = await ready(monkeypatch)
    resume(case)
    for name in ("a", "b"):
        add_vm(case, name)
        add_node(case, name, **HELD)
    case.workload.errors["patch Node a"] = REFUSED
    await case.reconcile()
    assert (is_cordoned(case, "a"), is_cordoned(case, "b")) == (True, False)
    assert "Node a cannot be uncordoned" in message_of(case)
    case.workload.errors.clear()
    await case.reconcile()
    assert not is_cordoned(case, "a")
    case.scope().memory.returned_since = time.monotonic() - 6
    await case.reconcile()
    assert PARKED_SINCE_ANNOTATION not in annotations_of(cluster(case))


async def test_the_pause_ends_some_seconds_after_the_last_node_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of a health check may still have the Node as it was before."""
    case = await ready(monkeypatch)
    resume(case)
    add_vm(case, "w")
    add_node(case, "w", **HELD)
    assert 0 < (await case.reconcile() or 0) <= 5
    assert "waiting for health checks" in message_of(case)
    assert cluster(case)["spec"]["paused"] is True

    # One that is lost again has to be ready for that time again.
    node = node_of(case, "w")
    case.scope().memory.returned_since = time.monotonic() - 6
    case.workload.put({**node, "status": {**node["status"], "conditions": [{"type": "Ready", "status": "Unknown"}]}})
    await case.reconcile()
    assert "waiting for Nodes of the workers: w" in message_of(case)
    case.workload.put({**node_of(case, "w"), "status": node["status"]})
    await case.reconcile()
    assert cluster(case)["spec"]["paused"] is True
    case.scope().memory.returned_since = time.monotonic() - 6
    await case.reconcile()
    assert cluster(case)["spec"]["paused"] is False
    assert case.scope().memory.returned_since is None


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


@pytest.mark.parametrize(("by_park", "text"), [(True, "the pause has ended"), (False, "the previous pause stays")])
async def test_the_event_says_whether_the_pause_has_ended(
    monkeypatch: pytest.MonkeyPatch, by_park: bool, text: str
) -> None:
    case = await ready(monkeypatch)
    messages: list[str] = []
    monkeypatch.setattr(case.context.events, "event", lambda *words: messages.append(words[-1]))
    annotations = dict(RECORD) if by_park else {PARKED_SINCE_ANNOTATION: SINCE}
    change_cluster(case, paused=True, annotations=annotations)
    await case.reconcile()
    assert cluster(case)["spec"]["paused"] is not by_park
    assert messages == [f"resumed: all VMs were started, and {text}"]


async def test_a_vm_that_is_not_the_clusters_leaves_the_cluster_unpaused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    change_cluster(case, paused=False, annotations={PARK_ANNOTATION: "true"})
    case.add_machine("w", control_plane=False)
    await case.reconcile()
    assert case.condition("Parked") == ("False", "ParkBlocked")
    assert not cluster(case)["spec"].get("paused")
    assert PARKED_SINCE_ANNOTATION not in annotations_of(cluster(case))


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
