"""The next step of parking or resuming a cluster, from what is seen of it: pure.

Nothing is remembered between two steps but what the objects show, so that a provider which was
interrupted after any write takes up where it stopped.

Parking: record and pause, cordon all Nodes, drain the workers, stop them, stop control plane
machines one after another with the leader of etcd last, check the volumes. Resuming is the reverse:
start the control plane and wait for its Nodes, start the workers, uncordon each Node that is ready,
wait for the others, end the pause.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from caphv.api.counting import counted, name_some

HALTED = "Halted"
_NAMED = 3


@dataclass(frozen=True, slots=True)
class ParkedVm:
    """The VM of a machine.

    :param control_plane: it serves the workload API, or has a member of etcd
    :param former: the run strategy that parking has recorded, until the VM runs again
    :param runs: it has an instance
    :param idle: a user has stopped it, or its guest has, and its run strategy leaves it so
    :param ending: its instance is being deleted
    :param refusal: why Harvester has stopped it after its start, until it is started again
    :param obstacle: why its instance does not run, empty if it runs or takes its time
    :param serves: it serves the workload API; for workers, it has no meaning
    """

    name: str
    control_plane: bool
    strategy: str
    former: str = ""
    runs: bool = False
    idle: bool = False
    ending: bool = False
    refusal: str = ""
    obstacle: str = ""
    serves: bool = True

    @property
    def stopped(self) -> bool:
        """Whether it is not to run, by whomever."""
        return self.strategy == HALTED or self.idle


@dataclass(frozen=True, slots=True)
class ParkedNode:
    """The Node of a machine.

    :param marked: parking has left its record of this run of the VM there, or the VM does not run
    :param held: parking has left a record there, perhaps of an earlier run
    :param ready: it is ready, and has reported so in this run of the VM
    :param refused: its API has refused the last change of it
    """

    name: str
    marked: bool
    held: bool
    ready: bool
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen of a cluster.

    :param wanted: the annotation asks for a parked cluster
    :param begun: parking has left its record on the Cluster
    :param paused: the Cluster is paused
    :param deleted: the deletion of the Cluster has been requested
    :param vms: VMs that exist and belong to the cluster's machines
    :param last: the control plane machine that stops last, empty until it is chosen
    :param nodes: Nodes of these machines; None while the workload API does not answer
    :param pods: how many Pods workers still have to evict
    :param drained: the time for the drain is over
    :param attached: volumes that are still attached to a host
    :param tunnelled: the workload API is reached through Rancher's agent, which may run on a worker
    """

    wanted: bool
    begun: bool
    paused: bool
    deleted: bool = False
    vms: tuple[ParkedVm, ...] = ()
    last: str = ""
    nodes: tuple[ParkedNode, ...] | None = ()
    pods: int = 0
    drained: bool = False
    attached: tuple[str, ...] = ()
    tunnelled: bool = False


class Action(Enum):
    """What to do next."""

    BEGIN = "record that parking begins, and pause the cluster"
    PAUSE = "pause a cluster again that was unpaused while it is parked"
    MARK = "record the boot ids of Nodes, and cordon them"
    EVICT = "evict Pods from workers"
    CHOOSE_LAST = "choose the control plane machine that stops last"
    STOP = "stop VMs"
    START = "start VMs"
    SETTLE = "give VMs that have started their former run strategy"
    RELEASE = "uncordon Nodes and remove the record from them"
    FINISH = "end the pause and remove the record"
    WAIT = "wait for what is under way"
    STAY = "leave the parked cluster alone"
    NOTHING = "the cluster is not parked"


@dataclass(frozen=True, slots=True)
class Step:
    """An action, the machines or Nodes that it concerns in order, and a message for the user.

    :param blocked: what the action waits for needs a user
    :param cause: why that takes long, empty if it is not known
    """

    action: Action
    names: tuple[str, ...] = ()
    message: str = ""
    blocked: bool = False
    cause: str = ""


def next_step(seen: Seen) -> Step:
    """Return the next step for a cluster."""
    if step := record_step(seen):
        return step
    return _park(seen) if seen.wanted else _resume(seen)


