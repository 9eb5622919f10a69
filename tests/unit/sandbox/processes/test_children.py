"""Which processes count as running."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from sandbox.processes import children

pytestmark = pytest.mark.unit


def unreaped(status: str, threads: int, signals: list[int]) -> psutil.Process:
    """A process whose parent does not wait for it; it keeps its pid."""
    process = SimpleNamespace(status=lambda: status, num_threads=lambda: threads, send_signal=signals.append)
    return cast("Any", process)


async def test_a_zombie_that_nothing_reaps_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "wait_procs", lambda processes, timeout: ([], processes))
    signals: list[int] = []
    async with asyncio.timeout(5):
        await children.stop([unreaped(psutil.STATUS_ZOMBIE, 1, signals)])
    assert signals == [15]


@pytest.mark.parametrize(("status", "threads"), [(psutil.STATUS_SLEEPING, 1), (psutil.STATUS_ZOMBIE, 2)])
async def test_a_process_with_a_thread_that_runs_has_not_stopped(
    monkeypatch: pytest.MonkeyPatch, status: str, threads: int
) -> None:
    monkeypatch.setattr(psutil, "wait_procs", lambda processes, timeout: ([], processes))
    signals: list[int] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await children.stop([unreaped(status, threads, signals)], grace=0)
    assert 9 in signals
