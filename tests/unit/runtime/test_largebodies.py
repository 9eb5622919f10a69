"""Large bodies wait for room, the smallest first, and give it back however they end."""

from __future__ import annotations

import asyncio

import pytest

from caphv.runtime.largebodies import LargeBodies
from tests.support.waiting import until

pytestmark = pytest.mark.virtual_time


class Reader:
    """Holds room until its event is set."""

    def __init__(self, bodies: LargeBodies, size: int, seconds: float = 60) -> None:
        self.admitted = False
        self.end = asyncio.Event()
        self.task = asyncio.create_task(self._read(bodies, size, seconds))

    async def _read(self, bodies: LargeBodies, size: int, seconds: float) -> None:
        async with bodies.room(size, seconds):
            self.admitted = True
            await self.end.wait()


async def test_bodies_are_read_at_a_time_as_far_as_there_is_room() -> None:
    bodies = LargeBodies(10)
    first, second, third = Reader(bodies, 6), Reader(bodies, 4), Reader(bodies, 1)
    await asyncio.sleep(1)
    assert [one.admitted for one in (first, second, third)] == [True, True, False]
    second.end.set()
    await until(lambda: third.admitted)


async def test_the_smallest_that_waits_is_next() -> None:
    bodies = LargeBodies(10)
    first = Reader(bodies, 8)
    await asyncio.sleep(1)
    largest, small = Reader(bodies, 10), Reader(bodies, 3)
    await asyncio.sleep(1)
    assert not small.admitted
    first.end.set()
    await until(lambda: small.admitted)
    assert not largest.admitted
    small.end.set()
    await until(lambda: largest.admitted)


async def test_who_waits_too_long_leaves_the_queue() -> None:
    bodies = LargeBodies(10)
    first = Reader(bodies, 10)
    await asyncio.sleep(1)
    impatient, patient = Reader(bodies, 5, seconds=2), Reader(bodies, 10)
    with pytest.raises(TimeoutError):
        await impatient.task
    first.end.set()
    await until(lambda: patient.admitted)


@pytest.mark.parametrize("admitted", [True, False])
async def test_room_of_a_cancelled_request_is_free_again(admitted: bool) -> None:
    bodies = LargeBodies(10)
    first = Reader(bodies, 10)
    await asyncio.sleep(1)
    waiting = Reader(bodies, 10)
    await asyncio.sleep(1)
    cancelled, other = (first, waiting) if admitted else (waiting, first)
    cancelled.task.cancel()
    other.end.set()
    await other.task
    last = Reader(bodies, 10)
    await until(lambda: last.admitted)
