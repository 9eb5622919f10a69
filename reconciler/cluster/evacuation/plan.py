"""Decide the next step of moving guests off evacuated hosts. No I/O.

Harvester moves the guests that can migrate. The others, such as those with host devices, are
stopped and started on another host, one machine of a cluster at a time:

1. record the host on the HarvesterMachine, and hold the Machine: annotation `skip-remediation`;
2. cordon and drain its Node;
3. stop the VM, and start it on another host;
4. wait for its Node, and remove the records in reverse order.

Each step is decided from the objects alone, so a provider that was interrupted after any write
continues there. If a host is no longer evacuated, the move ends: a VM that was stopped for it
starts on any host with room.

A VM that Harvester itself has halted, for forced maintenance or an upgrade, is started by the same
steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from caphv.api import remedies
from caphv.api.counting import name_some

_MAX_LISTED = 3
_REPAIR = "; repair it: see the consoles of the control plane's VMs, or delete the Machine"
_FORCE = "to stop its VM without that, set the annotation of the host to force"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvacuatedVm:
    """A machine with its VM.

    :param is_control_plane: it serves the workload API, or has a member of its etcd
    :param host: the host of its instance; empty without an instance
    :param must_move: its instance is on an evacuated host, and Harvester cannot migrate it
    :param needs_hold: Harvester has been draining the host of its instance for less than
        `HOLD_SECONDS`
    :param source: the host that the record names; empty unless the move has begun
    :param was_halted_by_harvester: Harvester has halted it to drain its host, and will not start it
    :param obstacle: why it cannot start on another host; empty if it can, or was stopped already
    :param is_held: its Machine has annotation `skip-remediation`, set by a user or the provider
    :param is_held_by_us: the provider has set that annotation
    :param saved_strategy: the run strategy that the move has recorded; empty unless it has stopped
        the VM
    :param was_restarted: the move has started it again since
    :param is_halted: its run strategy is `Halted`
    :param has_instance: it has an instance, which may be ending
    :param is_running: its instance runs and is not ending
    :param avoids_hosts: its affinity excludes hosts on behalf of an evacuation
    :param has_outdated_avoidance: some of these hosts are no longer evacuated
    :param status: Harvester's status of the VM, for messages
    :param awaits_first_join: its guest has never joined the workload cluster
    :param has_unhealthy_node: Cluster API reports its Node as unhealthy or unknown
    :param is_absent: its VM does not exist, or the machine is being deleted; etcd may still have
        its member
    """

    name: str
    is_control_plane: bool
    host: str = ""
    must_move: bool = False
    needs_hold: bool = False
    source: str = ""
    was_halted_by_harvester: bool = False
    obstacle: str = ""
    is_held: bool = False
    is_held_by_us: bool = False
    saved_strategy: str = ""
    was_restarted: bool = False
    is_halted: bool = False
    has_instance: bool = False
    is_running: bool = False
    avoids_hosts: bool = False
    has_outdated_avoidance: bool = False
    status: str = ""
    awaits_first_join: bool = False
    has_unhealthy_node: bool = False
    is_absent: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether its move has begun. After a restore, only the VM may still have a record."""
        return bool(self.source or self.saved_strategy)

    @property
    def origin(self) -> str:
        """The host that it leaves, for messages."""
        return self.source or "its host"


@dataclass(frozen=True, slots=True)
class EvacuatedNode:
    """The Node of a machine.

    :param is_ready: it has reported that it is ready since its VM was started, and so has its
        member of etcd, if it has one
    :param has_record: the move has recorded its boot there
    :param has_rebooted: it reports another boot than this record
    """

    name: str
    is_ready: bool
    has_record: bool = False
    has_rebooted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """What is known of a cluster when the next step of one of its machines is decided.

    :param vms: all its machines
    :param nodes: Nodes of the machine that moves and of the control plane; None while the workload
        API does not answer
    :param workload_error: why it does not answer
    :param pods: Pods that the Node of the machine has yet to evict
    :param is_late: the present stage has taken longer than `STAGE_SECONDS`
    :param is_forced: the machine moves even if its Node cannot be drained
    :param mover: the machine that moves; empty for the first one
    :param may_not_hold: the provider lacks the right to hold Machines. VMs that Harvester migrates
        or has halted do not wait for it.
    """

    vms: tuple[EvacuatedVm, ...] = ()
    nodes: tuple[EvacuatedNode, ...] | None = ()
    workload_error: str = ""
    pods: tuple[str, ...] = ()
    is_late: bool = False
    is_forced: bool = False
    mover: str = ""
    may_not_hold: bool = False


