"""Processes of a sandbox: detached from the caller and found again by a variable in their environment.

The processes of a sandbox outlive the command that started them, and their parent may have been killed, so neither pid
files nor the process tree identify them. Their environment does: each process has `CAPHV_SANDBOX=<folder>`, its
children inherit it, and a process without it is never signalled.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sandbox.processes import timerslack

MARK = "CAPHV_SANDBOX"
# Below the ephemeral port ranges of Linux and macOS, which would race with ours.
PORTS = range(20000, 32000)
LOG_TAIL_LINES = 15
# For servers with many short timers that nothing depends on.
TIMER_SLACK = 0.05


class ProcessError(Exception):
    """A process exited or did not become ready in time; the message has the end of its log."""


@dataclass(frozen=True)
class Process:
    """A started process, its log, and what it was started with."""

    name: str
    pid: int
    log: Path
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def alive(self) -> bool:
        """Whether the process is running; a zombie is not."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        return False

    def log_tail(self) -> str:
        """Return the last lines of its log."""
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        return "(no log)"


def log_file(folder: Path, name: str) -> Path:
    """The log of a process."""
    return folder / "logs" / f"{name}.log"


def start(
    folder: Path,
    name: str,
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    timer_slack: float = 0.0,
) -> Process:
    """Start `command` in `folder` in a new session, with its output in `<folder>/logs/<name>.log`.

    `pass_fds` stay open while the process runs. Its timers may expire `timer_slack` seconds late.
    """
    log, words = log_file(folder, name), tuple(str(part) for part in command)
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("ab") as output, timerslack.inherited(timer_slack):
        child = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, **(env or {}), MARK: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    return Process(name, child.pid, log, words, dict(env or {}))


async def wait_ready(process: Process, probe: Callable[[], Awaitable[bool]], timeout: float) -> None:
    """Wait until `probe` is true. Raises ProcessError if the process exits first or after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not await probe():
        if not process.alive:
            raise ProcessError(f"{process.name} exited during start-up; end of {process.log}:\n{process.log_tail()}")
        if time.monotonic() > deadline:
            raise ProcessError(
                f"{process.name} was not ready after {timeout:.0f} s; end of {process.log}:\n{process.log_tail()}"
            )
        await asyncio.sleep(0.05)


def port_was_taken(process: Process) -> bool:
    """Whether a process exited because another process took its port after it was chosen."""
    return not process.alive and "address already in use" in process.log_tail()


def find(folder: Path) -> list[psutil.Process]:
    """Find all processes of a sandbox, the oldest first, children of killed parents too."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == str(folder):
                found.append((process.create_time(), process.pid, process))
    return [process for _, _, process in sorted(found)]


async def stop_all(folder: Path, grace: float = 5) -> None:
    """Stop all processes of a sandbox: SIGTERM, then SIGKILL after `grace` seconds.

    The oldest, etcd, is stopped last: without it API servers cannot shut down cleanly.
    """
    while found := find(folder):
        await stop(found[1:] or found, grace)


async def end(process: Process, grace: float = 10) -> None:
    """Stop one process, if it is running."""
    with contextlib.suppress(psutil.NoSuchProcess):
        await stop([psutil.Process(process.pid)], grace)


async def stop(processes: Sequence[psutil.Process], grace: float = 10) -> None:
    """Stop processes: SIGTERM, then SIGKILL after `grace` seconds."""
    alive = _signal(processes, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while alive := _running(alive):
        if time.monotonic() > deadline:
            _signal(alive, signal.SIGKILL)
        await asyncio.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Choose distinct free ports. Another process may take one before it is used: see `port_was_taken`."""
    chosen: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.sample(PORTS, len(PORTS)):
            if len(chosen) == count:
                break
            candidate = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                candidate.bind(("127.0.0.1", port))
                chosen.append(port)
    if len(chosen) < count:
        raise ProcessError(f"no {count} free ports on 127.0.0.1 between {PORTS.start} and {PORTS.stop}")
    return chosen


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> list[psutil.Process]:
    for process in processes:
        # psutil compares the start time first, so a reused pid is never signalled.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    return list(processes)


def _running(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the running ones; also reaps exited children."""
    return psutil.wait_procs(list(processes), timeout=0)[1]
