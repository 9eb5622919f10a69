"""The next step of moving guests off hosts that are evacuated, from what is seen of them: pure.

Harvester moves guests that can migrate. Those with host devices are stopped and
started on another host, one machine of a cluster at a time: record, keep the Machine from
remediation, cordon and drain its Node, stop the VM, start it elsewhere, wait for its Node, and
undo the records in reverse order.

Nothing is remembered between two steps but what the objects show, so that a provider which was
interrupted after any write takes up where it stopped. A host that is not evacuated any more ends
the move: a VM that was stopped for it is started wherever it finds room.

What Harvester has halted by itself, for forced maintenance or an upgrade, is started by the same
steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from caphv.api import remedies
from caphv.api.counting import name_some

_NAMED = 3
_REPAIR = "; repair it: see the consoles of the control plane's VMs, or delete the Machine"
_FORCE = "to stop its VM without that, set the annotation of the host to force"


@dataclass(frozen=True, slots=True)
class EvacuatedVm:
    """A machine with its VM.

    :param host: the host of its instance; empty without one
    :param leaves: its instance runs on a host that is evacuated, and Harvester cannot migrate it
    :param drained: its instance is on a host that Harvester drains, for no longer than
        `HOLD_SECONDS`
    :param source: the host in the record of the move; empty unless the move has begun
    :param lost: Harvester has halted it for the drain of its host, and does not start it again
    :param control_plane: it serves the workload API, or has a member of its etcd
    :param obstacle: why it cannot start on another host; empty if it can, or once it was stopped
    :param held: the Machine is kept from remediation, by whomever
    :param held_by_us: the record says that this was the provider
    :param former: the run strategy that the move has recorded; empty unless it has stopped the VM
    :param started: the move has started it again since
    :param halted: its run strategy says that it is not to run
    :param exists: it has an instance, perhaps one that is ending
    :param runs: its instance runs, and is not ending
    :param avoids: hosts on which it must not start
    :param outdated: some of these are not evacuated any more
    :param status: what Harvester says of a VM that does not run
    :param joins: its guest has yet to join the workload cluster, and never was a Node there
    :param unseen: Cluster API says that its Node is not healthy, or knows nothing of it
    :param absent: its VM does not exist, or the machine is being deleted; etcd may still count it
    """

    name: str
    control_plane: bool
    host: str = ""
    leaves: bool = False
    lost: bool = False
    drained: bool = False
    source: str = ""
    obstacle: str = ""
    held: bool = False
    held_by_us: bool = False
    former: str = ""
    started: bool = False
    halted: bool = False
    exists: bool = False
    runs: bool = False
    avoids: bool = False
    outdated: bool = False
    status: str = ""
    joins: bool = False
    unseen: bool = False
    absent: bool = False

    @property
    def begun(self) -> bool:
        """Whether its move has begun. The machine may have lost its record, after a restore."""
        return bool(self.source or self.former)

    @property
    def origin(self) -> str:
        """The host that it leaves, for messages."""
        return self.source or "its host"


@dataclass(frozen=True, slots=True)
class EvacuatedNode:
    """A Node of a machine.

    :param ready: it has reported since its VM runs that it is ready, and its member of etcd too, if
        it has one
    :param held: the move has left its record there
    :param rebooted: it reports another boot than in this record
    """

    name: str
    ready: bool
    held: bool = False
    rebooted: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen of a cluster.

    :param vms: all its machines
    :param nodes: Nodes of the machine that moves and of the control plane; None while the workload
        API does not answer
    :param unread: why it does not answer
    :param pods: Pods that the Node has yet to evict
    :param late: the time for the present stage is over
    :param forced: move the machine although its Node cannot be drained
    :param mover: the machine that moves; empty for the first one
    :param unheld: the provider may not keep Machines from remediation. What Harvester migrates or
        has halted does not wait for that.
    """

    vms: tuple[EvacuatedVm, ...] = ()
    nodes: tuple[EvacuatedNode, ...] | None = ()
    unread: str = ""
    pods: tuple[str, ...] = ()
    late: bool = False
    forced: bool = False
    mover: str = ""
    unheld: bool = False


