"""What workers may rely on: no key twice in work, none lost, groups limited, delays kept."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from caphv.runtime.queue import Group, WorkQueue
from tests.support import memory
from tests.support.virtualtime import VirtualLoop, settle

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]

KEYS = st.sampled_from(["a1", "a2", "a3", "b1", "b2", "c1"])
LIMIT = 2


def group_of(key: str) -> Group:
    return Group(limited=key[0], turn=key[1])


async def taken(queue: WorkQueue[str]) -> str | None:
    """A key, or None when a worker would have to wait."""
    task = asyncio.create_task(queue.get())
    await settle(3)
    if task.done():
        return task.result()
    task.cancel()
    return None


class QueueMachine(RuleBasedStateMachine):
    """Compares the queue with sets of keys; delays end in halves of seconds, time moves in whole ones."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.clock = self.runner.get_loop().time
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("caphv.runtime.queue.time.monotonic", self.clock)
        self.queue: WorkQueue[str] = WorkQueue("test", group_of=group_of, group_limit=LIMIT)
        self.queued: set[str] = set()
        self.working: set[str] = set()
        self.dirty: set[str] = set()
        self.delayed: dict[str, float] = {}

    def model_add(self, key: str) -> None:
        self.delayed.pop(key, None)
        if key in self.working:
            self.dirty.add(key)
        else:
            self.queued.add(key)

    def may_start(self) -> set[str]:
        busy = [group_of(key).limited for key in self.working]
        return {key for key in self.queued if busy.count(group_of(key).limited) < LIMIT}

    async def act(self, action: object, *arguments: object) -> None:
        action(*arguments)  # type: ignore[operator]

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.runner.run(self.act(self.queue.add, key))
        self.model_add(key)

    @rule(key=KEYS, delay=st.integers(0, 5))
    def add_after(self, key: str, delay: int) -> None:
        self.runner.run(self.act(self.queue.add_after, key, delay + 0.5))
        if key not in self.queued:
            due = self.clock() + delay + 0.5
            self.delayed[key] = min(due, self.delayed.get(key, due))

    @rule(seconds=st.integers(1, 4))
    def time_passes(self, seconds: int) -> None:
        self.runner.run(asyncio.sleep(seconds))
        for key, due in list(self.delayed.items()):
            if due < self.clock():
                self.model_add(key)

    @rule()
    def take(self) -> None:
        key = self.runner.run(taken(self.queue))
        possible = self.may_start()
        assert key in possible if possible else key is None
        if key:
            self.queued.discard(key)
            self.working.add(key)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.runner.run(self.act(self.queue.done, key))
        self.working.discard(key)
        if key in self.dirty:
            self.dirty.discard(key)
            self.model_add(key)

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.queue) == len(self.queued)
        assert self.queue.idle == (not self.queued and not self.working)

    def teardown(self) -> None:
        try:
            outstanding = self.queued | self.dirty | self.delayed.keys()
            assert self.runner.run(self.drain()) >= outstanding
        finally:
            self.patch.undo()
            self.runner.close()

    async def drain(self) -> set[str]:
        drained = set()
        for key in self.working:
            self.queue.done(key)
        await asyncio.sleep(60)
        while not self.queue.idle:
            key = await self.queue.get()
            drained.add(key)
            self.queue.done(key)
        return drained


TestQueueAgainstModel = pytest.mark.unit(QueueMachine.TestCase)
TestQueueAgainstModel.settings = settings(max_examples=60, stateful_step_count=30)


async def test_groups_take_turns_so_that_a_long_one_does_not_starve_others() -> None:
    queue: WorkQueue[str] = WorkQueue("test", group_of=lambda key: Group(turn=key[0]))
    add_all(queue, ["a1", "a2", "a3", "a4", "b1", "c1"])
    assert [await queue.get() for _ in range(6)] == ["a1", "b1", "c1", "a2", "a3", "a4"]


async def test_several_waiting_workers_each_get_one_key() -> None:
    queue: WorkQueue[str] = WorkQueue("test")
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await settle()
    add_all(queue, ["x", "y", "z"])
    assert sorted(await asyncio.gather(*workers)) == ["x", "y", "z"]


async def test_a_cancelled_worker_takes_no_key_with_it() -> None:
    queue: WorkQueue[str] = WorkQueue("test")
    worker = asyncio.create_task(queue.get())
    await settle()
    queue.add("x")
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert await asyncio.wait_for(queue.get(), 1) == "x"


async def test_back_off_doubles_from_base_to_maximum_and_starts_over_after_success() -> None:
    queue: WorkQueue[str] = WorkQueue("test", base=1.0, maximum=20.0)
    for nominal in (1, 2, 4, 8, 16, 20, 20):
        delay = queue.add_rate_limited("x")
        assert 0.75 * nominal <= delay <= 1.25 * nominal
        before = asyncio.get_running_loop().time()
        await queue.get()
        assert asyncio.get_running_loop().time() - before == pytest.approx(delay)
        queue.done("x")
    assert queue.failures("x") == 7
    queue.forget("x")
    assert queue.add_rate_limited("x") <= 1.25


async def test_jitter_spreads_keys_that_fail_together() -> None:
    queue: WorkQueue[int] = WorkQueue("test", base=10.0)
    assert len({queue.add_rate_limited(number) for number in range(20)}) > 10


async def test_failed_key_waits_as_long_as_the_server_asked() -> None:
    queue: WorkQueue[str] = WorkQueue("test", base=0.1)
    assert queue.add_rate_limited("x", at_least=30) == 30


async def test_shortest_delay_counts() -> None:
    queue: WorkQueue[str] = WorkQueue("test")
    for delay in (30, 5, 60):
        queue.add_after("x", delay)
    await queue.get()
    queue.done("x")
    await asyncio.sleep(100)
    assert queue.idle, "the longer delays must not bring the key again"
    assert asyncio.get_running_loop().time() == pytest.approx(1105)


async def test_close_sends_waiting_workers_home_and_gives_out_nothing_more() -> None:
    queue: WorkQueue[str] = WorkQueue("test")
    worker = asyncio.create_task(queue.get())
    await settle()
    queue.add_after("later", 5)
    queue.close()
    queue.add("x")
    await asyncio.sleep(10)
    assert worker.cancelled()
    assert len(queue) == 0
    with pytest.raises(asyncio.CancelledError):
        await queue.get()


async def test_delays_that_were_overtaken_do_not_pile_up() -> None:
    queue: WorkQueue[str] = WorkQueue("test")
    for _ in range(1000):
        await asyncio.sleep(0.1)
        queue.add_after("x", 3600)
        queue.add("x")
        queue.done(await queue.get())
    assert memory.size(queue) < 1000


def add_all(queue: WorkQueue[str], keys: Iterable[str]) -> None:
    for key in keys:
        queue.add(key)
