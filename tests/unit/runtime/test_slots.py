"""So many requests run at a time; the others wait, and a long wait is reported."""

import asyncio

import pytest

from caphv.runtime.slots import RequestSlots

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


class Server:
    """Counts how many of its requests run at the same time."""

    def __init__(self, limit: int = 64) -> None:
        self.slots = RequestSlots(limit, on_limit=self._limited)
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

    async def burst(self, count: int, seconds: float) -> float:
        """Run requests at once; return how long that took."""
        self.most = 0
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*(self.request(seconds) for _ in range(count)))
        return asyncio.get_running_loop().time() - started


async def test_requests_within_the_limit_do_not_wait() -> None:
    server = Server()
    assert await server.burst(64, 0.1) == pytest.approx(0.1)
    assert server.most == 64


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
    assert not server.slots.exhaustion
    await server.burst(8, 10)
    assert server.limited == 1
    assert server.slots.exhaustion == "2 requests were under way at once, and others waited"
    await asyncio.sleep(600)
    assert not server.slots.exhaustion
    await server.burst(3, 10)
    assert server.limited == 2, "it is news again"