def record_step(seen: Seen) -> Step | None:
    """Return the next step if only the Cluster decides it: Harvester need not answer for these."""
    if seen.deleted:
        # VMs that are stopped can be deleted like others, by controllers that are not paused.
        return Step(Action.FINISH if seen.begun else Action.NOTHING)
    if not seen.wanted:
        return None if seen.begun else Step(Action.NOTHING)
    if not seen.begun:
        return Step(Action.BEGIN)
    return None if seen.paused else Step(Action.PAUSE)


def _park(seen: Seen) -> Step:
    # With the control plane, the last ones that could read or write Nodes stop.
    workers = [vm for vm in seen.vms if not vm.control_plane]
    control_plane = [vm for vm in seen.vms if vm.control_plane]
    serves = any(vm.serves and not vm.stopped for vm in control_plane)
    running = [vm for vm in workers if not vm.stopped]
    if running and serves:
        waiting = _drain(seen, running)
        if waiting:
            return waiting
    if running:
        return Step(Action.STOP, tuple(vm.name for vm in running))
    if stopping := _running(workers):
        return Step(Action.WAIT, message=f"waiting for workers to stop: {_some(stopping)}")
    return _park_control_plane(seen, control_plane)


def _drain(seen: Seen, workers: list[ParkedVm]) -> Step | None:
    """Return the next step of the drain; None when the workers may stop."""
    count = counted(len(workers), "worker")
    if seen.nodes is None:
        message = f"waiting for the workload API, to cordon Nodes and drain {count}"
        return None if seen.drained else Step(Action.WAIT, message=message)

    # All of them: a Pod that was evicted must not start on another Node.
    writable = [node for node in seen.nodes if not (seen.drained and node.refused)]
    if unmarked := [node.name for node in writable if not node.marked]:
        return Step(Action.MARK, tuple(unmarked))
    if seen.pods and not seen.drained:
        message = f"draining {count}: {counted(seen.pods, 'Pod')} left"
        return Step(Action.EVICT, tuple(vm.name for vm in workers), message)
    return None


def _park_control_plane(seen: Seen, machines: list[ParkedVm]) -> Step:
    """Stop one machine after the other, so that etcd hands nothing over between those that stop."""
    running = [vm for vm in machines if not vm.stopped]
    if running and not any(vm.former for vm in machines):
        # What etcd keeps of Nodes would otherwise be taken for a report of their next run.
        waiting = _drain(seen, [])
        if waiting:
            return waiting
    if running and not seen.last:
        candidates = [vm for vm in machines if not vm.serves] or machines
        return Step(Action.CHOOSE_LAST, tuple(vm.name for vm in candidates))

    stopping = [vm for vm in machines if vm.stopped and vm.runs]
    if stopping:
        message = f"waiting for control plane machines to stop: {_some(_running(stopping))}"
        return Step(Action.WAIT, message=message)
    if running:
        # An API server cannot work without etcd, but etcd can without it.
        first = min(running, key=lambda vm: (not vm.serves, vm.name == seen.last, vm.name))
        return Step(Action.STOP, (first.name,))

    if seen.attached:
        message = f"waiting for volumes to be detached: {_some(seen.attached)}"
        return Step(Action.WAIT, message=message)
    return Step(Action.STAY, message=f"{counted(len(seen.vms), 'VM')} stopped")


def _resume(seen: Seen) -> Step:
    control_plane = [vm for vm in seen.vms if vm.control_plane]
    return (
        _start(seen, control_plane)
        or _await_start(control_plane)
        or _await_control_plane(seen, control_plane)
        or _start(seen, seen.vms)
        or _release(seen)
        or _await_start(seen.vms)
        or _await_nodes(seen, seen.vms, "workers")
        or _await_held(seen)
        or Step(Action.FINISH)
    )


