"""Run a runnable in a child process. This module has the parent's and the child's side.

A thread is not enough: threads of one interpreter take turns of milliseconds with its lock, so one
waits while another computes. The child reports readiness and metrics on its standard output at
least once a second. The parent kills and restarts a silent child. A child whose pipe breaks has
lost its parent and exits.
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
# Until the first report. On a busy machine, or with a small limit of CPU, the imports take long.
_START_SECONDS = 120.0
_GRACE_SECONDS = 10.0
_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0
_MAX_REPORT_BYTES = 1024 * 1024


class ChildProcess(Runnable):
    """Run a child process until cancelled, and restart it when it exits or falls silent.

    The command is `python -m <module>` with the settings as JSON in its first argument, so they
    must contain no secrets.
    """

    def __init__(self, name: str, module: str, settings: Mapping[str, Any]) -> None:
        self._name = name
        self._module = module
        self._settings = orjson.dumps(settings).decode()
        self._reasons = [f"{name}: process is starting"]
        self._metrics = b""

    def not_ready(self) -> list[str]:
        """Return the reasons in the last report of the child."""
        return self._reasons

    def metrics(self) -> bytes:
        """Return the metrics of the child, at most a second old; empty while it does not run."""
        return self._metrics

    async def run(self) -> None:
        """Run until cancelled."""
        loop = asyncio.get_running_loop()
        pause = _PAUSE_SECONDS
        while True:
            started = loop.time()
            status = await self._run_once()
            self._reasons = [f"{self._name}: process exited with status {status}"]
            self._metrics = b""

            if loop.time() - started > _MAX_PAUSE_SECONDS:
                pause = _PAUSE_SECONDS
            log.error(
                "%s process exited with status %d; restarting it in %.0f s",
                self._name,
                status,
                pause,
            )
            await asyncio.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    async def _run_once(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", self._module, self._settings),
            stdin=DEVNULL,
            stdout=PIPE,
            limit=_MAX_REPORT_BYTES,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            # Ctrl-C on the terminal is for the parent, which then terminates the child.
            start_new_session=True,
        )
        try:
            await self._listen(process)
        finally:
            await _end(process)
        return process.returncode or 0

    async def _listen(self, process: Process) -> None:
        """Keep the reports of the child until it closes its output. Kill a silent child."""
        if process.stdout is None:
            raise RuntimeError("the process has no standard output")

        patience = _START_SECONDS
        while True:
            try:
                async with asyncio.timeout(patience):
                    line = await process.stdout.readline()
            except TimeoutError:
                log.error("%s process has been silent for %.0f s; killing it", self._name, patience)
                process.kill()
                return

            if not line:
                return
            patience = _SILENCE_SECONDS
            report = orjson.loads(line)  # noqa: TID251 - our own child process
            self._reasons = report["reasons"]
            self._metrics = report["metrics"].encode()


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


# The child's side


class _Pipe(asyncio.BaseProtocol):
    """Set an event when the parent closes its end of the pipe."""

    def __init__(self, broken: asyncio.Event) -> None:
        self._broken = broken

    def connection_lost(self, exc: Exception | None) -> None:
        self._broken.set()


async def serve(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    not_ready: Callable[[], list[str]],
    metrics: Callable[[], bytes],
) -> None:
    """Run `work` in the child and report to the parent.

    `work` gets an event that is set when it must stop: on SIGTERM, or when the parent has exited.
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
    """Write a report each second, and at once when the readiness changes."""
    last_reasons: list[str] = []
    count = 0
    while True:
        reasons = not_ready()
        is_due = reasons != last_reasons or count % 10 == 0
        # Reports wait until the pipe is empty again, because a parent that does not read must not
        # block the child.
        if is_due and not pipe.get_write_buffer_size():
            pipe.write(orjson.dumps({"reasons": reasons, "metrics": metrics().decode()}) + b"\n")
            last_reasons = reasons
        count += 1
        await asyncio.sleep(_REPORT_SECONDS / 10)
