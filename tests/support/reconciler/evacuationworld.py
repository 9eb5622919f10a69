"""A simulated cluster whose hosts are evacuated: state for the plan, and the effect of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from reconciler.cluster.evacuation.plan import (
    Action,
    ClusterState,
    EvacuatedNode,
    EvacuatedVm,
    Step,
    choose_state,
    moving_vms,
    next_step,
)

MOST_STEPS = 300


@dataclass
class Machine:
    """A machine: where its VM runs, its boots, and what an evacuation has recorded of it."""

    control_plane: bool
    migrates: bool
    host: str
    boot: int = 1
    reported: int = 1
    pods: int = 2
    user_cordon: bool = False
    user_hold: bool = False
    source: str = ""
    hold: bool = False
    stopped: bool = False
    halted: bool = False
    ending: str = ""
    avoided: frozenset[str] = frozenset()
    mark: int | None = None
    cordoned: bool = False
    started: bool = False
    lost: bool = False
    deleted: bool = False
    joined: bool = True
    user_halt: bool = False

    def __post_init__(self) -> None:
        self.cordoned = self.user_cordon

    @property
    def ready(self) -> bool:
        return bool(self.host) and not self.halted and self.reported == self.boot

    def suffer(self, event: str) -> None:
        """What happens to a VM from outside."""
        if event == "delete":
            self.deleted, self.host, self.ending = True, "", ""
        elif self.halted or self.deleted:
            return
        elif event == "crash":
            self.host = ""
        elif event == "lose":
            self.halted = self.lost = True
        elif event == "halt":
            self.halted = self.user_halt = True


@dataclass
class World:
    """A cluster on a Harvester whose hosts have one device each. Time passes with `pass_time`."""

    machines: dict[str, Machine]
    hosts: tuple[str, ...]
    evacuated: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    late: bool = False
    forced: bool = False

    def free(self, machine: Machine) -> list[str]:
        used = {other.host for other in self.machines.values() if not other.migrates and other is not machine}
        return [host for host in self.hosts if host not in used and host not in self.evacuated]

    def state(self) -> ClusterState:
        servers = [machine for machine in self.machines.values() if machine.control_plane]
        answers = 2 * sum(machine.ready for machine in servers) > len(servers)
        nodes = tuple(
            EvacuatedNode(
                name,
                # The API calls a Node ready for a while that has just stopped.
                is_ready=machine.reported == machine.boot or machine.mark == machine.reported,
                has_record=machine.mark is not None,
                has_rebooted=machine.mark != machine.reported,
            )
            for name, machine in self.machines.items()
            if machine.joined
        )
        state = ClusterState(
            vms=tuple(self._vm(name, machine) for name, machine in self.machines.items()),
            nodes=nodes if answers else None,
            workload_error="it does not answer",
            is_late=self.late,
            is_forced=self.forced,
        )
        movers = [vm.name for vm in moving_vms(state.vms)]
        states = [replace(state, mover=name, pods=self._pods(name)) for name in movers]
        return choose_state(states) if states else state

    def _pods(self, name: str) -> tuple[str, ...]:
        return tuple(f"p{i}" for i in range(self.machines[name].pods))

    def _vm(self, name: str, machine: Machine) -> EvacuatedVm:
        can_be_lost = machine.halted and (machine.started or not machine.stopped)
        return EvacuatedVm(
            name=name,
            is_control_plane=machine.control_plane,
            host=machine.host or machine.ending,
            must_move=not machine.migrates and not machine.halted and machine.host in self.evacuated,
            source=machine.source,
            obstacle="" if self.free(machine) else "no device",
            is_held=machine.hold or machine.user_hold,
            is_held_by_us=machine.hold,
            saved_strategy="Always" if machine.stopped else "",
            is_halted=machine.halted,
            has_instance=bool(machine.host or machine.ending),
            is_running=bool(machine.host) and not machine.halted,
            avoids_hosts=bool(machine.avoided),
            has_outdated_avoidance=not machine.avoided <= self.evacuated,
            was_restarted=machine.started,
            was_halted_by_harvester=not machine.deleted and machine.lost and can_be_lost,
            awaits_first_join=not machine.joined,
            is_absent=machine.deleted,
        )

    def pass_time(self) -> None:
        for machine in self.machines.values():
            if machine.deleted:
                continue
            if machine.ending:
                machine.ending = ""
            elif machine.halted:
                machine.ending, machine.host = machine.host, ""
            elif not machine.host:
                hosts = [host for host in self.free(machine) if host not in machine.avoided]
                # Without a record that keeps it from there, a host that is evacuated takes it, too.
                hosts += [host for host in sorted(self.evacuated) if host not in machine.avoided]
                if hosts:
                    machine.host, machine.boot = hosts[0], machine.boot + 1
            else:
                machine.reported, machine.joined = machine.boot, True

    def write(self, step: Step) -> None:
        self.log.append(f"{step.action.name} {step.name}")
        machine = self.machines[step.name]
        match step.action:
            case Action.BEGIN:
                machine.source = machine.host or machine.ending or "a host"
            case Action.HOLD | Action.RELEASE:
                machine.hold = step.action is Action.HOLD
            case Action.CORDON:
                machine.mark, machine.cordoned = machine.boot, True
            case Action.STOP:
                self.check_stop(step.name, machine)
                machine.stopped, machine.halted, machine.started = True, True, False
                machine.avoided = frozenset(self.evacuated)
            case Action.ADOPT:
                assert machine.lost, "its user has halted it"
                machine.stopped = True
            case Action.START:
                assert not machine.user_halt, "its user has halted it"
                machine.started, machine.lost = True, False
                machine.halted, machine.avoided = False, frozenset(self.evacuated)
            case Action.UNCORDON:
                assert machine.ready or machine.user_halt or not machine.stopped, (
                    "Pods would start on a Node that has not come back"
                )
                machine.mark, machine.cordoned, machine.pods = None, machine.user_cordon, 2
            case Action.SETTLE:
                assert machine.ready or not machine.joined, "it has not come back"
                machine.stopped = machine.started = False
            case Action.YIELD:
                assert machine.user_halt
                machine.stopped = machine.started = False
            case Action.FINISH:
                machine.source = ""
            case Action.ALLOW:
                machine.avoided = frozenset()

    def check_stop(self, name: str, machine: Machine) -> None:
        assert machine.hold or machine.user_hold, "a health check would replace it"
        if machine.stopped:
            return  # it was started, and did not find a host
        if not (self.late and self.forced):
            assert machine.joined, "it is being set up"
            assert machine.cordoned
            assert not machine.pods
        others = [other for key, other in self.machines.items() if key != name]
        assert not any(other.stopped for other in others), "one at a time"
        if machine.control_plane:
            servers = [other for other in others if other.control_plane]
            assert all(other.ready for other in servers), "etcd loses two members at once"

    def advance(self, writes: int) -> bool:
        """Run until a wait, or until that many writes were made; return whether nothing is left to do."""
        for _ in range(MOST_STEPS):
            step = next_step(self.state())
            if step.action is Action.NOTHING or (step.action is Action.WAIT and step.blocked):
                return True
            if step.action is Action.WAIT:
                return False
            if step.action is Action.EVICT:
                self.machines[step.name].pods -= 1
                return False
            self.write(step)
            writes -= 1
            if writes == 0:
                return False
        raise AssertionError(f"no end: {self.log}")


def run(world: World, interruptions: list[int]) -> None:
    """Run until all is done; each entry lets so many writes pass, then the provider restarts."""
    waiting = iter(interruptions)
    for _ in range(MOST_STEPS):
        is_done = world.advance(next(waiting, -1))
        world.pass_time()
        if is_done:
            return
    raise AssertionError(f"never done: {world.log}")


def check_as_before(world: World) -> None:
    """Check that nothing is left of an evacuation."""
    for name, machine in world.machines.items():
        assert machine.ready, name
        records = machine.source, machine.hold, machine.stopped, machine.mark
        assert not any(records), name
        assert machine.cordoned == machine.user_cordon, name