class Stage(Enum):
    """A part of a move that is bounded in time."""

    DRAIN = "until the VM may stop"
    STOP = "until it has stopped"
    START = "until it runs on another host"
    RETURN = "until its Node is ready"


# Seconds until a stage needs a user. Harvester gives a guest two minutes to shut down.
STAGE_SECONDS = {Stage.DRAIN: 300.0, Stage.STOP: 240.0, Stage.START: 300.0, Stage.RETURN: 600.0}


# Seconds for which a drain by Harvester keeps a Machine from remediation. A drain that is stuck, or
# a mark that is left from one, must not do so for days.
HOLD_SECONDS = 3600.0


class Action(Enum):
    """What to do next."""

    BEGIN = "record which host the machine leaves"
    HOLD = "keep the Machine from remediation"
    CORDON = "cordon the Node, and record its boot"
    EVICT = "evict Pods from the Node"
    ADOPT = "record the run strategy of a VM that Harvester has halted"
    STOP = "stop the VM, and keep it from hosts that are evacuated"
    START = "start the VM"
    UNCORDON = "uncordon the Node, and remove the record from it"
    SETTLE = "give the VM its former run strategy, and remove the record from it"
    YIELD = "remove the record from a VM that its user has halted"
    RELEASE = "allow remediation of the Machine again"
    FINISH = "remove the record from the machine"
    ALLOW = "let the VM start on all hosts again"
    WAIT = "wait for what is under way"
    NOTHING = "nothing is left to move"


# A machine that waits keeps no other from its step.
_RANKS = {Action.EVICT: 1, Action.WAIT: 2}


@dataclass(frozen=True, slots=True)
class Step:
    """An action, the machine that it concerns, and a message for the user.

    :param blocked: what the action waits for needs a user
    """

    action: Action
    name: str = ""
    message: str = ""
    blocked: bool = False


def moving(vms: Iterable[EvacuatedVm]) -> list[EvacuatedVm]:
    """Return the machines whose move has begun, in the order in which they continue.

    Harvester halts several at once. All of them are started before one is waited for.
    """
    begun = (vm for vm in vms if vm.begun and not vm.absent)
    return sorted(begun, key=lambda vm: (not vm.halted, vm.exists, *_order(vm)))


def choose(views: Iterable[Seen]) -> Seen:
    """Return the view of the first machine that need not wait, else of one that is drained.

    :param views: what is seen of a cluster for each machine that moves; not empty
    """
    return min(views, key=lambda view: _RANKS.get(next_step(view).action, 0))


def stage_of(vm: EvacuatedVm) -> Stage:
    """Return the stage of a move that has begun."""
    if not vm.former:
        return Stage.DRAIN
    if vm.halted:
        return Stage.STOP
    return Stage.RETURN if vm.runs else Stage.START


def next_step(seen: Seen) -> Step:
    """Return the next step for a cluster."""
    # What Harvester has halted can be recognised for a short time only.
    for lost in seen.vms:
        if lost.lost and not lost.source:
            return Step(Action.BEGIN, lost.name)
    if not seen.unheld and (step := _shield(seen.vms)):
        return step
    movers = moving(seen.vms)
    if not movers:
        return _choose(seen)
    return _continue(seen, next((vm for vm in movers if vm.name == seen.mover), movers[0]))


def _order(vm: EvacuatedVm) -> tuple[bool, str]:
    """Return the place of a machine in the order of moves: workers come first."""
    return vm.control_plane, vm.name


def _shield(vms: Iterable[EvacuatedVm]) -> Step | None:
    """Return the step for a Machine that Harvester migrates: no remediation while that lasts."""
    for vm in vms:
        if vm.drained and not vm.held:
            return Step(Action.HOLD, vm.name)
        if vm.held_by_us and (vm.absent or not (vm.drained or vm.begun)):
            return Step(Action.RELEASE, vm.name)
        if vm.absent and vm.source:
            return Step(Action.FINISH, vm.name)
    return None


