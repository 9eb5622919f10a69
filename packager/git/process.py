"""Calls Git with a time limit, in its own environment, and raises errors without secrets.

GitPython's `Git.execute` does not fit. Its time-out kills children one by one as `ps` lists them,
and its exceptions carry the command line and all output of the remote.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

from packager.git.errors import Redactor, Unreachable, UnusableContent, classify

if sys.platform == "linux":
    import resource

log = logging.getLogger(__name__)

_MIB = 1024 * 1024
# Enough for the list of 200,000 files or branches.
_MAX_OUTPUT_BYTES = 64 * _MIB
# Deltas of some KiB can describe objects of some GiB.
_MAX_MEMORY_BYTES = 1024 * _MIB

_PASSED_ON = ("PATH", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PROXIES = (
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
)
_SETTINGS = (
    # Git streams larger files to disk, so that a small pack cannot fill the memory.
    "core.bigFileThreshold=16m",
    "core.hooksPath=/dev/null",
    # One commit may write 1,000 clusters, and Git packs the repository again later anyway.
    "core.compression=1",
    "core.fsmonitor=false",
    "credential.helper=",  # an empty value forgets the helpers before it
    "fetch.recurseSubmodules=false",
    "fetch.unpackLimit=1",  # a fetch writes only one file, whose size is limited
    "gc.auto=2000",
    "gc.autoDetach=false",
    "gc.autoPackLimit=200",  # each fetch leaves a pack
    "gc.pruneExpire=now",  # only the holder of the lock writes here
    "push.recurseSubmodules=no",
)


class CallConfig(NamedTuple):
    """Environment variables and settings (`key=value`) for single calls of Git."""

    variables: dict[str, str]
    settings: list[str]


class _Output(NamedTuple):
    """What a process wrote to standard output and to standard error."""

    out: bytes
    messages: bytes


def environment(home: Path, git_folder: Path, scheme: str) -> dict[str, str]:
    """Return variables with which Git ignores all configuration of user and system.

    They allow only the transport of the remote.
    """
    # Any other variable could change how Git behaves.
    passed = {name: os.environ[name] for name in (*_PASSED_ON, *_PROXIES) if name in os.environ}
    return passed | {
        "HOME": str(home),
        "LC_ALL": "C",
        "GIT_DIR": str(git_folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "http:https" if scheme == "http" else scheme,
    }


def run(
    action: str,
    arguments: Sequence[str],
    *,
    variables: Mapping[str, str],
    settings: Sequence[str] = (),
    stdin: bytes = b"",
    timeout: float,
    redact: Redactor,
    local: bool,
    most_bytes: int = 0,
    inherit: Sequence[int] = (),
    with_messages: bool = False,
) -> bytes:
    """Run `git` with arguments and return its output.

    Raises the `GitError` that fits the output of Git, `Unreachable` after `timeout` seconds, and
    `UnusableContent` when Git prints too much. Git and all its children are then killed.

    :param action: description of the call for messages
    :param arguments: arguments of `git`
    :param variables: the whole environment of `git`, except for settings
    :param settings: `key=value` of Git's configuration, passed through the environment
    :param stdin: standard input of `git`
    :param timeout: seconds until Git is killed
    :param redact: removes secrets from messages
    :param local: whether the call does without the remote, so that the clone causes all failures
    :param most_bytes: kill Git when it writes a larger file, 0 for no limit
    :param inherit: file descriptors that Git and its children keep open
    :param with_messages: append the messages of Git and the remote on standard error, redacted
    """
    started = time.monotonic()
    with subprocess.Popen(
        ["git", *arguments],
        env={**variables, **_as_variables((*_SETTINGS, *settings))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=inherit,
        start_new_session=True,
    ) as process:
        if most_bytes:
            # Git has no children yet, because starting one takes a thousand times as long.
            _limit(process.pid, most_bytes)

        try:
            output = _exchange(process, stdin, timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            message = (
                f"{action} took more than {timeout:g} s and was stopped; a running packager tries "
                "again"
            )
            raise Unreachable(message) from None
        except BaseException:
            _kill(process)
            raise

    log.debug("git %s took %.0f ms", arguments[0], (time.monotonic() - started) * 1000)

    if max(map(len, output)) > _MAX_OUTPUT_BYTES:
        raise UnusableContent(
            f"{action} failed: the remote lists or prints more than {_MAX_OUTPUT_BYTES // _MIB} MiB"
        )

    messages = output.messages.decode(errors="replace")
    if process.returncode != 0:
        # Git names the clone only when the clone is the cause.
        is_local = local or variables["GIT_DIR"] in messages
        text = f"{messages}\n{_refused_refs(output.out)}{_signal_of(process.returncode)}"
        raise classify(action, redact(text), local=is_local)
    return output.out + redact(messages).encode() if with_messages else output.out


def _refused_refs(out: bytes) -> str:
    """Return the lines of `git push --porcelain` that report refused refs."""
    lines = out.decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if line.startswith("!\t"))


def _signal_of(returncode: int) -> str:
    """Return a line that names the signal that ended Git, empty if none did."""
    return f"\ngit was stopped by signal {-returncode}" if returncode < 0 else ""


def _limit(pid: int, most_bytes: int) -> None:
    """Limit files and memory of a process and its future children, on Linux.

    Limits that are lower already stay.
    """
    if sys.platform == "linux":
        limits = ((resource.RLIMIT_FSIZE, most_bytes), (resource.RLIMIT_DATA, _MAX_MEMORY_BYTES))
        for kind, most in limits:
            with contextlib.suppress(ProcessLookupError):
                soft, hard = resource.prlimit(pid, kind)
                lowest = most if soft == resource.RLIM_INFINITY else min(soft, most)
                resource.prlimit(pid, kind, (lowest, hard))


def _exchange(process: subprocess.Popen[bytes], stdin: bytes, timeout: float) -> _Output:
    """Like `communicate`, but kill a process whose output would fill the memory.

    Raises `subprocess.TimeoutExpired`.
    """
    out = bytearray()
    messages = bytearray()

    def read(stream: IO[bytes], buffer: bytearray) -> None:
        while chunk := stream.read1(64 * 1024):  # type: ignore[attr-defined]
            buffer.extend(chunk)
            if len(buffer) > _MAX_OUTPUT_BYTES:
                _kill(process)
                return

    # `run` opens all three pipes.
    to_git = cast("IO[bytes]", process.stdin)
    readers = [
        threading.Thread(target=read, args=(process.stdout, out), daemon=True),
        threading.Thread(target=read, args=(process.stderr, messages), daemon=True),
    ]
    for reader in readers:
        reader.start()

    deadline = time.monotonic() + timeout
    # A large input must not outlast the time limit either.
    timer = threading.Timer(timeout, _kill, [process])
    timer.start()
    try:
        with contextlib.suppress(BrokenPipeError):
            to_git.write(stdin)
        with contextlib.suppress(BrokenPipeError):
            to_git.close()
        process.wait()
        for reader in readers:
            # A child in the background may keep the pipes open.
            reader.join(max(0.0, deadline - time.monotonic()))
    finally:
        timer.cancel()

    if time.monotonic() >= deadline:
        raise subprocess.TimeoutExpired(process.args, timeout)
    return _Output(bytes(out), bytes(messages))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _as_variables(settings: Sequence[str]) -> dict[str, str]:
    pairs = [setting.split("=", 1) for setting in settings]
    variables = {"GIT_CONFIG_COUNT": str(len(pairs))}
    for number, (key, value) in enumerate(pairs):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables
