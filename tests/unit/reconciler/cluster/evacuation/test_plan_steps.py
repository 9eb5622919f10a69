"""The next step of an evacuation, and the time that it may take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.cluster.evacuation.plan import (
    Action,
    EvacuatedNode,
    EvacuatedVm,
    Seen,
    Stage,
    choose,
    moving,
    next_step,
    stage_of,
)

pytestmark = pytest.mark.unit


MOVING = EvacuatedVm("w", False, "h0", leaves=True, source="h0", held=True)
CRASHED = replace(MOVING, host="", leaves=False)
JOINING = replace(MOVING, joins=True)
SERVER = replace(MOVING, name="c", control_plane=True)
OTHER = EvacuatedVm("c2", True, "h1", runs=True, exists=True)
ABSENT = EvacuatedVm("c3", True, absent=True)
HELD = EvacuatedNode("w", ready=True, held=True)
C = replace(HELD, name="c")
C2 = EvacuatedNode("c2", True)
STOPPED = replace(MOVING, former="Always", halted=True, leaves=False)
STARTED = replace(STOPPED, halted=False)


@pytest.mark.parametrize(
    ("seen", "action", "blocked", "part"),
    [
        # A Node that cannot be drained: it stays as it is, which is reported, unless it is forced.
        (Seen((MOVING,), (HELD,), pods=("a/b",)), Action.EVICT, False, "a/b left"),
        (Seen((MOVING,), (HELD,), pods=("a/b",), late=True), Action.EVICT, True, "PodDisruptionBudgets"),
        (Seen((MOVING,), (HELD,), pods=("a/b",), forced=True), Action.EVICT, False, ""),
        (Seen((MOVING,), (HELD,), pods=("a/b",), late=True, forced=True), Action.STOP, False, ""),
        # The same for a workload API that does not answer.
        (Seen((MOVING,), None, "it is dead"), Action.WAIT, False, "it is dead"),
        (Seen((MOVING,), None, "it is dead", late=True), Action.WAIT, True, "force"),
        (Seen((MOVING,), None, "it is dead", late=True, forced=True), Action.STOP, False, ""),
        # Unless etcd has other members, of which nothing is known then.
        (Seen((SERVER, OTHER), None, "it is dead", late=True, forced=True), Action.WAIT, True, "repair"),
        (Seen((SERVER, ABSENT), None, "it is dead", late=True, forced=True), Action.WAIT, True, "repair"),
        (Seen((SERVER,), None, "it is dead", late=True, forced=True), Action.STOP, False, ""),
        (Seen((MOVING, OTHER), None, "it is dead", late=True, forced=True), Action.STOP, False, ""),
        # A machine that has yet to join has no Node. One whose Node was deleted is not waited for.
        (Seen((JOINING,), ()), Action.WAIT, False, "to join"),
        (Seen((JOINING,), (), forced=True), Action.WAIT, False, "to join"),
        (Seen((JOINING,), (), late=True), Action.WAIT, True, "force"),
        (Seen((JOINING,), (), late=True, forced=True), Action.STOP, False, ""),
        (Seen((JOINING,), (HELD,)), Action.STOP, False, ""),
        (Seen((MOVING,), ()), Action.STOP, False, ""),
        # No wish is strong enough to take etcd its majority.
        (Seen((SERVER, OTHER), (replace(HELD, name="c"),), late=True, forced=True), Action.WAIT, True, "c2"),
        (Seen((SERVER, OTHER), (replace(HELD, name="c"), EvacuatedNode("c2", True))), Action.STOP, False, ""),
        # The other is stopped or restarts: what its Node says is of the time before.
        (Seen((SERVER, replace(OTHER, runs=False)), (C, C2)), Action.WAIT, False, "c2"),
        (Seen((SERVER, replace(OTHER, source="h0", former="Always")), (C, C2)), Action.WAIT, False, "c2"),
        # Nor is the member of a VM that was deleted, or of a machine in deletion, counted on.
        (Seen((SERVER, OTHER, ABSENT), (C, C2, EvacuatedNode("c3", True))), Action.WAIT, False, "c3"),
        # Harvester is slow, or finds no host after all.
        (Seen((replace(STOPPED, exists=True),)), Action.WAIT, False, "to stop"),
        (Seen((replace(STOPPED, exists=True),), late=True), Action.WAIT, True, "console"),
        (Seen((STOPPED,), None), Action.START, False, ""),
        (Seen((replace(STARTED, avoids=True, status="x"),), late=True), Action.WAIT, True, "evacuate h0 --cancel"),
        # The annotation was removed: it starts where it was.
        (Seen((replace(STARTED, avoids=True, outdated=True),)), Action.STOP, False, ""),
        # What is known of the Node before its VM has stopped is no report.
        (Seen((replace(STARTED, runs=True),), (HELD,)), Action.WAIT, False, "its Node"),
        (Seen((replace(STARTED, runs=True),), (replace(HELD, rebooted=True),)), Action.UNCORDON, False, ""),
        (Seen((replace(STARTED, runs=True),), (replace(HELD, held=False),)), Action.SETTLE, False, ""),
        # Nothing is begun that cannot end, and the reason is reported.
        (Seen((replace(MOVING, source="", obstacle="no device"),)), Action.WAIT, True, "w stays on h0: no device"),
        # Another VM takes the device during the drain.
        (Seen((replace(MOVING, obstacle="no device"),), (HELD,)), Action.UNCORDON, False, ""),
        (Seen((replace(MOVING, obstacle="no device"),), ()), Action.FINISH, False, ""),
        # One that can leave does not wait for it.
        (Seen((replace(MOVING, source="", obstacle="x"), replace(SERVER, source=""))), Action.BEGIN, False, ""),
        # Harvester has halted it: recorded at once, before others are moved.
        (Seen((MOVING, replace(STOPPED, name="x", source="", former="", lost=True))), Action.BEGIN, False, ""),
        (Seen((replace(STOPPED, former="", held=False, lost=True),)), Action.HOLD, False, ""),
        (Seen((replace(STOPPED, former="", lost=True),)), Action.ADOPT, False, ""),
        # Its user has halted it, during the drain or after our start: it stays so.
        (Seen((replace(STOPPED, former=""),), (HELD,)), Action.UNCORDON, False, ""),
        (Seen((replace(STOPPED, former="", held_by_us=True),)), Action.RELEASE, False, ""),
        (Seen((replace(STOPPED, former=""),)), Action.FINISH, False, ""),
        (Seen((replace(STOPPED, started=True, exists=True),), (HELD,)), Action.UNCORDON, False, ""),
        (Seen((replace(STOPPED, started=True),)), Action.YIELD, False, ""),
        # Unless it was Harvester, again.
        (Seen((replace(STOPPED, started=True, lost=True),)), Action.START, False, ""),
        # The record of its machine was lost: that of the VM is enough.
        (Seen((replace(STOPPED, source=""),)), Action.START, False, ""),
        (Seen((replace(STARTED, source="", avoids=True),), late=True), Action.WAIT, True, "leaves its host"),
        (Seen((replace(STARTED, source="", held_by_us=True, runs=True),)), Action.SETTLE, False, ""),
        # Harvester migrates it: no remediation while that lasts. What a user has set stays.
        (Seen((replace(OTHER, drained=True),)), Action.HOLD, False, ""),
        (Seen((replace(OTHER, drained=True, held=True, held_by_us=True),)), Action.NOTHING, False, ""),
        (Seen((replace(OTHER, held=True, held_by_us=True),)), Action.RELEASE, False, ""),
        (Seen((replace(OTHER, held=True),)), Action.NOTHING, False, ""),
        # Without the right, neither that nor the start of what was halted waits for it; a drain does.
        (Seen((replace(OTHER, drained=True),), unheld=True), Action.NOTHING, False, ""),
        (Seen((replace(STOPPED, former="", held=False, lost=True),), unheld=True), Action.ADOPT, False, ""),
        (Seen((replace(MOVING, held=False),), (HELD,), unheld=True), Action.HOLD, False, ""),
        # The end of a move does not end that.
        (Seen((replace(OTHER, source="h0", drained=True, held=True, held_by_us=True),)), Action.FINISH, False, ""),
        (Seen((replace(OTHER, source="h0", held=True, held_by_us=True),)), Action.RELEASE, False, ""),
        # A Machine whose VM was deleted is released, so that it is replaced.
        (Seen((replace(ABSENT, source="h0", held=True, held_by_us=True),)), Action.RELEASE, False, ""),
        (Seen((replace(ABSENT, source="h0"),)), Action.FINISH, False, ""),
        (Seen((ABSENT,)), Action.NOTHING, False, ""),
        # It has crashed during the drain, and restarts by itself; or it does not.
        (Seen((CRASHED,), (HELD,)), Action.WAIT, False, "to run"),
        (Seen((CRASHED,), (HELD,), late=True), Action.UNCORDON, False, ""),
        # Several of them are started before one is waited for.
        (Seen((STARTED, replace(STOPPED, name="x"))), Action.START, False, ""),
        (Seen((STARTED, replace(STOPPED, name="x", exists=True))), Action.WAIT, False, "x leaves h0"),
        (Seen((STARTED,), late=True), Action.WAIT, True, "or h0 is back"),
        (Seen((replace(OTHER, avoids=True, outdated=True),)), Action.ALLOW, False, ""),
        (Seen((replace(OTHER, avoids=True),)), Action.NOTHING, False, ""),
    ],
)
def test_step(seen: Seen, action: Action, blocked: bool, part: str) -> None:
    step = next_step(seen)
    assert (step.action, step.blocked) == (action, blocked)
    assert part in step.message


BACK = replace(STARTED, name="x", exists=True, runs=True)


@pytest.mark.parametrize(
    ("seen", "name", "action"),
    [
        # One waits for a host, the other is back.
        (Seen((STARTED, BACK), (EvacuatedNode("x", True),)), "x", Action.SETTLE),
        # One crashes during its drain, the other is drained.
        (Seen((CRASHED, replace(MOVING, name="x")), (replace(HELD, name="x"),), pods=("a/b",)), "x", Action.EVICT),
        # etcd waits for the one that is back, and not the other way round.
        (Seen((SERVER, replace(BACK, name="c2", control_plane=True)), (C, C2)), "c2", Action.SETTLE),
    ],
)
def test_a_machine_that_waits_keeps_no_other_from_its_step(seen: Seen, name: str, action: Action) -> None:
    chosen = choose([replace(seen, mover=vm.name) for vm in moving(seen.vms)])
    assert (chosen.mover, next_step(chosen).action) == (name, action)


def test_nothing_is_stopped_while_another_machine_is_down() -> None:
    step = next_step(Seen((MOVING, replace(STARTED, name="x")), (HELD,), mover="w", late=True, forced=True))
    assert (step.action, step.message) == (Action.WAIT, "w leaves h0: waiting until x returns")


@pytest.mark.parametrize(
    ("vm", "stage"),
    [
        (MOVING, Stage.DRAIN),
        (STOPPED, Stage.STOP),
        (STARTED, Stage.START),
        (replace(STARTED, runs=True), Stage.RETURN),
    ],
)
def test_each_stage_has_its_own_time(vm: EvacuatedVm, stage: Stage) -> None:
    assert stage_of(vm) is stage
