"""A client that sends anything to the webhook: each request is answered, soon, and leaves no memory behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp
import pytest

from tests.support.reviews import OVERSIZED, damaged, fuzzed, request, review
from tests.support.webhooks import Server
from webhooks import handler

pytestmark = [pytest.mark.integration, pytest.mark.timing]

MIB = 1024 * 1024
SECONDS, MEMORY = 0.5, 16 * MIB
# Each connection has buffers for what has arrived before it is read.
MANY, MEMORY_OF_MANY = 32, 48 * MIB
TARGETS = list(handler.TARGETS)


@dataclass
class Request:
    """A request of HTTP."""

    body: bytes
    path: str
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


def any_request(random: Random) -> Request:
    """Most are reviews; others are broken, or for no webhook."""
    path = random.choice(TARGETS)
    body = review(fuzzed(random, handler.TARGETS[path]))
    choice = random.randrange(20)
    if choice == 0:
        return Request(damaged(random, body), path)
    if choice == 1:
        return Request(body, random.choice(["/", "/metrics", path + "/x", "/%00"]), random.choice(["POST", "GET"]))
    if choice == 2:
        headers = random.choice([{"Content-Type": "text/plain"}, {"Content-Type": "application/json;charset=\xff"}])
        return Request(body, path, headers=headers)
    if choice == 3:
        return Request(body, path, headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})
    return Request(body, path)


def oversized_request(random: Random) -> Request:
    """A machine far beyond all bounds, up to the largest body."""
    spec = random.choice(list(OVERSIZED.values()))(random.randrange(20_000, 650_000))
    content = request(object={"metadata": {"name": "one"}, "spec": spec}, operation=random.choice(["CREATE", "UPDATE"]))
    return Request(
        review(content | {"oldObject": {"spec": {}}}), handler.path_of("validate", "v1beta1", "HarvesterMachine")
    )


class Client:
    """Sends requests over a few connections at a time, and records status, seconds and the server's memory."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        assert server.process is not None
        self._status = Path(f"/proc/{server.process.pid}/status")
        self._session = session
        self.statuses: Counter[int] = Counter()
        self.longest = 0.0

    def memory(self, field: str = "VmRSS") -> int:
        lines = self._status.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

    def peak(self) -> int:
        return self.memory("VmHWM")

    async def send(self, requests: Iterator[Request], connections: int) -> None:
        # Made before the clock runs: the largest take longer to make than to answer.
        while batch := list(itertools.islice(requests, connections)):
            await asyncio.gather(*map(self._send, batch))

    async def _send(self, one: Request) -> None:
        started = time.perf_counter()
        async with self._session.request(one.method, one.path, data=one.body, headers=one.headers) as response:
            await response.read()
        self.longest = max(self.longest, time.perf_counter() - started)
        self.statuses[response.status] += 1


@contextlib.asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[Client]:
    server = Server(folder, "fuzzed", "--log-level=error")
    await server.start()
    try:
        context = ssl.create_default_context(cadata=server.ca.certificate.decode())
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(
            server.url, connector=connector, skip_auto_headers=["Content-Type"]
        ) as session:
            yield Client(server, session)
        assert server.alive
    finally:
        # An orderly stop takes two seconds.
        await server.kill()


@pytest.mark.parametrize(
    ("make", "connections", "count", "memory"),
    [
        pytest.param(any_request, 8, 3000, MEMORY, id="fuzzed"),
        pytest.param(oversized_request, 2, 100, MEMORY, id="oversized"),
        pytest.param(any_request, 8, 100_000, MEMORY, id="fuzzed-long", marks=pytest.mark.long),
        pytest.param(oversized_request, 2, 10_000, MEMORY, id="oversized-long", marks=pytest.mark.long),
    ],
)
async def test_each_request_is_answered_in_time(
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    make: Callable[[Random], Request],
    connections: int,
    count: int,
    memory: int,
) -> None:
    random = Random(count)
    async with connected(tmp_path) as client:
        # Validators are compiled for the first reviews.
        await client.send((any_request(random) for _ in range(500)), 4)
        before = client.memory()
        client.statuses.clear()
        client.longest = 0
        await client.send((make(random) for _ in itertools.repeat(None, count)), connections)
        after, peak = client.memory(), client.peak()
    figures = (
        f"{client.statuses.total()} requests, {dict(client.statuses)}, longest {client.longest:.3f} s, memory "
        f"{before / MIB:.0f} MiB before, {peak / MIB:.0f} MiB at most, {after / MIB:.0f} MiB after"
    )
    record_property("figures", figures)
    assert client.statuses.total() == count
    assert max(client.statuses) < 500, figures
    assert client.longest <= SECONDS, figures
    assert peak - before <= memory, figures


async def test_large_reviews_on_many_connections_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    """Without a bound, 8 bodies of 2.7 MiB took 36 MiB."""
    content = request(object={"metadata": {"name": "one"}, "spec": OVERSIZED["user data"](640_000)})
    large = Request(review(content), handler.path_of("validate", "v1beta1", "HarvesterMachine"))
    async with connected(tmp_path) as client:
        before = client.memory()
        await client.send(itertools.repeat(large, 2 * MANY), MANY)
        assert client.statuses == {200: 2 * MANY}
        assert client.peak() - before <= MEMORY_OF_MANY
