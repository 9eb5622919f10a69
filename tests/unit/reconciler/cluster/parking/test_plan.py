"""Steps of parking and resuming: whatever the cluster, and wherever they are interrupted, they arrive in order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.cluster.parking.plan import HALTED, Action, ClusterState, ParkedNode, ParkedVm, Step, next_step

pytestmark = pytest.mark.unit

STRATEGY, MANUAL = "RerunOnFailure", "Manual"
MOST_STEPS = 200


@dataclass
class Machine:
    """A machine: its VM, its instance by number of run, and its Node with what parking has written there."""

    control_plane: bool
    strategy: str = STRATEGY
    former: str = ""
    run: int | None = 1
    cordoned_by_user: bool = False
    mark: int | None = None
    reported: int = 1
    pods: int = 1
    off: bool = False
    """A user has stopped it, before the cluster was parked."""
    serves: bool = True
    """The API, if it is of the control plane: otherwise it has nothing but etcd."""


@dataclass
class World:
    """A cluster on a Harvester. Time passes with `pass_time`: what is under way then ends."""

    machines: dict[str, Machine]
    wanted: bool = False
    begun: bool = False
    paused_by_user: bool = False
    paused: bool = False
    last: str = ""
    volumes_held: int = 0
    budgets: bool = False
    waited: int = 0
    agent: str = ""
    """The worker with the only agent of Rancher, through which the API is reached; empty without Rancher."""
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.paused = self.paused_by_user

    @property
    def api(self) -> bool:
        """The API of the cluster answers with a majority of its control plane."""
        servers = [machine for machine in self.machines.values() if machine.control_plane]
        stores = [machine for machine in servers if not machine.serves] or servers
        serving = any(machine.run is not None for machine in servers if machine.serves)
        if self.agent and self.machines[self.agent].run is None:
            return False
        return serving and 2 * sum(machine.run is not None for machine in stores) > len(stores)

    def state(self) -> ClusterState:
        vms = tuple(
            ParkedVm(
                name=name,
                is_control_plane=machine.control_plane,
                strategy=machine.strategy,
                saved_strategy=machine.former,
                has_instance=machine.run is not None,
                is_idle=machine.off and machine.strategy != HALTED,
                serves_api=machine.serves,
            )
            for name, machine in self.machines.items()
        )
        nodes = tuple(self._node(name, machine) for name, machine in self.machines.items())
        running = [m for m in self.machines.values() if not (m.control_plane or m.off or m.strategy == HALTED)]
        return ClusterState(
            is_wanted=self.wanted,
            has_begun=self.begun,
            is_paused=self.paused,
            vms=vms,
            last_to_stop=self.last,
            nodes=nodes if self.api else None,
            pods=sum(machine.pods for machine in running),
            is_drain_over=self.waited > 20,
            attached_volumes=("disk",) if self.volumes_held else (),
            is_tunnelled=bool(self.agent),
        )

    def _node(self, name: str, machine: Machine) -> ParkedNode:
        return ParkedNode(
            name=name,
            is_marked=machine.run is None or machine.mark == machine.run,
            has_record=machine.mark is not None,
            # Reports of the time before are no reports.
            is_ready=machine.run is not None and machine.reported == machine.run,
        )

    def pass_time(self) -> None:
        self.waited += 1
        self.volumes_held = max(0, self.volumes_held - 1)
        for machine in self.machines.values():
            if machine.strategy == HALTED:
                machine.run = None
            elif machine.run is None:
                if machine.off or machine.strategy == MANUAL:
                    continue
                machine.run = machine.reported + 1
            elif self.api:
                machine.reported = machine.run

    def perform(self, step: Step, writes: int) -> int:
        """Make the first writes of a step; answers how many of the allowed ones are left."""
        names: tuple[str, ...] = step.names
        if step.action in (Action.BEGIN, Action.PAUSE, Action.CHOOSE_LAST, Action.FINISH):
            names = ("the Cluster",)
        for name in names:
            if writes == 0:
                return 0
            writes -= 1
            self._write(step, name)
        return writes

    def _write(self, step: Step, name: str) -> None:
        self.log.append(f"{step.action.name} {name}")
        machine = self.machines.get(name)
        match step.action:
            case Action.BEGIN | Action.PAUSE:
                self.begun = self.paused = True
            case Action.CHOOSE_LAST:
                self.last = step.names[0]
            case Action.FINISH:
                self.begun, self.paused, self.last = False, self.paused_by_user, ""
            case Action.MARK if machine:
                machine.mark = machine.run
            case Action.EVICT if machine:
                machine.pods = 1 if self.budgets else 0
            case Action.STOP if machine:
                self._check_stop(name, machine)
                machine.former, machine.strategy = machine.former or machine.strategy, HALTED
            case Action.START if machine:
                machine.strategy = STRATEGY if machine.former == MANUAL else machine.former
            case Action.SETTLE if machine:
                assert machine.run is not None
                machine.strategy, machine.former = machine.former, ""
            case Action.RELEASE if machine:
                machine.mark, machine.pods = None, 1

    def _check_stop(self, name: str, machine: Machine) -> None:
        assert self.paused
        assert not machine.off
        if machine.control_plane:
            others = [m for key, m in self.machines.items() if key != name]
            assert all(m.run is None for m in others if not m.control_plane), "a worker runs without its control plane"
            if not machine.serves:
                assert all(m.run is None for m in others if m.serves), "an API server runs without its etcd"
            if name == self.last:
                assert all(m.run is None for m in others), "the leader stops last"

    def advance(self, writes: int) -> bool:
        """Run until a wait, or until that many writes were made; answers whether nothing is left to do."""
        for _ in range(MOST_STEPS):
            step = next_step(self.state())
            if step.action in (Action.STAY, Action.NOTHING):
                return True
            if step.action is Action.WAIT:
                return False
            if step.action is Action.FINISH:
                self.check_finish()
            writes = self.perform(step, writes)
            if writes == 0 or step.action is Action.EVICT:
                return False
        raise AssertionError(f"no end: {self.log}")

    def check_finish(self) -> None:
        for name, machine in self.machines.items():
            if machine.strategy != HALTED and self.paused and not machine.off:
                assert machine.run == machine.reported, f"{name} is not ready before the pause ends"


@st.composite
def worlds(draw: st.DrawFn) -> World:
    sizes = draw(st.integers(1, 5)), draw(st.integers(0, 4)), draw(st.sampled_from([0, 0, 1, 3]))
    machines = {f"c{number}": Machine(True) for number in range(sizes[0])}
    machines |= {f"w{number}": Machine(False) for number in range(sizes[1])}
    machines |= {f"b{number}": Machine(True, serves=False) for number in range(sizes[2])}
    for machine in machines.values():
        machine.strategy = draw(st.sampled_from([STRATEGY, "Always", MANUAL]))
    for name in draw(st.sets(st.sampled_from(sorted(machines)), max_size=1)):
        if not machines[name].control_plane:
            machines[name].strategy = draw(st.sampled_from([HALTED, STRATEGY, MANUAL]))
            machines[name].run, machines[name].off = None, True
    workers = [name for name, machine in machines.items() if name[0] == "w" and not machine.off]
    return World(
        machines,
        agent=draw(st.sampled_from(["", *workers])),
        paused_by_user=draw(st.booleans()),
        volumes_held=draw(st.integers(0, 3)),
        budgets=draw(st.booleans()),
    )


def run(world: World, interruptions: list[int]) -> None:
    """Run until all is done; each entry lets so many writes pass, then the provider restarts."""
    waiting = iter(interruptions)
    for _ in range(MOST_STEPS):
        if world.advance(next(waiting, -1)):
            return
        world.pass_time()
    raise AssertionError(f"never done: {world.log}")


INTERRUPTIONS = st.lists(st.integers(1, 4), max_size=30)


@given(worlds(), INTERRUPTIONS, INTERRUPTIONS)
def test_a_cluster_returns_as_it_was(world: World, parking: list[int], resuming: list[int]) -> None:
    before = {name: machine.strategy for name, machine in world.machines.items()}

    world.wanted = True
    run(world, parking)
    assert all(machine.run is None for machine in world.machines.values())
    assert (world.paused, world.volumes_held) == (True, 0)
    # Without it, reports of this run would count as those of the next one.
    assert all(machine.mark == 1 for machine in world.machines.values() if not machine.off)

    world.wanted = False
    run(world, resuming)
    assert {name: machine.strategy for name, machine in world.machines.items()} == before
    assert (world.begun, world.paused, world.last) == (False, world.paused_by_user, "")
    assert not any(machine.former for machine in world.machines.values())
    started = [machine for machine in world.machines.values() if not machine.off]
    assert not any(machine.mark for machine in world.machines.values())
    assert all(machine.run == machine.reported for machine in started)


@given(worlds(), st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=8))
def test_changes_of_mind_end_where_the_last_one_says(world: World, wishes: list[tuple[bool, int]]) -> None:
    before = {name: machine.strategy for name, machine in world.machines.items()}
    for wanted, writes in wishes:
        world.wanted = wanted
        world.advance(writes)
        world.pass_time()

    world.wanted = False
    run(world, [])
    assert {name: machine.strategy for name, machine in world.machines.items()} == before
    assert (world.begun, world.paused) == (False, world.paused_by_user)


@given(worlds())
def test_control_plane_machines_start_before_workers(world: World) -> None:
    world.wanted = True
    run(world, [])
    world.wanted, world.log = False, []
    run(world, [])
    started = [entry.split()[1] for entry in world.log if entry.startswith("START")]
    assert [name[0] == "w" for name in started] == sorted(name[0] == "w" for name in started)
    assert world.log[-1] == "FINISH the Cluster"


VM = ParkedVm(name="c0", is_control_plane=True, strategy=STRATEGY, has_instance=True)
WORKER = ParkedVm(name="w0", is_control_plane=False, strategy=STRATEGY, has_instance=True)
PARKING = ClusterState(is_wanted=True, has_begun=True, is_paused=True, vms=(VM, WORKER), last_to_stop="c0")
RESUMING = replace(PARKING, is_wanted=False)
LOST = ParkedNode(name="w0", is_marked=False, has_record=True, is_ready=False)
MUTE = ParkedNode(name="w0", is_marked=False, has_record=False, is_ready=True, was_refused=True)
READY = ParkedNode(name="c0", is_marked=False, has_record=True, is_ready=True)


@pytest.mark.parametrize(
    ("state", "action"),
    [
        # A user has ended the pause of a parked cluster: its health checks would replace it.
        (replace(PARKING, is_paused=False), Action.PAUSE),
        # A dead API and Pods that budgets keep delay it for a bounded time.
        (replace(PARKING, nodes=None), Action.WAIT),
        (replace(PARKING, nodes=None, is_drain_over=True), Action.STOP),
        (replace(PARKING, pods=2), Action.EVICT),
        (replace(PARKING, pods=2, is_drain_over=True), Action.STOP),
        # The same for Nodes that a webhook keeps as they are.
        (replace(PARKING, nodes=(MUTE,)), Action.MARK),
        (replace(PARKING, nodes=(MUTE,), is_drain_over=True), Action.STOP),
        (replace(PARKING, nodes=(replace(MUTE, was_refused=False),), is_drain_over=True), Action.MARK),
        # Without workers, too.
        (replace(PARKING, vms=(VM,), nodes=(replace(MUTE, name="c0"),)), Action.MARK),
        (replace(PARKING, vms=(VM,), nodes=None), Action.WAIT),
        (replace(PARKING, vms=(VM,), nodes=None, is_drain_over=True), Action.STOP),
        # The other way round, a Node that does not come back holds up everything.
        (replace(RESUMING, nodes=None), Action.WAIT),
        (replace(RESUMING, nodes=(replace(READY, has_record=False), LOST)), Action.WAIT),
        # Those that came back are of use meanwhile.
        (replace(RESUMING, nodes=(READY, LOST)), Action.RELEASE),
        # A user who has ended the pause wants it replaced, and those that came back uncordoned.
        (replace(RESUMING, nodes=(READY, LOST), is_paused=False), Action.RELEASE),
        # Until then, nothing else would uncordon it.
        (replace(RESUMING, nodes=(LOST,), is_paused=False), Action.WAIT),
        (replace(RESUMING, nodes=None, is_paused=False), Action.WAIT),
        (replace(RESUMING, vms=(VM,), nodes=(replace(READY, has_record=False),), is_paused=False), Action.FINISH),
        # The deletion of a parked cluster needs no VM to run, and controllers that act.
        (replace(PARKING, is_deleted=True), Action.FINISH),
        (replace(PARKING, is_deleted=True, has_begun=False), Action.NOTHING),
        (ClusterState(is_wanted=False, has_begun=False, is_paused=False), Action.NOTHING),
    ],
)
def test_step(state: ClusterState, action: Action) -> None:
    assert next_step(state).action is action


REFUSED = replace(VM, name="c1", strategy=HALTED, saved_strategy=STRATEGY, has_instance=False, refusal="no quota")
PARKED_WORKER = replace(WORKER, strategy=HALTED, saved_strategy=STRATEGY, has_instance=False)


@pytest.mark.parametrize(
    ("nodes", "is_tunnelled", "action"),
    [
        ((replace(READY, has_record=False),), False, Action.START),
        # The others serve no API, so that workers would not become ready.
        (None, False, Action.WAIT),
        # Only an agent on a worker can tell.
        (None, True, Action.START),
    ],
)
def test_a_refused_control_plane_vm_keeps_no_worker_while_others_serve_the_api(
    nodes: tuple[ParkedNode, ...] | None, is_tunnelled: bool, action: Action
) -> None:
    vms = (VM, REFUSED, PARKED_WORKER)
    step = next_step(replace(RESUMING, vms=vms, nodes=nodes, is_tunnelled=is_tunnelled))
    assert step.action is action
    assert step.names == (("w0",) if action is Action.START else ())
    assert step.blocked is (action is Action.WAIT)


def test_the_pause_does_not_end_before_a_refused_control_plane_vm_runs() -> None:
    step = next_step(replace(RESUMING, vms=(VM, REFUSED), nodes=(replace(READY, has_record=False),)))
    assert step == Step(Action.WAIT, message="Harvester does not start c1: no quota", blocked=True)