class Stage(Enum):
    """A part of a move that is bounded in time."""

    DRAIN = "until the VM may stop"
    STOP = "until it has stopped"
    START = "until it runs on another host"
    RETURN = "until its Node is ready"


# Seconds until a stage needs a user. Harvester gives a guest two minutes to shut down.
STAGE_SECONDS = {Stage.DRAIN: 300.0, Stage.STOP: 240.0, Stage.START: 300.0, Stage.RETURN: 600.0}


# Seconds for which a Machine is held while Harvester drains its host. A drain that is stuck, or
# whose mark was never removed, must not suspend remediation for days.
HOLD_SECONDS = 3600.0


class Action(Enum):
    """What to do next."""

    BEGIN = "record which host the machine leaves"
    HOLD = "suspend remediation of the Machine"
    CORDON = "cordon the Node, and record its boot"
    EVICT = "evict Pods from the Node"
    ADOPT = "record the run strategy of a VM that Harvester has halted"
    STOP = "stop the VM, and exclude evacuated hosts from its affinity"
    START = "start the VM"
    UNCORDON = "uncordon the Node, and remove the record from it"
    SETTLE = "restore the saved run strategy of the VM, and remove the record from it"
    YIELD = "remove the record from a VM that its user has halted"
    RELEASE = "allow remediation of the Machine again"
    FINISH = "remove the record from the machine"
    ALLOW = "let the VM start on all hosts again"
    WAIT = "wait for something in progress"
    NOTHING = "no machine has to move"


# A machine that can act comes before one that drains, and that before one that waits.
_RANKS = {Action.EVICT: 1, Action.WAIT: 2}


@dataclass(frozen=True, slots=True)
class Step:
    """An action, the machine that it concerns, and a message for the user.

    :param blocked: a user has to act before the step can succeed
    """

    action: Action
    name: str = ""
    message: str = ""
    blocked: bool = False


def moving_vms(vms: Iterable[EvacuatedVm]) -> list[EvacuatedVm]:
    """Return the machines whose move has begun, in the order in which they continue.

    Harvester may halt several at once: all of them are started before the move waits for one.
    """

    def continuation_order(vm: EvacuatedVm) -> tuple[bool, bool, bool, str]:
        # False sorts first: halted VMs, among them those that have stopped, then workers.
        return not vm.is_halted, vm.has_instance, *_begin_order(vm)

    return sorted((vm for vm in vms if vm.has_begun and not vm.is_absent), key=continuation_order)


def choose_state(states: Iterable[ClusterState]) -> ClusterState:
    """Return the state of the first machine that can act, else of one that drains.

    :param states: the cluster once for each machine that moves; not empty
    """
    return min(states, key=lambda state: _RANKS.get(next_step(state).action, 0))


def stage_of(vm: EvacuatedVm) -> Stage:
    """Return the stage of a move that has begun."""
    if not vm.saved_strategy:
        return Stage.DRAIN
    if vm.is_halted:
        return Stage.STOP
    return Stage.RETURN if vm.is_running else Stage.START


def next_step(state: ClusterState) -> Step:
    """Return the next step for a cluster."""
    # First, because a VM can be recognised as halted by Harvester for a short time only.
    for vm in state.vms:
        if vm.was_halted_by_harvester and not vm.source:
            return Step(Action.BEGIN, vm.name)

    if not state.may_not_hold and (step := _update_holds(state.vms)):
        return step

    movers = moving_vms(state.vms)
    if not movers:
        return _begin(state)
    return _continue(state, next((vm for vm in movers if vm.name == state.mover), movers[0]))


def _begin_order(vm: EvacuatedVm) -> tuple[bool, str]:
    """Return the sort key of the order in which machines begin to move: workers first."""
    return vm.is_control_plane, vm.name


def _update_holds(vms: Iterable[EvacuatedVm]) -> Step | None:
    """Hold Machines while Harvester migrates their VMs, and release those that need no hold."""
    for vm in vms:
        if vm.needs_hold and not vm.is_held:
            return Step(Action.HOLD, vm.name)
        if vm.is_held_by_us and (vm.is_absent or not (vm.needs_hold or vm.has_begun)):
            return Step(Action.RELEASE, vm.name)
        if vm.is_absent and vm.source:
            return Step(Action.FINISH, vm.name)
    return None


