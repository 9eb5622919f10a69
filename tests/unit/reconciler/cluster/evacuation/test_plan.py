"""Steps of an evacuation: whatever the cluster, and wherever it is interrupted, each machine comes back elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.cluster.evacuation.plan import (
    Action,
    EvacuatedNode,
    EvacuatedVm,
    Seen,
    Stage,
    Step,
    choose,
    moving,
    next_step,
    stage_of,
)

pytestmark = pytest.mark.unit

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

    def seen(self) -> Seen:
        vms = tuple(self._vm(name, machine) for name, machine in self.machines.items())
        servers = [machine for machine in self.machines.values() if machine.control_plane]
        answers = 2 * sum(machine.ready for machine in servers) > len(servers)
        nodes = tuple(
            EvacuatedNode(
                name,
                # The API calls a Node ready for a while that has just stopped.
                ready=machine.reported == machine.boot or machine.mark == machine.reported,
                held=machine.mark is not None,
                rebooted=machine.mark != machine.reported,
            )
            for name, machine in self.machines.items()
            if machine.joined
        )
        seen = Seen(vms, nodes if answers else None, "it does not answer", late=self.late, forced=self.forced)
        movers = [vm.name for vm in moving(vms)]
        views = [replace(seen, mover=name, pods=self._pods(name)) for name in movers]
        return choose(views) if views else seen

    def _pods(self, name: str) -> tuple[str, ...]:
        return tuple(f"p{i}" for i in range(self.machines[name].pods))

    def _vm(self, name: str, machine: Machine) -> EvacuatedVm:
        exists = bool(machine.host or machine.ending)
        leaves = not machine.migrates and not machine.halted and machine.host in self.evacuated
        return EvacuatedVm(
            name,
            machine.control_plane,
            machine.host or machine.ending,
            leaves,
            source=machine.source,
            obstacle="" if self.free(machine) else "no device",
            held=machine.hold or machine.user_hold,
            held_by_us=machine.hold,
            former="Always" if machine.stopped else "",
            halted=machine.halted,
            exists=exists,
            runs=bool(machine.host) and not machine.halted,
            avoids=bool(machine.avoided),
            outdated=not machine.avoided <= self.evacuated,
            started=machine.started,
            lost=not machine.deleted and machine.lost and machine.halted and (machine.started or not machine.stopped),
            joins=not machine.joined,
            absent=machine.deleted,
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
            seen = self.seen()
            step = next_step(seen)
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


@st.composite
def worlds(draw: st.DrawFn) -> World:
    hosts = tuple(f"h{number}" for number in range(draw(st.integers(2, 4))))
    machines = {}
    taken: set[str] = set()
    for role, count in (("c", draw(st.sampled_from([1, 3]))), ("w", draw(st.integers(0, 4)))):
        for number in range(count):
            host, migrates = draw(st.sampled_from(hosts)), draw(st.booleans()) or len(taken) == len(hosts)
            if not migrates and host in taken:
                migrates = True
            taken |= set() if migrates else {host}
            user = {"user_cordon": draw(st.booleans()), "user_hold": draw(st.booleans())}
            machines[f"{role}{number}"] = Machine(role == "c", migrates, host, **user)
    # One server boots, for whatever reason.
    machines[draw(st.sampled_from(sorted(machines)))].reported = draw(st.integers(0, 1))
    return World(machines, hosts)


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


INTERRUPTIONS = st.lists(st.integers(1, 3), max_size=40)


@given(worlds(), INTERRUPTIONS, INTERRUPTIONS)
def test_a_host_is_emptied_and_nothing_of_it_is_left(world: World, leaving: list[int], returning: list[int]) -> None:
    before = {name: (machine.host, machine.boot) for name, machine in world.machines.items()}
    world.evacuated = {"h0"}
    run(world, leaving)
    check_as_before(world)
    for name, machine in world.machines.items():
        if before[name][0] != "h0" or machine.migrates:
            assert (machine.host, machine.boot) == before[name], "it had no reason to move"
        else:
            assert machine.host != "h0" or not world.free(machine), "a host with a device was free"
            assert machine.boot <= before[name][1] + 1, "it restarted more than once"

    world.evacuated = set()
    run(world, returning)
    check_as_before(world)
    assert not any(machine.avoided for machine in world.machines.values())


@given(worlds(), st.lists(st.tuples(st.sets(st.sampled_from(["h0", "h1"])), st.integers(1, 6)), max_size=8))
def test_changes_of_mind_leave_every_guest_running(world: World, wishes: list[tuple[set[str], int]]) -> None:
    for evacuated, writes in wishes:
        world.evacuated = evacuated
        world.advance(writes)
        world.pass_time()
    world.evacuated = set()
    run(world, [])
    check_as_before(world)
    assert not any(machine.avoided for machine in world.machines.values())


WISHES = st.sets(st.sampled_from(["h0", "h1"]))
EVENTS = st.tuples(
    st.sampled_from(["", "crash", "lose", "halt", "delete"]),
    st.integers(0, 6),
    WISHES,
    st.integers(1, 8),
    st.booleans(),
    st.booleans(),
)


@st.composite
def sites(draw: st.DrawFn) -> World:
    """Servers with devices, each on its host, and a worker."""
    machines = {f"c{number}": Machine(True, False, f"h{number}") for number in range(3)}
    machines["w"] = Machine(False, draw(st.booleans()), "h3")
    return World(machines, ("h0", "h1", "h2", "h3", "h4", "h5"))


@settings(max_examples=200)
@given(sites(), st.lists(EVENTS, min_size=2, max_size=10), st.booleans())
def test_whatever_happens_etcd_keeps_its_majority(
    world: World, events: list[tuple[str, int, set[str], int, bool, bool]], joins: bool
) -> None:
    machines = list(world.machines.values())
    machines[0].joined, machines[0].pods = not joins, 0 if joins else 2
    for event, number, wishes, writes, late, forced in events:
        machines[number % len(machines)].suffer(event)
        world.evacuated, world.late, world.forced = wishes, late, forced
        world.advance(writes)
        world.pass_time()

    # What can come back does, and what its user has halted stays so.
    is_damaged = any(machine.deleted or machine.user_halt for machine in machines)
    world.evacuated, world.late, world.forced = set(), is_damaged, False
    run(world, [])
    if not is_damaged:
        check_as_before(world)
    assert all(machine.halted for machine in machines if machine.user_halt)


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
