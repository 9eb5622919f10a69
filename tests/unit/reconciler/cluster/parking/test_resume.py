"""How the VMs of a parked cluster are started, and its pause ends."""

from __future__ import annotations

import time

import pytest

from caphv.api.names import (
    AVOIDED_HOSTS_ANNOTATION,
    EVACUATED_STRATEGY_ANNOTATION,
    EVACUATION_STARTED_ANNOTATION,
    INSUFFICIENT_QUOTA_ANNOTATION,
    PARKED_SINCE_ANNOTATION,
    PARKED_STRATEGY_ANNOTATION,
    RUN_STRATEGY_ANNOTATION,
)
from caphv.api.object import SERVICES, annotations_of
from caphv.runtime.errors import Invalid, ServerFault, Unreachable
from reconciler.machine.placement import REQUIRED
from reconciler.machine.vm import RUN_STRATEGY
from tests.support.reconciler.infrastructure import ready
from tests.support.reconciler.memorycase import TARGET
from tests.support.reconciler.parking import (
    HELD,
    RECORD,
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
    run_instance,
    vm_of,
)

pytestmark = pytest.mark.unit


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
    await case.reconcile()
    assert case.cluster["spec"]["paused"] is False


async def test_a_vm_that_a_user_has_halted_during_an_evacuation_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    resume(case)
    evacuated = {EVACUATED_STRATEGY_ANNOTATION: "Always", EVACUATION_STARTED_ANNOTATION: "true"}
    add_vm(case, "w", strategy="Halted", annotations=evacuated)
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


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
    await case.reconcile()
    assert not is_cordoned(case, "w")
    assert PARKED_SINCE_ANNOTATION not in annotations_of(case.cluster)
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
    assert case.scope().memory.parking.resume_since is not None
    case.scope().memory.parking.resume_since = time.monotonic() - 900
    await case.reconcile()
    assert "waiting for Nodes of the workers: w; to have machines replaced" in message_of(case)
    assert "kubectl patch cluster demo -n team" in message_of(case)


@pytest.mark.parametrize("is_parked_again", [True, False])
async def test_a_resume_that_has_ended_names_no_way_out(monkeypatch: pytest.MonkeyPatch, is_parked_again: bool) -> None:
    case = await ready(monkeypatch)
    resume(case)
    add_vm(case, "w")
    add_node(case, "w", ready=False, **HELD)
    await case.reconcile()
    case.scope().memory.parking.resume_since = time.monotonic() - 900
    if is_parked_again:
        park(case)
    else:
        resume(case, paused=False)
    await case.reconcile()
    assert "waiting for" in message_of(case)
    assert "end the pause" not in message_of(case)
    assert case.scope().memory.parking.resume_since is None, "the next one has its own time"


@pytest.mark.parametrize("answers", [True, False])
async def test_a_resume_says_why_a_vm_does_not_run(monkeypatch: pytest.MonkeyPatch, *, answers: bool) -> None:
    """As with cordoned hosts, where only the silence of the workload API was reported."""
    case = await ready(monkeypatch)
    resume(case)
    vm = add_vm(case, "cp", control_plane=True, status={"phase": "Scheduling"})
    case.harvester.put({**vm, "status": {"printableStatus": "ErrorUnschedulable"}})
    add_node(case, "cp", ready=False, **HELD)
    case.guests_answer = answers
    case.cluster["status"] = {"initialization": {"controlPlaneInitialized": True}}
    await case.reconcile()
    waits = "Nodes of the control plane: cp" if answers else "the workload API to answer"
    assert f"waiting for {waits}; cp: no host of Harvester can run the VM" in message_of(case)


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
    assert ("Warning", "ParkBlocked") in case.events
    assert "does not start w: quota is missing: exceeded quota: tight; raise" in message_of(case)
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"

    case.scope().memory.parking.started_at["w"] -= 300
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Always"


@pytest.mark.parametrize("error", [ServerFault(500, "InternalError", "no webhook"), Unreachable("no answer")])
async def test_a_resume_that_fails_holds_no_phase_up_once_a_user_has_ended_the_pause(
    monkeypatch: pytest.MonkeyPatch, error: ServerFault | Unreachable
) -> None:
    case = await ready(monkeypatch)
    resume(case, paused=False)
    add_vm(case, "w", strategy="Halted", former="Always")
    case.harvester.errors["patch VirtualMachine w"] = error
    await case.harvester.delete(SERVICES, "team-demo-lb", TARGET)
    assert await case.reconcile() == 10.0
    assert case.harvester.find("Service", "team-demo-lb", TARGET)
    assert case.condition("Parked") == ("False", "Resuming")
    assert str(error) in message_of(case)
    case.harvester.errors.clear()
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Always"


