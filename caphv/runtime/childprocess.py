"""A part of a process that runs in a process of its own, beside it: its side and the other one.

Why not a thread: threads of one interpreter take turns of milliseconds, so that one part would wait for all that
another one computes. The other process tells once a second how it is, on its standard output: readiness and metrics,
and by that it lives; when that pipe breaks the first process is gone, and the other one ends, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson

from caphv.runtime.runnable import Runnable

log = logging.getLogger(__name__)

_REPORT_SECONDS = 1.0
_SILENCE_SECONDS = 15.0
_GRACE_SECONDS = 10.0
_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE = 30.0
_LONGEST_REPORT = 1024 * 1024


class ChildProcess(Runnable):
    """Runs a process: starts it again when it ends or is silent, and ends it when cancelled.

    It is `python -m <module>` with the settings as JSON in its first argument, so there must be no secrets in them.
    """

    def __init__(self, name: str, module: str, settings: Mapping[str, Any]) -> None:
        self._name, self._module = name, module
        self._settings = orjson.dumps(settings).decode()
        self._reasons = [f"{name}: its process starts"]
        self._metrics = b""

    def not_ready(self) -> list[str]:
        """Say what the process told last."""
        return self._reasons

    def metrics(self) -> bytes:
        """Return the metrics of the process, a second old at most."""
        return self._metrics

    async def run(self) -> None:
        """Run until cancelled."""
        loop = asyncio.get_running_loop()
        pause = _PAUSE_SECONDS
        while True:
            started = loop.time()
            status = await self._run_once()
            self._reasons = [f"{self._name}: its process ended with status {status}"]
            if loop.time() - started > _LONGEST_PAUSE:
                pause = _PAUSE_SECONDS
            log.error("the %s process ended with status %d; starting it again in %.0f s", self._name, status, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _run_once(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", self._module, self._settings),
            stdin=DEVNULL,
            stdout=PIPE,
            limit=_LONGEST_REPORT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            # An interrupt from the terminal is for this process, which ends that one in its turn.
            start_new_session=True,
        )
        try:
            await self._listen(process)
        finally:
            await _end(process)
        return process.returncode or 0

    async def _listen(self, process: Process) -> None:
        if process.stdout is None:
            raise RuntimeError("the process was started without a pipe")
        while True:
            try:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    line = await process.stdout.readline()
            except TimeoutError:
                log.error("the %s process has been silent for %.0f s", self._name, _SILENCE_SECONDS)
                process.kill()
                return
            if not line:
                return
            report = orjson.loads(line)
            self._reasons, self._metrics = report["reasons"], report["metrics"].encode()


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


# The other process


class _Pipe(asyncio.BaseProtocol):
    """The way back."""

    def __init__(self, broken: asyncio.Event) -> None:
        self._broken = broken

    def connection_lost(self, exc: Exception | None) -> None:
        self._broken.set()


async def serve(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    not_ready: Callable[[], list[str]],
    metrics: Callable[[], bytes],
) -> None:
    """Do the work of a process beside another one, and report to it.

    `work` gets an event that is set when it has to end: on SIGTERM, or when the first process is gone.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    pipe, _ = await loop.connect_write_pipe(lambda: _Pipe(stop), sys.stdout.buffer)
    reporting = asyncio.create_task(_report(not_ready, metrics, pipe))
    try:
        await work(stop)
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


async def _report(
    not_ready: Callable[[], list[str]], metrics: Callable[[], bytes], pipe: asyncio.WriteTransport
) -> None:
    told: list[str] = []
    count = 0
    while True:
        reasons = not_ready()
        # A first process that does not read must not stop this one: what is new is told when the pipe is empty again.
        if (reasons != told or count % 10 == 0) and not pipe.get_write_buffer_size():
            pipe.write(orjson.dumps({"reasons": reasons, "metrics": metrics().decode()}) + b"\n")
            told = reasons
        count += 1
        await asyncio.sleep(_REPORT_SECONDS / 10)
