"""Runnables next to the controllers of a process: start, end, probes and metrics."""

import asyncio

import aiohttp
import pytest

from caphv.runtime.manager import BindAddresses, Manager
from caphv.runtime.runnable import Runnable, listening_address
from sandbox.processes import children

pytestmark = pytest.mark.unit


class Counting(Runnable):
    """A part that notes its life."""

    def __init__(self) -> None:
        self.life: list[str] = []
        self.begun, self.stops = asyncio.Event(), asyncio.Event()
        self.reasons = ["counting: has not begun"]
        self.error: Exception | None = None

    async def run(self) -> None:
        self.life.append("begun")
        self.begun.set()
        try:
            if self.error:
                raise self.error
            await asyncio.Event().wait()
        finally:
            self.life.append("ended")

    def stopping(self) -> None:
        self.life.append("stopping")
        self.stops.set()

    def not_ready(self) -> list[str]:
        return self.reasons

    def metrics(self) -> bytes:
        return b"of_another_process 7\n"


async def fetched(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/{path}") as answer:
        return answer.status, await answer.text()


async def test_a_process_of_parts_alone_lives_until_it_is_stopped() -> None:
    metrics, health = children.free_ports(2)
    part, stop = Counting(), asyncio.Event()
    manager = Manager(addresses=BindAddresses(f"127.0.0.1:{metrics}", f"127.0.0.1:{health}"))
    manager.add_runnable(part)
    running = asyncio.create_task(manager.run(stop))
    await part.begun.wait()
    assert await fetched(health, "readyz") == (500, "counting: has not begun")
    part.reasons = []
    assert await fetched(health, "readyz") == (200, "ok")
    code, text = await fetched(metrics, "metrics")
    assert code == 200
    assert text.endswith("\nof_another_process 7\n")
    assert not running.done()
    stop.set()
    await running
    assert part.life == ["begun", "stopping", "ended"]


async def test_a_part_hears_of_the_end_before_work_has_ended() -> None:
    part, stop, ends = Counting(), asyncio.Event(), asyncio.Event()
    manager = Manager(addresses=BindAddresses("0", "0"))
    manager.add_runnable(part)

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await ends.wait()

    manager.add_task(slow)
    running = asyncio.create_task(manager.run(stop))
    await part.begun.wait()
    stop.set()
    await part.stops.wait()
    assert not running.done()
    ends.set()
    await running
    assert part.life == ["begun", "stopping", "ended"]


def test_the_error_of_a_part_ends_the_process() -> None:
    part = Counting()
    part.error = OSError("no such address")
    manager = Manager(addresses=BindAddresses("0", "0"))
    manager.add_runnable(part)
    with pytest.raises(OSError, match="no such address"):
        asyncio.run(manager.run(asyncio.Event()))


@pytest.mark.parametrize(
    ("address", "place"),
    [
        (":9443", ("", 9443)),
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("0", None),
        (":0", None),
        ("", None),
    ],
)
def test_addresses(address: str, place: tuple[str, int] | None) -> None:
    assert listening_address(address) == place


@pytest.mark.parametrize("address", ["host:port", "8080", "host", ":65536", ":-1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"\[host\]:port"):
        listening_address(address)
