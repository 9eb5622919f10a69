"""Steps of an evacuation: whatever the cluster, and wherever it is interrupted, each machine comes back elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.reconciler.evacuationworld import Machine, World, check_as_before, run

pytestmark = pytest.mark.unit


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
