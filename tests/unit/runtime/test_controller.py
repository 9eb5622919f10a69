"""What a reconcile may rely on: alone with its key, tried again after an error, allowed to end at a stop."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from caphv.api.object import Key
from caphv.runtime import logs
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import Conflict, Forbidden, TooManyRequests, Unreachable
from caphv.runtime.queue import Group, WorkQueue
from tests.support.virtualtime import settle

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]

A, B = Key("ns", "a"), Key("ns", "b")


def now() -> float:
    return asyncio.get_running_loop().time()


class Recorder:
    """A reconcile that records when it ran, and then calls `then`."""

    def __init__(self, then: Callable[[Key], Awaitable[Result | None]] | None = None) -> None:
        self.starts: list[tuple[Key, float]] = []
        self.active: list[Key] = []
        self.most = 0
        self.ended: list[Key] = []
        self._then = then

    async def __call__(self, key: Key) -> Result | None:
        assert key not in self.active, "two reconciles of one object at a time"
        self.starts.append((key, now()))
        self.active.append(key)
        self.most = max(self.most, len(self.active))
        try:
            return await self._then(key) if self._then else None
        finally:
            self.active.remove(key)
            self.ended.append(key)

    def intervals(self) -> list[float]:
        times = [time for _, time in self.starts]
        return [after - before for before, after in itertools.pairwise(times)]


def raising(*errors: BaseException | None) -> Callable[[Key], Awaitable[Result | None]]:
    """Raise these one after the other, then nothing."""
    left = list(errors)

    async def reconcile(_key: Key) -> Result | None:
        if left and (error := left.pop(0)):
            raise error
        return None

    return reconcile


async def slow(_key: Key) -> Result | None:
    await asyncio.sleep(10)
    return None


@contextlib.asynccontextmanager
async def running(reconcile: Recorder, **options: Any) -> AsyncIterator[Controller]:
    controller = Controller("test", reconcile, **options)
    task = asyncio.create_task(controller.run())
    try:
        yield controller
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_one_object_is_never_reconciled_twice_at_a_time_and_a_change_meanwhile_is_not_lost() -> None:
    reconcile = Recorder(slow)
    async with running(reconcile) as controller:
        controller.enqueue(A)
        await asyncio.sleep(1)
        for _ in range(5):
            controller.enqueue(A)
        controller.enqueue(B)
        await asyncio.sleep(60)
        assert reconcile.starts == [(A, 1000), (B, 1001), (A, 1010)]


async def test_no_more_than_concurrency_run_at_a_time() -> None:
    reconcile = Recorder(slow)
    async with running(reconcile, concurrency=3) as controller:
        for number in range(10):
            controller.enqueue(Key("ns", str(number)))
        await asyncio.sleep(100)
        assert reconcile.most == 3
        assert len(reconcile.ended) == 10


async def test_group_that_hangs_leaves_workers_to_others() -> None:
    async def hang(key: Key) -> Result | None:
        return await asyncio.sleep(1e6, None) if key.namespace == "dead" else None

    reconcile = Recorder(hang)
    queue: WorkQueue[Key] = WorkQueue("test", group_of=lambda key: Group(key.namespace), group_limit=2)
    async with running(reconcile, concurrency=4, queue=queue) as controller:
        controller.grace = 0
        for number in range(10):
            controller.enqueue(Key("dead", str(number)))
            controller.enqueue(Key("alive", str(number)))
        await asyncio.sleep(1)
        assert [key.namespace for key in reconcile.ended] == ["alive"] * 10
        assert [key.namespace for key in reconcile.active] == ["dead"] * 2


async def test_reconcile_comes_back_when_it_says() -> None:
    async def again(_key: Key) -> Result | None:
        return Result(requeue_after=30.0)

    reconcile = Recorder(again)
    async with running(reconcile) as controller:
        controller.enqueue(A)
        await asyncio.sleep(100)
        assert reconcile.intervals() == pytest.approx([30, 30, 30])


async def test_errors_are_tried_again_after_growing_waits_until_one_success() -> None:
    errors = [RuntimeError("no")] * 6
    reconcile = Recorder(raising(*errors, None, RuntimeError("no")))
    async with running(reconcile) as controller:
        controller.enqueue(A)
        await asyncio.sleep(100)
        assert len(reconcile.starts) == 7
        for wait, nominal in zip(reconcile.intervals(), (0.05, 0.1, 0.2, 0.4, 0.8, 1.6), strict=True):
            assert 0.75 * nominal <= wait <= 1.25 * nominal + 0.001
        controller.enqueue(A)
        await asyncio.sleep(100)
        assert reconcile.intervals()[-1] <= 0.07, "after the success it starts small again"


async def test_unexpected_error_is_logged_once_in_full_and_then_in_short(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with running(Recorder(raising(*[RuntimeError("broken")] * 3))) as controller:
            controller.enqueue(A)
            await asyncio.sleep(10)
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False]
    assert "RuntimeError: broken" in caplog.messages[1]


async def test_refusal_is_an_error_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with running(Recorder(raising(*[Forbidden(403, "Forbidden", "may not list secrets")] * 2))) as controller:
            controller.enqueue(A)
            await asyncio.sleep(10)
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("ERROR", None)] * 2
    assert set(caplog.messages) == {"reconcile failed: may not list secrets"}


async def test_each_reconcile_is_a_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "caphv.runtime.controller"):
        async with running(Recorder()) as controller:
            controller.enqueue(A)
            await settle()
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert caplog.messages[0].startswith("reconciled in 0.0")


async def test_conflict_is_no_news_and_tried_again_soon(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        reconcile = Recorder(raising(Conflict(409, "Conflict", "the object has been modified")))
        async with running(reconcile) as controller:
            controller.enqueue(A)
            await asyncio.sleep(1)
            assert len(reconcile.starts) == 2
    assert not caplog.records


async def test_server_that_does_not_answer_is_a_warning_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with running(Recorder(raising(Unreachable("https://harvester:6443: timed out")))) as controller:
            controller.enqueue(A)
            await asyncio.sleep(1)
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("WARNING", None)]


async def test_server_that_asks_to_wait_is_given_the_time() -> None:
    reconcile = Recorder(raising(TooManyRequests(429, "TooManyRequests", "", {"retryAfterSeconds": 12})))
    async with running(reconcile) as controller:
        controller.enqueue(A)
        await asyncio.sleep(100)
        assert reconcile.intervals() == pytest.approx([12])


async def test_cancellation_of_what_a_reconcile_waits_for_costs_neither_worker_nor_key() -> None:
    reconcile = Recorder(raising(*[asyncio.CancelledError()] * 5))
    async with running(reconcile, concurrency=1) as controller:
        controller.enqueue(A)
        await asyncio.sleep(10)
        assert len(reconcile.starts) == 6
        controller.enqueue(B)
        await asyncio.sleep(1)
        assert reconcile.ended[-1] == B


async def test_stop_lets_running_reconciles_end_and_starts_no_others() -> None:
    reconcile = Recorder(slow)
    async with running(reconcile, concurrency=1) as controller:
        controller.enqueue(A)
        controller.enqueue(B)
        await asyncio.sleep(1)
    assert reconcile.ended == [A]
    assert now() == pytest.approx(1010), "no longer than the reconcile needed"


async def test_stop_ends_what_takes_longer_than_the_grace_period() -> None:
    async def hang(_key: Key) -> Result | None:
        return await asyncio.sleep(1e6)

    reconcile = Recorder(hang)
    async with running(reconcile) as controller:
        controller.grace = 5.0
        controller.enqueue(A)
        await asyncio.sleep(1)
    assert reconcile.ended == [A]
    assert now() == pytest.approx(1006)
    assert len(asyncio.all_tasks()) == 1, "no task stays behind"


async def test_reconcile_that_a_slow_server_holds_up_is_cancelled_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def wait_for_a_slow_server(_key: Key) -> Result | None:
        return await asyncio.sleep(1200, None)

    ages = []
    reconcile = Recorder(wait_for_a_slow_server)
    async with running(reconcile) as controller:
        controller.grace = 0
        controller.enqueue(A)
        for _ in range(1000):
            await asyncio.sleep(1)
            ages.append(controller.longest_running)
    assert max(ages) <= 300, "the health check restarts the process after 600 s"
    assert all(345 <= interval <= 376 for interval in reconcile.intervals()), "its worker rests before the next attempt"
    assert "reconcile was cancelled after 300 s" in caplog.text
    assert "Traceback" not in caplog.text


async def test_time_out_inside_a_reconcile_is_an_error_like_others(caplog: pytest.LogCaptureFixture) -> None:
    async with running(Recorder(raising(TimeoutError("of its own")))) as controller:
        controller.enqueue(A)
        await asyncio.sleep(10)
    assert "TimeoutError: of its own" in caplog.text


async def test_age_of_the_oldest_reconcile_is_known() -> None:
    async with running(Recorder(slow)) as controller:
        assert controller.longest_running == 0
        controller.enqueue(A)
        await asyncio.sleep(3)
        controller.enqueue(B)
        await asyncio.sleep(4)
        assert controller.longest_running == pytest.approx(7)
        await asyncio.sleep(60)
        assert controller.longest_running == 0


async def test_lines_of_a_reconcile_name_controller_and_object() -> None:
    from_inside: list[dict[str, str]] = []

    async def note(_key: Key) -> Result | None:
        record = logging.makeLogRecord({})
        logs._add_fields(record)
        from_inside.append(record.caphv_fields)
        return None

    async with running(Recorder(note)) as controller:
        controller.enqueue(A)
        await settle()
    assert from_inside == [{"controller": "test", "object": "ns/a"}]
