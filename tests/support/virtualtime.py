"""An event loop whose clock jumps to the next timer: what takes minutes is tested in milliseconds, and exactly."""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only while everybody sleeps. Nothing left to wait for is an error, not a hang."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout is None:
            raise RuntimeError("everybody waits and no timer is set: this would hang forever")
        self._loop.now += 0 if events else max(0.0, timeout or 0.0)
        return events


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        with mock.patch.object(time, "monotonic", loop.time):
            return runner.run(scenario)


async def settle(turns: int = 30) -> None:
    """Let everything run that can run without time passing."""
    for _ in range(turns):
        await asyncio.sleep(0)
