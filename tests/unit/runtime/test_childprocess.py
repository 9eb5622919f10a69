"""A parent serves what its child reports, as long as there is a child."""

import asyncio
from pathlib import Path

import pytest

from caphv.runtime import childprocess
from caphv.runtime.childprocess import ChildProcess
from tests.support.waiting import until

pytestmark = pytest.mark.unit

CHILD = """\
import sys, time
sys.stdout.write('{"reasons": [], "metrics": "lag_seconds 7\\\\n"}\\n')
sys.stdout.flush()
time.sleep(0.3)
"""


SLOW_START = """\
import sys, time
time.sleep(1)
sys.stdout.write('{"reasons": [], "metrics": "lag_seconds 7\\\\n"}\\n')
sys.stdout.flush()
time.sleep(60)
"""


async def test_a_child_may_be_silent_for_longer_before_its_first_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(childprocess, "_SILENCE_SECONDS", 0.5)
    (tmp_path / "slow_child.py").write_text(SLOW_START, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    child = ChildProcess("child", "slow_child", {})
    running = asyncio.create_task(child.run())
    try:
        await until(lambda: child.metrics() == b"lag_seconds 7\n")
        await until(lambda: child.not_ready() == ["child: process exited with status -9"])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_metrics_of_a_child_that_exited_are_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashing_child.py").write_text(CHILD, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    child = ChildProcess("child", "crashing_child", {})
    running = asyncio.create_task(child.run())
    try:
        await until(lambda: child.metrics() == b"lag_seconds 7\n")
        await until(lambda: child.not_ready() == ["child: process exited with status 0"])
        assert child.metrics() == b""
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
