"""The webhook server in a process of its own, beside the provider: the provider's side and the server's.

Why not a thread: threads of one interpreter take turns of milliseconds, so that a review would wait for every reconcile
that computes, and the other way round. The server tells once a second how it is, on its standard output: readiness and
metrics, and by that it lives; when that pipe breaks the provider is gone, and the server ends, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import dataclass
from pathlib import Path

import orjson

from caphv.runtime import eventloop, logs
from caphv.runtime.part import Part
from webhooks.server import WebhookServer

log = logging.getLogger(__name__)

_REPORT_SECONDS = 1.0
_SILENCE_SECONDS = 15.0
_GRACE_SECONDS = 10.0
_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE = 30.0
_LONGEST_REPORT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """What the server's process has to know; `address` is `[host]:port`."""

    address: str
    folder: str
    log_level: str = "info"
    log_format: logs.Format = "auto"


class WebhookProcess(Part):
    """Runs the server's process: starts it again when it ends or is silent, and ends it when cancelled."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reasons = ["webhook: its process starts"]
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
            self._reasons = [f"webhook: its process ended with status {status}"]
            if loop.time() - started > _LONGEST_PAUSE:
                pause = _PAUSE_SECONDS
            log.error("the webhook process ended with status %d; starting it again in %.0f s", status, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _run_once(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-P",
                "-m",
                "webhooks.process",
                orjson.dumps(dataclasses.asdict(self._settings)).decode(),
            ),
            stdin=DEVNULL,
            stdout=PIPE,
            limit=_LONGEST_REPORT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            # An interrupt from the terminal is for the provider, which ends this process in its turn.
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
                log.error("the webhook process has been silent for %.0f s", _SILENCE_SECONDS)
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


# The server's side


class _Pipe(asyncio.BaseProtocol):
    """The way to the provider."""

    def __init__(self, broken: asyncio.Event) -> None:
        self._broken = broken

    def connection_lost(self, exc: Exception | None) -> None:
        self._broken.set()


async def _serve(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = WebhookServer(settings.address, Path(settings.folder))
    pipe, _ = await loop.connect_write_pipe(lambda: _Pipe(stop), sys.stdout.buffer)
    tasks = [asyncio.create_task(task) for task in (server.run(), _report(server, pipe), stop.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    for result in ended:
        if isinstance(result, Exception):
            raise result


async def _report(server: WebhookServer, pipe: asyncio.WriteTransport) -> None:
    told: list[str] = []
    count = 0
    while True:
        reasons = server.not_ready()
        # A provider that does not read must not stop the server: what is new is told when the pipe is empty again.
        if (reasons != told or count % 10 == 0) and not pipe.get_write_buffer_size():
            pipe.write(orjson.dumps({"reasons": reasons, "metrics": server.metrics().decode()}) + b"\n")
            told = reasons
        count += 1
        await asyncio.sleep(_REPORT_SECONDS / 10)


def main() -> None:
    """Serve as the settings in the first argument say. Exit status: 0 stopped as asked, 1 could not start or go on."""
    settings = Settings(**orjson.loads(sys.argv[1]))
    logs.configure(settings.log_level, settings.log_format)
    try:
        eventloop.run(_serve(settings))
    except OSError as error:
        log.error("webhooks cannot be served: %s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