def _start(seen: Seen, vms: Sequence[ParkedVm]) -> Step | None:
    """Return the start of VMs that are parked, or the end of their record when they have started.

    With some run strategies, a VM only continues to run, and does not start.
    """
    if parked := [vm for vm in vms if vm.former and vm.stopped and not vm.refusal]:
        # The leader has the newest data.
        ordered = sorted(parked, key=lambda vm: (vm.name != seen.last, vm.name))
        return Step(Action.START, tuple(vm.name for vm in ordered))
    run = [vm.name for vm in vms if vm.former and vm.runs and not vm.ending]
    return Step(Action.SETTLE, tuple(run)) if run else None


def _await_start(vms: Sequence[ParkedVm]) -> Step | None:
    """Return the wait for VMs that Harvester has not started yet, or that it refuses to start."""
    refused = {vm.name: vm.refusal for vm in vms if vm.refusal}
    if refused:
        message = (
            f"Harvester does not start {_some(refused)} because quota is missing: "
            f"{min(refused.values())}; raise the quota of the namespace, or stop other VMs there"
        )
        return Step(Action.WAIT, message=message, blocked=True)
    starting = [vm.name for vm in vms if vm.former]
    if not starting:
        return None
    return Step(Action.WAIT, message=f"waiting for VMs to start: {_some(starting)}")


def _await_control_plane(seen: Seen, control_plane: Sequence[ParkedVm]) -> Step | None:
    """Return the wait for the control plane, before workers start."""
    # Without the workers, an API that only an agent on one of them leads to would never answer.
    if seen.tunnelled and seen.nodes is None:
        return None
    return _await_nodes(seen, control_plane, "control plane")


def _await_nodes(seen: Seen, vms: Sequence[ParkedVm], part: str) -> Step | None:
    """Return the wait for Nodes of VMs that have started; None when these are ready.

    A VM that never joined has no Node to wait for.

    :param seen: what is seen of the cluster
    :param vms: the VMs that have to run
    :param part: what they are, for the message
    """
    # A user who has ended the pause has Nodes replaced that do not come back.
    started = _started(vms)
    if not started or not seen.paused:
        return None
    if seen.nodes is None:
        message = "waiting for the workload API to answer"
        return Step(Action.WAIT, message=message, cause=_obstacle(seen.vms, started))
    absent = [node.name for node in seen.nodes if node.name in started and not node.ready]
    if not absent:
        return None
    message = f"waiting for Nodes of the {part}: {_some(absent)}"
    return Step(Action.WAIT, message=message, cause=_obstacle(seen.vms, absent))


def _obstacle(vms: Iterable[ParkedVm], names: Container[str]) -> str:
    """Return why the first of these VMs that does not run does not; empty if all run."""
    waiting = [vm for vm in vms if vm.name in names and vm.obstacle]
    first = min(waiting, key=lambda vm: vm.name, default=None)
    return f"{first.name}: {first.obstacle}" if first else ""


def _release(seen: Seen) -> Step | None:
    """Return the release of Nodes that are ready. None of them waits for others."""
    returned = [node.name for node in seen.nodes or () if node.held and node.ready]
    return Step(Action.RELEASE, tuple(returned)) if returned else None


def _await_held(seen: Seen) -> Step | None:
    """Return the wait for Nodes that are cordoned, without a pause; None if there is none.

    Park alone uncordons them, so the record stays until all have returned or were replaced.
    """
    started = _started(seen.vms)
    if seen.nodes is None:
        message = "waiting for the workload API to answer, to uncordon Nodes"
        return Step(Action.WAIT, message=message) if started else None
    held = [node.name for node in seen.nodes if node.held and node.name in started]
    if not held:
        return None
    return Step(Action.WAIT, message=f"waiting for Nodes to uncordon: {_some(held)}")


def _started(vms: Iterable[ParkedVm]) -> set[str]:
    return {vm.name for vm in vms if not vm.stopped}


def _running(vms: Iterable[ParkedVm]) -> list[str]:
    return [vm.name for vm in vms if vm.runs]


def _some(names: Iterable[str]) -> str:
    """Name a few, and count the rest."""
    return name_some(sorted(names), _NAMED)
