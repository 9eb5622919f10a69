"""Decide the next step of parking or resuming a cluster. No I/O.

Parking: record and pause, cordon all Nodes, drain the workers, stop them, stop control plane
machines one after another with the leader of etcd last, check the volumes. Resuming is the reverse:
start the control plane and wait for its Nodes, start the workers, uncordon each Node that is ready,
wait for the others, end the pause.

Each step is decided from the objects alone, so a provider that was interrupted after any write
continues there.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from caphv.api.counting import counted, name_some

HALTED = "Halted"
_MAX_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedVm:
    """The VM of a machine.

    :param is_control_plane: it serves the workload API, or has a member of etcd
    :param strategy: its run strategy
    :param saved_strategy: the run strategy that parking has recorded, until the VM runs again
    :param has_instance: it has an instance, other than the ended one of an idle VM
    :param is_idle: a user or its guest has stopped it, and its run strategy does not start it again
    :param is_ending: its instance is being deleted
    :param refusal: why Harvester has refused its start, or has stopped it since, until it is
        started again
    :param obstacle: why its instance does not run; empty if it runs or is still starting
    :param serves_api: it serves the workload API; has no meaning for workers
    """

    name: str
    is_control_plane: bool
    strategy: str
    saved_strategy: str = ""
    has_instance: bool = False
    is_idle: bool = False
    is_ending: bool = False
    refusal: str = ""
    obstacle: str = ""
    serves_api: bool = True

    @property
    def is_stopped(self) -> bool:
        """Whether the provider, a user or its guest has stopped it. Its instance may still end."""
        return self.strategy == HALTED or self.is_idle


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedNode:
    """The Node of a machine.

    :param is_marked: its record is from the present run of its VM, or the VM does not run
    :param has_record: parking has left a record there, from this run or an earlier one
    :param is_ready: it has reported in the present run of its VM that it is ready
    :param was_refused: the workload API has refused the last change of the Node
    """

    name: str
    is_marked: bool
    has_record: bool
    is_ready: bool
    was_refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """What is known of a cluster when its next step is decided.

    :param is_wanted: the cluster is to be parked, or to stay so
    :param has_begun: parking has left its record on the Cluster
    :param is_paused: the Cluster is paused
    :param is_deleted: the deletion of the Cluster has been requested
    :param vms: VMs that exist and belong to the cluster's machines
    :param last_to_stop: the control plane machine that stops last; empty until it is chosen
    :param nodes: Nodes of these machines; None while the workload API does not answer, empty while
        the next step does not depend on them
    :param pods: how many Pods workers still have to evict
    :param is_drain_over: the time for the drain is over
    :param attached_volumes: volumes that are still attached to a host
    :param is_tunnelled: the workload API is reached through Rancher's agent, which may run on a
        worker
    """

    is_wanted: bool
    has_begun: bool
    is_paused: bool
    is_deleted: bool = False
    vms: tuple[ParkedVm, ...] = ()
    last_to_stop: str = ""
    nodes: tuple[ParkedNode, ...] | None = ()
    pods: int = 0
    is_drain_over: bool = False
    attached_volumes: tuple[str, ...] = ()
    is_tunnelled: bool = False


class Action(Enum):
    """What to do next."""

    BEGIN = "record that parking begins, and pause the cluster"
    PAUSE = "pause a cluster again that was unpaused while it is parked"
    MARK = "record the boot ids of Nodes, and cordon them"
    EVICT = "evict Pods from workers"
    CHOOSE_LAST = "choose the control plane machine that stops last"
    STOP = "stop VMs"
    START = "start VMs"
    SETTLE = "restore the saved run strategies of VMs that have started"
    RELEASE = "uncordon Nodes and remove the record from them"
    FINISH = "end the pause and remove the record"
    WAIT = "wait for something in progress"
    STAY = "leave the parked cluster alone"
    NOTHING = "the cluster is not parked"


@dataclass(frozen=True, slots=True)
class Step:
    """An action, the machines or Nodes that it concerns in order, and a message for the user.

    :param blocked: a user has to act before the step can succeed
    :param cause: why it takes long; empty if that is unknown
    """

    action: Action
    names: tuple[str, ...] = ()
    message: str = ""
    blocked: bool = False
    cause: str = ""


def next_step(state: ClusterState) -> Step:
    """Return the next step for a cluster."""
    if step := record_step(state):
        return step
    return _park(state) if state.is_wanted else _resume(state)


def record_step(state: ClusterState) -> Step | None:
    """Return the next step if it depends only on the Cluster, so that Harvester may be down."""
    if state.is_deleted:
        # Stopped VMs can be deleted like others, but only by controllers that are not paused.
        return Step(Action.FINISH if state.has_begun else Action.NOTHING)
    if not state.is_wanted:
        return None if state.has_begun else Step(Action.NOTHING)
    if not state.has_begun:
        return Step(Action.BEGIN)
    return None if state.is_paused else Step(Action.PAUSE)


def _park(state: ClusterState) -> Step:
    """Return the next step of parking: drain and stop the workers, then stop the control plane.

    Workers come first, because nothing can read or write Nodes once the control plane stops.
    """
    workers = [vm for vm in state.vms if not vm.is_control_plane]
    control_plane = [vm for vm in state.vms if vm.is_control_plane]
    has_api = any(vm.serves_api and not vm.is_stopped for vm in control_plane)
    running = [vm for vm in workers if not vm.is_stopped]

    if running and has_api and (step := _drain(state, running)):
        return step
    if running:
        return Step(Action.STOP, tuple(vm.name for vm in running))
    if stopping := [vm.name for vm in workers if vm.has_instance]:
        return Step(Action.WAIT, message=f"waiting for workers to stop: {_some(stopping)}")
    return _park_control_plane(state, control_plane)


def _drain(state: ClusterState, workers: list[ParkedVm]) -> Step | None:
    """Return the next step of the drain; None when the workers may stop."""
    count = counted(len(workers), "worker")
    if state.nodes is None:
        message = f"waiting for the workload API, to cordon Nodes and drain {count}"
        return None if state.is_drain_over else Step(Action.WAIT, message=message)

    # Mark all Nodes before the first eviction, so that no evicted Pod starts on another one.
    writable = [node for node in state.nodes if not (state.is_drain_over and node.was_refused)]
    if unmarked := [node.name for node in writable if not node.is_marked]:
        return Step(Action.MARK, tuple(unmarked))
    if state.pods and not state.is_drain_over:
        message = f"draining {count}: {counted(state.pods, 'Pod')} left"
        return Step(Action.EVICT, tuple(vm.name for vm in workers), message)
    return None


def _park_control_plane(state: ClusterState, machines: list[ParkedVm]) -> Step:
    """Stop control plane machines one at a time.

    The next one stops only when the last has ended, so that etcd never elects a leader that is
    about to stop.
    """
    running = [vm for vm in machines if not vm.is_stopped]
    if running and not any(vm.saved_strategy for vm in machines) and (step := _drain(state, [])):
        # Nodes are marked first: their status survives in etcd, and would look current after the
        # next start.
        return step
    if running and not state.last_to_stop:
        candidates = [vm for vm in machines if not vm.serves_api] or machines
        return Step(Action.CHOOSE_LAST, tuple(vm.name for vm in candidates))

    if stopping := [vm.name for vm in machines if vm.is_stopped and vm.has_instance]:
        message = f"waiting for control plane machines to stop: {_some(stopping)}"
        return Step(Action.WAIT, message=message)
    if running:
        return Step(Action.STOP, (_first_to_stop(state, running).name,))

    if state.attached_volumes:
        message = f"waiting for volumes to be detached: {_some(state.attached_volumes)}"
        return Step(Action.WAIT, message=message)
    return Step(Action.STAY, message=f"{counted(len(state.vms), 'VM')} stopped")


def _first_to_stop(state: ClusterState, machines: Iterable[ParkedVm]) -> ParkedVm:
    """Return the control plane machine that stops next.

    API servers stop before machines that have only etcd, which they need. The machine that was
    chosen to stop last follows the others.
    """

    def order(vm: ParkedVm) -> tuple[bool, bool, str]:
        # False sorts first: API servers, among them those that are not chosen to stop last.
        return not vm.serves_api, vm.name == state.last_to_stop, vm.name

    return min(machines, key=order)


def _resume(state: ClusterState) -> Step:
    """Return the next step of resuming: the first of these that is not complete."""
    control_plane = [vm for vm in state.vms if vm.is_control_plane]
    return (
        _start(state, control_plane)
        or _await_control_plane_vms(state, control_plane)
        or _await_control_plane(state, control_plane)
        or _start(state, state.vms)
        or _release(state)
        or _await_start(state.vms)
        or _await_nodes(state, state.vms, "workers")
        or _await_uncordoned(state)
        or Step(Action.FINISH)
    )


def _start(state: ClusterState, vms: Sequence[ParkedVm]) -> Step | None:
    """Start parked VMs, then restore the run strategies of those that run.

    A VM is started with a run strategy that starts it. Its own may only keep it running.
    """
    if parked := [vm for vm in vms if vm.saved_strategy and vm.is_stopped and not vm.refusal]:
        # The machine that stopped last has the newest data of etcd, so it sorts first.
        ordered = sorted(parked, key=lambda vm: (vm.name != state.last_to_stop, vm.name))
        return Step(Action.START, tuple(vm.name for vm in ordered))
    started = [vm.name for vm in vms if vm.saved_strategy and vm.has_instance and not vm.is_ending]
    return Step(Action.SETTLE, tuple(started)) if started else None


def _await_start(vms: Sequence[ParkedVm]) -> Step | None:
    """Return a WAIT step while VMs start, blocked if Harvester refuses it; None once all run."""
    refusals = {vm.name: vm.refusal for vm in vms if vm.refusal}
    if refusals:
        # One refusal is enough as an example; `min` keeps the message stable.
        message = f"Harvester does not start {_some(refusals)}: {min(refusals.values())}"
        return Step(Action.WAIT, message=message, blocked=True)

    starting = [vm.name for vm in vms if vm.saved_strategy]
    if not starting:
        return None
    return Step(Action.WAIT, message=f"waiting for VMs to start: {_some(starting)}")


def _await_control_plane_vms(state: ClusterState, control_plane: Sequence[ParkedVm]) -> Step | None:
    """Return a WAIT step while VMs of the control plane start, which workers need.

    A VM whose start Harvester refuses keeps no worker from starting if the others serve the API.
    """
    able = [vm for vm in control_plane if not vm.refusal]
    # An API that is reached through an agent on a worker cannot answer before the workers start.
    serves_api = state.nodes is not None or state.is_tunnelled
    if able and serves_api and not any(vm.saved_strategy for vm in able):
        return None
    return _await_start(control_plane)


def _await_control_plane(state: ClusterState, control_plane: Sequence[ParkedVm]) -> Step | None:
    """Return a WAIT step while workers must not start yet; None once the control plane is ready."""
    # The API may be reachable only through an agent on a worker, so it cannot answer before.
    if state.is_tunnelled and state.nodes is None:
        return None
    return _await_nodes(state, control_plane, "control plane")


def _await_nodes(state: ClusterState, vms: Sequence[ParkedVm], part: str) -> Step | None:
    """Return a WAIT step until the Nodes of started VMs are ready; None when they are.

    A VM that never joined has no Node to wait for.

    :param vms: the VMs that have to run
    :param part: what they are, for the message
    """
    # After a user has ended the pause, machines whose Nodes do not come back are replaced.
    started = _started_names(vms)
    if not started or not state.is_paused:
        return None
    if state.nodes is None:
        message = "waiting for the workload API to answer"
        return Step(Action.WAIT, message=message, cause=_first_obstacle(state.vms, started))

    unready = [node.name for node in state.nodes if node.name in started and not node.is_ready]
    if not unready:
        return None
    message = f"waiting for Nodes of the {part}: {_some(unready)}"
    return Step(Action.WAIT, message=message, cause=_first_obstacle(state.vms, unready))


def _first_obstacle(vms: Iterable[ParkedVm], names: Container[str]) -> str:
    """Return why the first of the named VMs does not run; empty if all run."""
    waiting = [vm for vm in vms if vm.name in names and vm.obstacle]
    first = min(waiting, key=lambda vm: vm.name, default=None)
    return f"{first.name}: {first.obstacle}" if first else ""


def _release(state: ClusterState) -> Step | None:
    """Release Nodes as soon as they are ready. None of them waits for others."""
    returned = [node.name for node in state.nodes or () if node.has_record and node.is_ready]
    return Step(Action.RELEASE, tuple(returned)) if returned else None


def _await_uncordoned(state: ClusterState) -> Step | None:
    """Return a WAIT step while Nodes are cordoned, even if the pause has ended.

    Only parking uncordons them, so its record stays until all have returned or were replaced.
    """
    started = _started_names(state.vms)
    if state.nodes is None:
        message = "waiting for the workload API to answer, to uncordon Nodes"
        return Step(Action.WAIT, message=message) if started else None
    cordoned = [node.name for node in state.nodes if node.has_record and node.name in started]
    if not cordoned:
        return None
    return Step(Action.WAIT, message=f"waiting for Nodes to uncordon: {_some(cordoned)}")


def _started_names(vms: Iterable[ParkedVm]) -> set[str]:
    """Return the names of VMs that run or are to run."""
    return {vm.name for vm in vms if not vm.is_stopped}


def _some(names: Iterable[str]) -> str:
    """Return a few of the names, and the number of the others."""
    return name_some(sorted(names), _MAX_LISTED)