def _begin(state: ClusterState) -> Step:
    """Begin the next move, or return what keeps the remaining machines on their hosts."""
    leaving = sorted((vm for vm in state.vms if vm.must_move), key=_begin_order)
    for vm in leaving:
        if not vm.obstacle:
            return Step(Action.BEGIN, vm.name)

    # After all moves, so that a VM which restarts meanwhile does not return to its host.
    for vm in state.vms:
        if vm.avoids_hosts and vm.has_outdated_avoidance and not vm.saved_strategy:
            return Step(Action.ALLOW, vm.name)

    if leaving:
        reasons = "; ".join(f"{vm.name} stays on {vm.host}: {vm.obstacle}" for vm in leaving)
        return Step(Action.WAIT, message=reasons, blocked=True)
    return Step(Action.NOTHING)


def _continue(state: ClusterState, vm: EvacuatedVm) -> Step:
    """Return the next step of a move that has begun."""
    if vm.saved_strategy:
        return _restart(state, vm)
    if vm.is_halted and vm.was_halted_by_harvester:
        return Step(Action.ADOPT if vm.is_held or state.may_not_hold else Action.HOLD, vm.name)
    if vm.must_move:
        return _drain(state, vm)
    if not (vm.has_instance or vm.is_halted or state.is_late):
        # KubeVirt restarts it, possibly on the same host.
        return _wait(state, vm, f"{vm.name} leaves {vm.origin}: waiting for its VM to run")
    return _end(state, vm)


def _drain(state: ClusterState, vm: EvacuatedVm) -> Step:
    """Return the next step until the VM is stopped."""
    if vm.obstacle:
        return _end(state, vm)
    if not vm.is_held:
        return Step(Action.HOLD, vm.name)
    return (
        _await_others(state, vm)
        or _require_workload_api(state, vm)
        or _await_control_plane(state, vm)
        or _await_first_join(state, vm)
        or _cordon(state, vm)
        or _evict(state, vm)
        or Step(Action.STOP, vm.name)
    )


def _await_others(state: ClusterState, vm: EvacuatedVm) -> Step | None:
    """Wait while another machine is down. Harvester may have halted several at once."""
    stopped = [other.name for other in state.vms if other.saved_strategy and other.name != vm.name]
    if not stopped:
        return None
    return _wait(state, vm, f"{vm.name} leaves {vm.host}: waiting until {_some(stopped)} returns")


def _require_workload_api(state: ClusterState, vm: EvacuatedVm) -> Step | None:
    """Wait for the workload API, or stop the VM without it if the evacuation is forced."""
    if state.nodes is not None:
        return None

    message = f"{vm.name} leaves {vm.host}: its Node cannot be drained, {state.workload_error}"
    has_peers = any(other.is_control_plane and other.name != vm.name for other in state.vms)
    if vm.is_control_plane and has_peers:
        # Without the API, nothing shows whether etcd keeps its majority.
        return _wait(state, vm, message, "; repair the control plane, or delete this Machine")
    if state.is_late and state.is_forced:
        return Step(Action.STOP, vm.name)
    return _wait(state, vm, message, f"; {_FORCE}")


def _await_control_plane(state: ClusterState, vm: EvacuatedVm) -> Step | None:
    """Wait until etcd keeps its majority without this control plane machine."""
    if not vm.is_control_plane:
        return None

    ready_nodes = {node.name for node in state.nodes or () if node.is_ready}
    unready = [
        other.name
        for other in state.vms
        if other.is_control_plane
        and other.name != vm.name
        # A Node stays ready in the API for a while after its VM was stopped.
        and not (other.name in ready_nodes and _is_steady(other))
    ]
    if not unready:
        return None
    message = f"{vm.name} leaves {vm.host}: waiting for other control plane Nodes: {_some(unready)}"
    return _wait(state, vm, message, "; etcd could lose its majority without them")


def _is_steady(vm: EvacuatedVm) -> bool:
    """Return whether a VM runs, and is neither being deleted nor being moved."""
    return vm.is_running and not (vm.is_absent or vm.saved_strategy)


def _await_first_join(state: ClusterState, vm: EvacuatedVm) -> Step | None:
    """Wait while the guest is being set up: a second boot would not repeat the setup."""
    skips_setup = state.is_late and state.is_forced
    if skips_setup or not vm.awaits_first_join or _node_of(state, vm) is not None:
        return None
    message = f"{vm.name} leaves {vm.host}: waiting for its guest to join the cluster"
    return _wait(state, vm, message, f"; see its console, or delete its Machine; {_FORCE}")


def _cordon(state: ClusterState, vm: EvacuatedVm) -> Step | None:
    """Cordon the Node, unless the machine has none or the record says that it was cordoned."""
    node = _node_of(state, vm)
    return None if node is None or node.has_record else Step(Action.CORDON, vm.name)