def _choose(seen: Seen) -> Step:
    """Return the begin of the next move; if there is none, what keeps the others from it."""
    leaving = sorted((vm for vm in seen.vms if vm.leaves), key=_order)
    for vm in leaving:
        if not vm.obstacle:
            return Step(Action.BEGIN, vm.name)

    # Later than the moves, so that a VM which restarts meanwhile does not return to its host.
    for vm in seen.vms:
        if vm.avoids and vm.outdated and not vm.former:
            return Step(Action.ALLOW, vm.name)
    if leaving:
        reasons = "; ".join(f"{vm.name} stays on {vm.host}: {vm.obstacle}" for vm in leaving)
        return Step(Action.WAIT, message=reasons, blocked=True)
    return Step(Action.NOTHING)


def _continue(seen: Seen, vm: EvacuatedVm) -> Step:
    """Return the next step of a move that has begun."""
    if vm.former:
        return _restart(seen, vm)
    if vm.halted and vm.lost:
        return Step(Action.ADOPT if vm.held or seen.unheld else Action.HOLD, vm.name)
    if vm.leaves:
        return _drain(seen, vm)
    if not (vm.exists or vm.halted or seen.late):
        # It restarts by itself, perhaps on the same host.
        return _wait(seen, vm, f"{vm.name} leaves {vm.origin}: waiting for its VM to run")
    return _end(seen, vm)


def _drain(seen: Seen, vm: EvacuatedVm) -> Step:
    """Return the next step until the VM is stopped."""
    if vm.obstacle:
        return _end(seen, vm)
    if not vm.held:
        return Step(Action.HOLD, vm.name)
    return (
        _await_others(seen, vm)
        or _require_workload(seen, vm)
        or _await_servers(seen, vm)
        or _await_join(seen, vm)
        or _cordon(seen, vm)
        or _evict(seen, vm)
        or Step(Action.STOP, vm.name)
    )


def _await_others(seen: Seen, vm: EvacuatedVm) -> Step | None:
    """Return the wait until no other machine is stopped or starts: Harvester may halt several."""
    others = [other.name for other in seen.vms if other.former and other.name != vm.name]
    if not others:
        return None
    return _wait(seen, vm, f"{vm.name} leaves {vm.host}: waiting until {_some(others)} returns")


def _require_workload(seen: Seen, vm: EvacuatedVm) -> Step | None:
    """Return the wait for the workload API, or the stop without it on request."""
    if seen.nodes is not None:
        return None
    message = f"{vm.name} leaves {vm.host}: its Node cannot be drained, {seen.unread}"
    others = (other for other in seen.vms if other.control_plane and other.name != vm.name)
    if vm.control_plane and any(others):
        # Whether etcd can spare it is not known.
        return _wait(seen, vm, message, "; repair the control plane, or delete this Machine")
    if seen.late and seen.forced:
        return Step(Action.STOP, vm.name)
    return _wait(seen, vm, message, f"; {_FORCE}")


def _await_servers(seen: Seen, vm: EvacuatedVm) -> Step | None:
    """Return the wait until etcd can spare a control plane machine."""
    # A Node stays ready for a while in the API after its VM was stopped.
    ready = {node.name for node in seen.nodes or () if node.ready}
    steady = {other.name for other in seen.vms if other.runs and not (other.absent or other.former)}
    unready = [
        other.name
        for other in seen.vms
        if other.control_plane and other.name != vm.name and other.name not in ready & steady
    ]
    if not (vm.control_plane and unready):
        return None
    message = f"{vm.name} leaves {vm.host}: waiting for other control plane Nodes: {_some(unready)}"
    return _wait(seen, vm, message, "; etcd could lose its majority without them")


def _await_join(seen: Seen, vm: EvacuatedVm) -> Step | None:
    """Return the wait for a guest that is being set up, which no second boot would repeat."""
    is_forced = seen.late and seen.forced
    if is_forced or not vm.joins or _node_of(seen, vm) is not None:
        return None
    message = f"{vm.name} leaves {vm.host}: waiting for its guest to join the cluster"
    return _wait(seen, vm, message, f"; see its console, or delete its Machine; {_FORCE}")


