"""The next step of an evacuation, and the time that it may take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reconciler.cluster.evacuation.plan import (
    Action,
    ClusterState,
    EvacuatedNode,
    EvacuatedVm,
    Stage,
    choose_state,
    moving_vms,
    next_step,
    stage_of,
)

pytestmark = pytest.mark.unit


def state(
    vms: tuple[EvacuatedVm, ...],
    nodes: tuple[EvacuatedNode, ...] | None = (),
    error: str = "",
    pods: tuple[str, ...] = (),
    **options: Any,
) -> ClusterState:
    return ClusterState(vms=vms, nodes=nodes, workload_error=error, pods=pods, **options)


MOVING = EvacuatedVm(name="w", is_control_plane=False, host="h0", must_move=True, source="h0", is_held=True)
CRASHED = replace(MOVING, host="", must_move=False)
JOINING = replace(MOVING, awaits_first_join=True)
SERVER = replace(MOVING, name="c", is_control_plane=True)
OTHER = EvacuatedVm(name="c2", is_control_plane=True, host="h1", is_running=True, has_instance=True)
ABSENT = EvacuatedVm(name="c3", is_control_plane=True, is_absent=True)
HELD = EvacuatedNode("w", is_ready=True, has_record=True)
C = replace(HELD, name="c")
C2 = EvacuatedNode("c2", True)
STOPPED = replace(MOVING, saved_strategy="Always", is_halted=True, must_move=False)
STARTED = replace(STOPPED, is_halted=False)


@pytest.mark.parametrize(
    ("cluster", "action", "blocked", "part"),
    [
        # A Node that cannot be drained: it stays as it is, which is reported, unless it is forced.
        (state((MOVING,), (HELD,), pods=("a/b",)), Action.EVICT, False, "a/b left"),
        (state((MOVING,), (HELD,), pods=("a/b",), is_late=True), Action.EVICT, True, "PodDisruptionBudgets"),
        (state((MOVING,), (HELD,), pods=("a/b",), is_forced=True), Action.EVICT, False, ""),
        (state((MOVING,), (HELD,), pods=("a/b",), is_late=True, is_forced=True), Action.STOP, False, ""),
        # The same for a workload API that does not answer.
        (state((MOVING,), None, "it is dead"), Action.WAIT, False, "it is dead"),
        (state((MOVING,), None, "it is dead", is_late=True), Action.WAIT, True, "force"),
        (state((MOVING,), None, "it is dead", is_late=True, is_forced=True), Action.STOP, False, ""),
        # Unless etcd has other members, of which nothing is known then.
        (state((SERVER, OTHER), None, "it is dead", is_late=True, is_forced=True), Action.WAIT, True, "repair"),
        (state((SERVER, ABSENT), None, "it is dead", is_late=True, is_forced=True), Action.WAIT, True, "repair"),
        (state((SERVER,), None, "it is dead", is_late=True, is_forced=True), Action.STOP, False, ""),
        (state((MOVING, OTHER), None, "it is dead", is_late=True, is_forced=True), Action.STOP, False, ""),
        # A machine that has yet to join has no Node. One whose Node was deleted is not waited for.
        (state((JOINING,), ()), Action.WAIT, False, "to join"),
        (state((JOINING,), (), is_forced=True), Action.WAIT, False, "to join"),
        (state((JOINING,), (), is_late=True), Action.WAIT, True, "force"),
        (state((JOINING,), (), is_late=True, is_forced=True), Action.STOP, False, ""),
        (state((JOINING,), (HELD,)), Action.STOP, False, ""),
        (state((MOVING,), ()), Action.STOP, False, ""),
        # No wish is strong enough to take etcd its majority.
        (state((SERVER, OTHER), (replace(HELD, name="c"),), is_late=True, is_forced=True), Action.WAIT, True, "c2"),
        (state((SERVER, OTHER), (replace(HELD, name="c"), EvacuatedNode("c2", True))), Action.STOP, False, ""),
        # The other is stopped or restarts: what its Node says is of the time before.
        (state((SERVER, replace(OTHER, is_running=False)), (C, C2)), Action.WAIT, False, "c2"),
        (state((SERVER, replace(OTHER, source="h0", saved_strategy="Always")), (C, C2)), Action.WAIT, False, "c2"),
        # Nor is the member of a VM that was deleted, or of a machine in deletion, counted on.
        (state((SERVER, OTHER, ABSENT), (C, C2, EvacuatedNode("c3", True))), Action.WAIT, False, "c3"),
        # Harvester is slow, or finds no host after all.
        (state((replace(STOPPED, has_instance=True),)), Action.WAIT, False, "to stop"),
        (state((replace(STOPPED, has_instance=True),), is_late=True), Action.WAIT, True, "console"),
        (state((STOPPED,), None), Action.START, False, ""),
        (
            state((replace(STARTED, avoids_hosts=True, status="x"),), is_late=True),
            Action.WAIT,
            True,
            "evacuate h0 --cancel",
        ),
        # The annotation was removed: it starts where it was.
        (state((replace(STARTED, avoids_hosts=True, has_outdated_avoidance=True),)), Action.STOP, False, ""),
        # What is known of the Node before its VM has stopped is no report.
        (state((replace(STARTED, is_running=True),), (HELD,)), Action.WAIT, False, "its Node"),
        (state((replace(STARTED, is_running=True),), (replace(HELD, has_rebooted=True),)), Action.UNCORDON, False, ""),
        (state((replace(STARTED, is_running=True),), (replace(HELD, has_record=False),)), Action.SETTLE, False, ""),
        # Nothing is begun that cannot end, and the reason is reported.
        (state((replace(MOVING, source="", obstacle="no device"),)), Action.WAIT, True, "w stays on h0: no device"),
        # Another VM takes the device during the drain.
        (state((replace(MOVING, obstacle="no device"),), (HELD,)), Action.UNCORDON, False, ""),
        (state((replace(MOVING, obstacle="no device"),), ()), Action.FINISH, False, ""),
        # One that can leave does not wait for it.
        (state((replace(MOVING, source="", obstacle="x"), replace(SERVER, source=""))), Action.BEGIN, False, ""),
        # Harvester has halted it: recorded at once, before others are moved.
        (
            state((MOVING, replace(STOPPED, name="x", source="", saved_strategy="", was_halted_by_harvester=True))),
            Action.BEGIN,
            False,
            "",
        ),
        (
            state((replace(STOPPED, saved_strategy="", is_held=False, was_halted_by_harvester=True),)),
            Action.HOLD,
            False,
            "",
        ),
        (state((replace(STOPPED, saved_strategy="", was_halted_by_harvester=True),)), Action.ADOPT, False, ""),
        # Its user has halted it, during the drain or after our start: it stays so.
        (state((replace(STOPPED, saved_strategy=""),), (HELD,)), Action.UNCORDON, False, ""),
        (state((replace(STOPPED, saved_strategy="", is_held_by_us=True),)), Action.RELEASE, False, ""),
        (state((replace(STOPPED, saved_strategy=""),)), Action.FINISH, False, ""),
        (state((replace(STOPPED, was_restarted=True, has_instance=True),), (HELD,)), Action.UNCORDON, False, ""),
        (state((replace(STOPPED, was_restarted=True),)), Action.YIELD, False, ""),
        # Unless it was Harvester, again.
        (state((replace(STOPPED, was_restarted=True, was_halted_by_harvester=True),)), Action.START, False, ""),
        # The record of its machine was lost: that of the VM is enough.
        (state((replace(STOPPED, source=""),)), Action.START, False, ""),
        (state((replace(STARTED, source="", avoids_hosts=True),), is_late=True), Action.WAIT, True, "leaves its host"),
        (state((replace(STARTED, source="", is_held_by_us=True, is_running=True),)), Action.SETTLE, False, ""),
        # Harvester migrates it: no remediation while that lasts. What a user has set stays.
        (state((replace(OTHER, needs_hold=True),)), Action.HOLD, False, ""),
        (state((replace(OTHER, needs_hold=True, is_held=True, is_held_by_us=True),)), Action.NOTHING, False, ""),
        (state((replace(OTHER, is_held=True, is_held_by_us=True),)), Action.RELEASE, False, ""),
        (state((replace(OTHER, is_held=True),)), Action.NOTHING, False, ""),
        # Without the right, neither that nor the start of what was halted waits for it; a drain does.
        (state((replace(OTHER, needs_hold=True),), may_not_hold=True), Action.NOTHING, False, ""),
        (
            state(
                (replace(STOPPED, saved_strategy="", is_held=False, was_halted_by_harvester=True),), may_not_hold=True
            ),
            Action.ADOPT,
            False,
            "",
        ),
        (state((replace(MOVING, is_held=False),), (HELD,), may_not_hold=True), Action.HOLD, False, ""),
        # The end of a move does not end that.
        (
            state((replace(OTHER, source="h0", needs_hold=True, is_held=True, is_held_by_us=True),)),
            Action.FINISH,
            False,
            "",
        ),
        (state((replace(OTHER, source="h0", is_held=True, is_held_by_us=True),)), Action.RELEASE, False, ""),
        # A Machine whose VM was deleted is released, so that it is replaced.
        (state((replace(ABSENT, source="h0", is_held=True, is_held_by_us=True),)), Action.RELEASE, False, ""),
        (state((replace(ABSENT, source="h0"),)), Action.FINISH, False, ""),
        (state((ABSENT,)), Action.NOTHING, False, ""),
        # It has crashed during the drain, and restarts by itself; or it does not.
        (state((CRASHED,), (HELD,)), Action.WAIT, False, "to run"),
        (state((CRASHED,), (HELD,), is_late=True), Action.UNCORDON, False, ""),
        # Several of them are started before one is waited for.
        (state((STARTED, replace(STOPPED, name="x"))), Action.START, False, ""),
        (state((STARTED, replace(STOPPED, name="x", has_instance=True))), Action.WAIT, False, "x leaves h0"),
        (state((STARTED,), is_late=True), Action.WAIT, True, "or h0 is back"),
        (state((replace(OTHER, avoids_hosts=True, has_outdated_avoidance=True),)), Action.ALLOW, False, ""),
        (state((replace(OTHER, avoids_hosts=True),)), Action.NOTHING, False, ""),
    ],
)
def test_step(cluster: ClusterState, action: Action, blocked: bool, part: str) -> None:
    step = next_step(cluster)
    assert (step.action, step.blocked) == (action, blocked)
    assert part in step.message


BACK = replace(STARTED, name="x", has_instance=True, is_running=True)


@pytest.mark.parametrize(
    ("cluster", "name", "action"),
    [
        # One waits for a host, the other is back.
        (state((STARTED, BACK), (EvacuatedNode("x", True),)), "x", Action.SETTLE),
        # One crashes during its drain, the other is drained.
        (state((CRASHED, replace(MOVING, name="x")), (replace(HELD, name="x"),), pods=("a/b",)), "x", Action.EVICT),
        # etcd waits for the one that is back, and not the other way round.
        (state((SERVER, replace(BACK, name="c2", is_control_plane=True)), (C, C2)), "c2", Action.SETTLE),
    ],
)
def test_a_machine_that_waits_keeps_no_other_from_its_step(cluster: ClusterState, name: str, action: Action) -> None:
    chosen = choose_state([replace(cluster, mover=vm.name) for vm in moving_vms(cluster.vms)])
    assert (chosen.mover, next_step(chosen).action) == (name, action)


def test_nothing_is_stopped_while_another_machine_is_down() -> None:
    step = next_step(state((MOVING, replace(STARTED, name="x")), (HELD,), mover="w", is_late=True, is_forced=True))
    assert (step.action, step.message) == (Action.WAIT, "w leaves h0: waiting until x returns")


@pytest.mark.parametrize(
    ("vm", "stage"),
    [
        (MOVING, Stage.DRAIN),
        (STOPPED, Stage.STOP),
        (STARTED, Stage.START),
        (replace(STARTED, is_running=True), Stage.RETURN),
    ],
)
def test_each_stage_has_its_own_time(vm: EvacuatedVm, stage: Stage) -> None:
    assert stage_of(vm) is stage