def _evict(state: ClusterState, vm: EvacuatedVm) -> Step | None:
    """Evict Pods until none is left, or until the stage is over if the evacuation is forced."""
    if not state.pods or (state.is_late and state.is_forced):
        return None
    advice = f"; check their PodDisruptionBudgets, or {_FORCE}" if state.is_late else ""
    message = f"{vm.name} leaves {vm.host}: draining its Node, {_some(state.pods)} left{advice}"
    return Step(Action.EVICT, vm.name, message, blocked=state.is_late)


def _restart(state: ClusterState, vm: EvacuatedVm) -> Step:
    """Return the next step from the stop of a VM until its Node is back."""
    if vm.is_halted and vm.was_restarted and not vm.was_halted_by_harvester:
        return _end(state, vm)
    if vm.is_halted and not vm.has_instance:
        return Step(Action.START, vm.name)
    if vm.is_halted:
        message = f"{vm.name} leaves {vm.origin}: waiting for its VM to stop"
        return _wait(state, vm, message, "; see its console")
    if not vm.is_running:
        return _await_start(state, vm)
    return _await_node(state, vm) or Step(Action.SETTLE, vm.name)


def _await_start(state: ClusterState, vm: EvacuatedVm) -> Step:
    """Wait until the VM starts, or stop it again if it avoids hosts that it need not avoid."""
    if vm.has_outdated_avoidance:
        # A pending instance does not follow changes of its VM, so it must be created again.
        return Step(Action.STOP, vm.name)

    status = f" ({vm.status})" if vm.status else ""
    message = f"{vm.name} leaves {vm.origin}: waiting for its VM to start on another host{status}"
    advice = f"; it starts once a host has room for it, or {vm.origin} is back"
    if vm.avoids_hosts and vm.source:
        command = remedies.CANCEL_EVACUATION(host=vm.source)
        advice = f"; to let it start there again: {command}"
    return _wait(state, vm, message, advice)


def _await_node(state: ClusterState, vm: EvacuatedVm) -> Step | None:
    """Wait until the Node of a VM that runs again is ready, then uncordon it."""
    subject = f"{vm.name} leaves {vm.origin}"
    if state.nodes is None:
        message = f"{subject}: waiting for the workload API, {state.workload_error}"
        return _wait(state, vm, message, _REPAIR)

    node = _node_of(state, vm)
    if node is None:
        return None  # it never joined
    if not (node.is_ready and (node.has_rebooted or not node.has_record)):
        advice = "; see its console, or delete its Machine, which nothing replaces meanwhile"
        return _wait(state, vm, f"{subject}: waiting for its Node on {vm.host}", advice)
    return Step(Action.UNCORDON, vm.name) if node.has_record else None


def _end(state: ClusterState, vm: EvacuatedVm) -> Step:
    """Return the next cleanup step of a move that is complete or cancelled.

    A move is also cancelled when a user halts the VM.
    """
    if state.nodes is None:
        error = state.workload_error
        message = f"{vm.name}: waiting for the workload API, to uncordon its Node, {error}"
        return _wait(state, vm, message, _REPAIR)

    node = _node_of(state, vm)
    if node is not None and node.has_record:
        return Step(Action.UNCORDON, vm.name)
    if vm.saved_strategy:
        return Step(Action.YIELD, vm.name)
    if vm.is_held_by_us and vm.has_unhealthy_node and vm.is_running and not state.is_late:
        # Released now, the Machine would be remediated by a MachineHealthCheck.
        return _wait(state, vm, f"{vm.name}: waiting for Cluster API to see its Node ready")
    # A Machine whose host Harvester still drains stays held, and is released after the drain.
    if vm.is_held_by_us and not vm.needs_hold:
        return Step(Action.RELEASE, vm.name)
    return Step(Action.FINISH, vm.name)


def _wait(state: ClusterState, vm: EvacuatedVm, message: str, advice: str = "") -> Step:
    """Return a WAIT step, which is blocked and gives advice once the stage is late."""
    text = message + (advice if state.is_late else "")
    return Step(Action.WAIT, vm.name, text, blocked=state.is_late)


def _node_of(state: ClusterState, vm: EvacuatedVm) -> EvacuatedNode | None:
    """Return the Node of a machine, None if it has none or the workload API does not answer."""
    return next((node for node in state.nodes or () if node.name == vm.name), None)


def _some(names: Iterable[str]) -> str:
    """Return a few of the names, and the number of the others."""
    return name_some(sorted(names), _MAX_LISTED)