def _cordon(seen: Seen, vm: EvacuatedVm) -> Step | None:
    node = _node_of(seen, vm)
    return None if node is None or node.held else Step(Action.CORDON, vm.name)


def _evict(seen: Seen, vm: EvacuatedVm) -> Step | None:
    """Return the drain, which is repeated as long as it takes, unless it is forced."""
    if not seen.pods or (seen.late and seen.forced):
        return None
    advice = f"; check their PodDisruptionBudgets, or {_FORCE}" if seen.late else ""
    message = f"{vm.name} leaves {vm.host}: draining its Node, {_some(seen.pods)} left{advice}"
    return Step(Action.EVICT, vm.name, message, blocked=seen.late)


def _restart(seen: Seen, vm: EvacuatedVm) -> Step:
    """Return the next step from the stop of a VM until its Node is back."""
    if vm.halted and vm.started and not vm.lost:
        return _end(seen, vm)
    if vm.halted and not vm.exists:
        return Step(Action.START, vm.name)
    if vm.halted:
        message = f"{vm.name} leaves {vm.origin}: waiting for its VM to stop"
        return _wait(seen, vm, message, "; see its console")
    if not vm.runs:
        return _await_start(seen, vm)
    return _await_node(seen, vm) or Step(Action.SETTLE, vm.name)


def _await_start(seen: Seen, vm: EvacuatedVm) -> Step:
    if vm.outdated:
        # Its instance waits for a host, and does not follow a change of the VM in this.
        return Step(Action.STOP, vm.name)
    status = f" ({vm.status})" if vm.status else ""
    message = f"{vm.name} leaves {vm.origin}: waiting for its VM to start on another host{status}"
    advice = f"; it starts once a host has room for it, or {vm.origin} is back"
    if vm.avoids and vm.source:
        command = remedies.CANCEL_EVACUATION(host=vm.source)
        advice = f"; to let it start there again: {command}"
    return _wait(seen, vm, message, advice)


def _await_node(seen: Seen, vm: EvacuatedVm) -> Step | None:
    """Return the wait for the Node of a VM that runs again, or what is to do with it."""
    subject = f"{vm.name} leaves {vm.origin}"
    if seen.nodes is None:
        return _wait(seen, vm, f"{subject}: waiting for the workload API, {seen.unread}", _REPAIR)
    node = _node_of(seen, vm)
    if node is None:
        return None  # it never joined
    if not (node.ready and (node.rebooted or not node.held)):
        advice = "; see its console, or delete its Machine, which nothing replaces meanwhile"
        return _wait(seen, vm, f"{subject}: waiting for its Node on {vm.host}", advice)
    return Step(Action.UNCORDON, vm.name) if node.held else None


def _end(seen: Seen, vm: EvacuatedVm) -> Step:
    """Return the next step of a move that is complete, or that is not asked for any more.

    A user who halts the VM ends the move, too.
    """
    if seen.nodes is None:
        message = f"{vm.name}: waiting for the workload API, to uncordon its Node, {seen.unread}"
        return _wait(seen, vm, message, _REPAIR)
    node = _node_of(seen, vm)
    if node is not None and node.held:
        return Step(Action.UNCORDON, vm.name)
    if vm.former:
        return Step(Action.YIELD, vm.name)
    if vm.held_by_us and vm.unseen and vm.runs and not seen.late:
        # A health check would take the Machine for one whose Node is lost.
        return _wait(seen, vm, f"{vm.name}: waiting for Cluster API to see its Node ready")
    is_released = not vm.held_by_us or vm.drained
    return Step(Action.FINISH if is_released else Action.RELEASE, vm.name)


def _wait(seen: Seen, vm: EvacuatedVm, message: str, advice: str = "") -> Step:
    """Return a wait, which needs a user once the time for it is over."""
    return Step(Action.WAIT, vm.name, message + (advice if seen.late else ""), blocked=seen.late)


def _node_of(seen: Seen, vm: EvacuatedVm) -> EvacuatedNode | None:
    return next((node for node in seen.nodes or () if node.name == vm.name), None)


def _some(names: Iterable[str]) -> str:
    return name_some(sorted(names), _NAMED)