async def test_a_run_strategy_that_does_not_exist_ends_no_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user has edited the record."""
    case = await ready(monkeypatch)
    resume(case)
    add_vm(case, "w", former="always")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == RUN_STRATEGY
    assert PARKED_STRATEGY_ANNOTATION not in annotations_of(vm_of(case, "w"))


async def test_a_vm_whose_start_is_refused_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its quota was used by others while it was parked, or its network was deleted."""
    case = await ready(monkeypatch)
    resume(case)
    for name in ("a", "b"):
        add_vm(case, name, strategy="Halted", former="Manual")
        add_node(case, name, **HELD)
    case.harvester.errors["patch VirtualMachine a"] = Invalid(422, "Invalid", "quota is too small")
    await case.reconcile()
    strategies = [vm_of(case, name)["spec"]["runStrategy"] for name in ("a", "b")]
    assert strategies == ["Halted", "Always"]
    run_instance(case, "b", uid="next")
    case.workload.put({**node_of(case, "b"), "status": {**node_of(case, "b")["status"], "nodeInfo": {"bootID": "x"}}})
    for _ in range(2):
        await case.reconcile()
    assert vm_of(case, "b")["spec"]["runStrategy"] == "Manual"
    assert not is_cordoned(case, "b")
    assert case.condition("Parked") == ("False", "ParkBlocked")
    assert case.events.count(("Warning", "ParkBlocked")) == 1
    assert "does not start a: quota is too small" in message_of(case)
    assert len([request for request in case.harvester.requests if request.endswith("VirtualMachine a")]) == 1

    case.harvester.errors.clear()
    case.scope().memory.parking.started_at["a"] -= 300
    await case.reconcile()
    assert vm_of(case, "a")["spec"]["runStrategy"] == "Always"


@pytest.mark.parametrize(("servers", "answers", "started"), [(1, False, False), (3, False, False), (3, True, True)])
async def test_a_refused_control_plane_vm_keeps_no_worker_while_others_serve_the_api(
    monkeypatch: pytest.MonkeyPatch, servers: int, answers: bool, started: bool
) -> None:
    case = await ready(monkeypatch)
    resume(case)
    add_vm(case, "c0", control_plane=True, strategy="Halted", former="Always")
    for number in range(1, servers):
        add_vm(case, f"c{number}", control_plane=True)
        add_node(case, f"c{number}", **HELD)
    add_vm(case, "w", strategy="Halted", former="Always")
    case.harvester.errors["patch VirtualMachine c0"] = Invalid(422, "Invalid", "quota is too small")
    if not answers:
        case.workload.errors["get"] = case.workload.errors["list"] = Unreachable("no answer")

    for _ in range(2):
        await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == ("Always" if started else "Halted")
    if started:
        assert not any(is_cordoned(case, f"c{number}") for number in range(1, servers))
        run_instance(case, "w", uid="next")
        await case.reconcile()
    assert case.condition("Parked") == ("False", "ParkBlocked")
    assert "does not start c0: quota is too small" in message_of(case)


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
    case.scope().memory.parking.returned_since = time.monotonic() - 66
    await case.reconcile()
    assert PARKED_SINCE_ANNOTATION not in annotations_of(case.cluster)


async def test_the_pause_ends_a_minute_after_the_last_node_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of a health check may still have the Node as it was before."""
    case = await ready(monkeypatch)
    resume(case)
    add_vm(case, "w")
    add_node(case, "w", **HELD)
    assert 60 < (await case.reconcile() or 0) < 66
    assert "for Cluster API to see them" in message_of(case)
    assert case.cluster["spec"]["paused"] is True

    # One that is lost again has to be ready for that time again.
    node = node_of(case, "w")
    case.scope().memory.parking.returned_since = time.monotonic() - 66
    case.workload.put({**node, "status": {**node["status"], "conditions": [{"type": "Ready", "status": "Unknown"}]}})
    await case.reconcile()
    assert "waiting for Nodes of the workers: w" in message_of(case)
    case.workload.put({**node_of(case, "w"), "status": node["status"]})
    await case.reconcile()
    assert case.cluster["spec"]["paused"] is True
    case.scope().memory.parking.returned_since = time.monotonic() - 66
    await case.reconcile()
    assert case.cluster["spec"]["paused"] is False
    assert case.scope().memory.parking.returned_since is None


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
    assert case.cluster["spec"]["paused"] is not by_park
    assert messages == [f"resumed: all VMs were started, and {text}"]
