"""Processes of a sandbox: detached from the caller, and marked by their environment.

The processes of a sandbox outlive the command that started them, and their parent may have been
killed, so neither pid files nor the process tree identify them. Their environment identifies them:
each process has `CAPHV_SANDBOX=<folder>`, and its children inherit this variable. A process without
the variable is never signalled.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sandbox.processes import timerslack

MARK = "CAPHV_SANDBOX"
# The ports are below the ephemeral ranges of Linux and macOS, which would collide with them.
PORTS = range(20000, 32000)
# Ports that stay reserved: those of a test that restarts its processes, and not all of a long run.
MAX_RESERVATIONS = 200
_reservations: deque[int] = deque()
LOG_TAIL_LINES = 15
# The slack of servers with many short timers on which nothing depends.
TIMER_SLACK_SECONDS = 0.05


class ProcessError(Exception):
    """A process exited or did not become ready in time. The message has the end of its log."""


@dataclass(frozen=True)
class Process:
    """A started process, with its log, command and environment."""

    name: str
    pid: int
    log: Path
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def alive(self) -> bool:
        """Return whether the process is running. A zombie is not running."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return _is_running(psutil.Process(self.pid))
        return False

    def log_tail(self) -> str:
        """Return the last lines of its log."""
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        return "(no log)"


def log_file(folder: Path, name: str) -> Path:
    """Return the path of a process's log."""
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
    log = log_file(folder, name)
    words = tuple(str(part) for part in command)
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    # Start a new session, because Ctrl-C in the caller's terminal must not stop the sandbox.
    with log.open("ab") as output, timerslack.set_for_children(timer_slack):
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
    return Process(name=name, pid=child.pid, log=log, command=words, env=dict(env or {}))


async def wait_ready(
    process: Process, probe: Callable[[], Awaitable[bool]], timeout: float
) -> None:
    """Wait until `probe` is true.

    Raises `ProcessError` if the process exits first, or is not ready after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not await probe():
        if not process.alive:
            raise ProcessError(
                f"{process.name} exited during start-up; end of "
                f"{process.log}:\n{process.log_tail()}"
            )
        if time.monotonic() > deadline:
            raise ProcessError(
                f"{process.name} was not ready after {timeout:.0f} s; end of "
                f"{process.log}:\n{process.log_tail()}"
            )
        await asyncio.sleep(0.05)


def port_was_taken(process: Process) -> bool:
    """Return whether a process exited because another process had taken its port."""
    return not process.alive and "address already in use" in process.log_tail()


def find(folder: Path) -> list[psutil.Process]:
    """Find all processes of a sandbox, the oldest first, with children of killed parents."""
    processes = []
    for process in psutil.process_iter():
        # Processes may end while the loop runs, and processes of other users are unreadable.
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == str(folder):
                processes.append((process.create_time(), process.pid, process))
    return [process for _, _, process in sorted(processes)]


async def stop_all(folder: Path, grace: float = 5) -> None:
    """Stop all processes of a sandbox with SIGTERM, and with SIGKILL after `grace` seconds.

    The oldest process, etcd, is stopped last, because API servers cannot shut down cleanly without
    it.
    """
    while processes := find(folder):
        await stop(processes[1:] or processes, grace)


async def end(process: Process, grace: float = 10) -> None:
    """Stop one process, if it is running."""
    with contextlib.suppress(psutil.NoSuchProcess):
        await stop([psutil.Process(process.pid)], grace)


async def stop(processes: Sequence[psutil.Process], grace: float = 10) -> None:
    """Stop processes with SIGTERM, and with SIGKILL after `grace` seconds."""
    alive = _signal(processes, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while alive := _running(alive):
        if time.monotonic() > deadline:
            _signal(alive, signal.SIGKILL)
        await asyncio.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Choose distinct free ports that no other process has chosen lately.

    A process that does not choose its ports here may still take one (see `port_was_taken`).
    """
    ports: list[int] = []
    # The sockets stay open until all ports are chosen, so that none is chosen twice.
    with contextlib.ExitStack() as sockets:
        for port in random.sample(PORTS, len(PORTS)):
            if len(ports) == count:
                break
            candidate = sockets.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                candidate.bind(("127.0.0.1", port))
                _reserve(port)
                ports.append(port)

    if len(ports) < count:
        raise ProcessError(
            f"no {count} free ports on 127.0.0.1 between {PORTS.start} and {PORTS.stop}"
        )
    return ports


def _reserve(port: int) -> None:
    """Keep other processes from choosing a port; raises OSError if one of them has chosen it.

    A name in Linux's abstract namespace belongs to one process, and ends with it. Elsewhere nothing
    is reserved.
    """
    if sys.platform != "linux":
        return

    with socket.socket(socket.AF_UNIX) as reservation:
        reservation.bind(f"\0caphv-port-{port}")
        _reservations.append(reservation.detach())
    if len(_reservations) > MAX_RESERVATIONS:
        os.close(_reservations.popleft())


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> list[psutil.Process]:
    for process in processes:
        # psutil compares the start time first, so a reused pid is never signalled.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    return list(processes)


def _running(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the running processes, and reap exited children."""
    alive = psutil.wait_procs(list(processes), timeout=0)[1]
    # In a container whose first process does not reap orphans, they stay zombies.
    return [process for process in alive if _is_running(process)]


def _is_running(process: psutil.Process) -> bool:
    """Return whether a process is more than a zombie.

    A process whose first thread has exited is a zombie with the threads that still run.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    return False
