"""What a connection may take: memory as Python needs it, and a share of the event loop."""

import asyncio
import itertools
import tracemalloc
from collections.abc import Callable

import orjson
import pytest

from caphv.api.object import Obj
from caphv.runtime.budget import MemoryBudget, TimeBudget, memory_of
from caphv.runtime.errors import TooLarge

pytestmark = pytest.mark.unit

SHAPES: dict[str, Callable[[int], Obj]] = {
    "text": lambda number: {"text": f"{number}" * 200},
    "lists": lambda number: {"lists": [[] for _ in range(200)], "number": number},
    "objects": lambda number: {"objects": [{"a": number} for _ in range(100)]},
    "keys": lambda number: {f"key-{number}-{one}": number + one for one in range(100)},
    "empty": lambda _number: {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {}},
}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("shape", SHAPES)
def test_estimate_of_memory_is_that_of_the_objects_and_not_of_their_text(shape: str) -> None:
    texts = [orjson.dumps(SHAPES[shape](number)) for number in range(1000)]
    tracemalloc.start()
    try:
        objects = [orjson.loads(text) for text in texts]
        real = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.75 * real < sum(map(memory_of, objects)) < 3 * real


def test_memory_grows_with_the_machines_that_use_the_connection() -> None:
    budget = MemoryBudget(1024 * 1024, "https://harvester")
    machines = 0
    budget.machines = lambda: machines
    budget.charge(1024 * 1024)
    with pytest.raises(TooLarge, match="more than the 1 MiB"):
        budget.charge(1)
    machines = 16
    budget.charge(1024 * 1024)
    with pytest.raises(TooLarge, match="more than the 2 MiB"):
        budget.charge(1)
    assert budget.used == 2 * 1024 * 1024


def test_start_of_a_large_harvester_is_not_slowed_down() -> None:
    budget = TimeBudget(Clock())
    for _ in range(4000):
        budget.spend(0.001)
    assert not budget.limited


def test_server_that_keeps_the_process_busy_is_limited_for_ten_minutes() -> None:
    clock = Clock()
    budget = TimeBudget(clock)
    for _ in range(60):
        budget.spend(0.1)
        clock.now += 0.1
    assert "more than 5%" in budget.limited
    clock.now += 599
    assert budget.limited
    clock.now += 2
    assert not budget.limited


def test_objects_of_others_are_read_without_a_limit_up_to_a_bound() -> None:
    for objects, limited in ((0, True), (6000, False), (1_000_000, True)):
        clock = Clock()
        budget = TimeBudget(clock)
        budget.objects = lambda objects=objects: objects  # type: ignore[misc]
        share = 0.1 if objects <= 6000 else 0.3
        for _ in range(200):
            budget.spend(share)
            clock.now += 1
        assert bool(budget.limited) is limited, objects


def test_server_that_uses_less_than_its_share_is_never_limited() -> None:
    clock = Clock()
    budget = TimeBudget(clock)
    for _ in range(10_000):
        budget.spend(0.04)
        clock.now += 1
    assert not budget.limited


@pytest.mark.parametrize("machines", [100, 1000, 5000])
def test_share_grows_with_the_machines_that_use_the_connection(machines: int) -> None:
    clock = Clock()
    budget = TimeBudget(clock)
    budget.machines = lambda: machines
    # A first start reads all objects of each machine.
    for _ in range(machines):
        budget.spend(0.01)
    assert not budget.limited
    # Then changes use the share of the machines, and that of the connection.
    for _ in range(600):
        clock.now += 1
        budget.spend(0.049 + machines * 0.00001)
    assert not budget.limited
    for _ in range(600):
        clock.now += 1
        budget.spend(0.15 + machines * 0.00003)
    assert f"more than {0.05 + machines * 0.00001:.0%} of this process's time" in budget.limited


def test_machines_that_come_and_go_do_not_extend_the_share() -> None:
    clock = Clock()
    budget = TimeBudget(clock)
    counts = itertools.cycle([0, 10])
    budget.machines = lambda: next(counts)
    # Each machine that comes brings ten milliseconds.
    for _ in range(1000):
        budget.spend(0.2)
        clock.now += 0.2
        if budget.limited:
            break
    assert clock.now < 1000 + 10


def test_first_reason_of_a_limit_stays_and_is_reported_once() -> None:
    clock = Clock()
    budget = TimeBudget(clock)
    reported: list[str] = []
    budget.on_limit = lambda: reported.append(budget.limited)
    budget.record_violation("one")
    budget.record_violation("two")
    assert budget.limited == "one"
    clock.now += 601
    budget.record_violation("three")
    assert reported == ["one", "three"]


@pytest.mark.virtual_time
async def test_readers_of_a_server_that_broke_a_bound_share_two_percent_of_the_time() -> None:
    loop = asyncio.get_running_loop()
    budget = TimeBudget(loop.time)
    budget.record_violation("a bound")
    began, work = loop.time(), 0.0

    async def read() -> None:
        nonlocal work
        for _ in range(20):
            budget.spend(0.01)
            work += 0.01
            await budget.rest()

    await asyncio.gather(*(read() for _ in range(5)))
    assert work == pytest.approx(1)
    assert loop.time() - began == pytest.approx(50, rel=0.1)


@pytest.mark.virtual_time
async def test_others_have_their_turns_between_pieces_of_work() -> None:
    budget = TimeBudget()
    turns: list[str] = []

    async def read() -> None:
        for _ in range(3):
            turns.append("piece")
            budget.spend(0.002)
            await budget.rest()

    async def other() -> None:
        for _ in range(3):
            turns.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(read(), other())
    assert turns == ["piece", "other"] * 3
