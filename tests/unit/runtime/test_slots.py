"""Requests wait for a connection that others release soon, and not longer than a new one would take."""

import asyncio

import pytest

from caphv.runtime.slots import RequestSlots

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]

IDLE = 20.0


class Server:
    """Counts how many of its requests run at the same time."""

    def __init__(self, limit: int = 64) -> None:
        self.slots = RequestSlots(limit, idle_seconds=IDLE, on_limit=self._limited)
        self.limited = 0
        self.running = self.most = 0

    def _limited(self) -> None:
        self.limited += 1

    async def request(self, seconds: float) -> None:
        async with self.slots:
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(seconds)
            self.running -= 1
            self.slots.answered(seconds)

    async def burst(self, count: int, seconds: float) -> float:
        """Run requests at once; return how long that took."""
        self.most = 0
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*(self.request(seconds) for _ in range(count)))
        return asyncio.get_running_loop().time() - started


async def test_a_few_fast_requests_share_one_connection() -> None:
    server = Server()
    assert await server.burst(3, 0.02) == pytest.approx(0.06)
    assert server.most == 1


async def test_many_requests_get_connections_of_their_own() -> None:
    server = Server()
    assert await server.burst(50, 0.1) < 1
    assert server.most > 10


async def test_slow_requests_hold_up_others_for_half_a_second_at_most() -> None:
    server = Server()
    await server.burst(20, 10)
    await asyncio.sleep(2 * IDLE)
    assert await server.burst(4, 10) <= 10.5 + 1e-6
    assert server.most == 4


async def test_connections_that_exist_are_used_at_once_until_they_are_idle_for_long() -> None:
    server = Server()
    await server.burst(8, 10)
    assert await server.burst(8, 0.02) == pytest.approx(0.02)
    await asyncio.sleep(2 * IDLE)
    assert await server.burst(2, 0.02) == pytest.approx(0.04)


async def test_limit_holds() -> None:
    server = Server(limit=4)
    await server.burst(12, 10)
    assert server.most == 4


async def test_cancelled_requests_return_their_connection() -> None:
    server = Server(limit=2)
    tasks = [asyncio.create_task(server.request(1000)) for _ in range(6)]
    await asyncio.sleep(5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await server.burst(4, 1) == pytest.approx(2)


async def test_requests_that_wait_long_for_others_are_reported_for_ten_minutes() -> None:
    server = Server(limit=2)
    await server.burst(2, 10)
    assert not server.slots.exhausted
    await server.burst(8, 10)
    assert server.limited == 1
    assert server.slots.exhausted == "2 requests were under way at once, and others waited"
    await asyncio.sleep(600)
    assert not server.slots.exhausted
    await server.burst(3, 10)
    assert server.limited == 2, "it is news again"
