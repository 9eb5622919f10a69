"""One call of Git: with a time limit, an environment of our own making, and words without secrets when it fails.

GitPython's own `Git.execute` is not used for this: its time-out kills children one by one by what `ps` prints, and its
exceptions carry the command line and all output of the remote.
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
from typing import IO

from packager.git.errors import Redactor, Unreachable, UnusableContent, classified

if sys.platform == "linux":
    import resource

log = logging.getLogger(__name__)

_MIB = 1024 * 1024
# What Git prints of a repository with 200,000 files, or of as many branches.
_LONGEST_OUTPUT = 64 * _MIB
# Deltas of some KiB can describe objects of some GiB.
_MOST_MEMORY = 1024 * _MIB

_PASSED_ON = ("PATH", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_SETTINGS = (
    "core.bigFileThreshold=16m",  # larger files are streamed to disk: a small pack must not fill the memory
    "core.hooksPath=/dev/null",
    "core.compression=1",  # 1,000 clusters are written in one go, and a repository is packed again anyhow
    "core.fsmonitor=false",
    "credential.helper=",  # an empty value forgets the helpers before it
    "fetch.recurseSubmodules=false",
    "fetch.unpackLimit=1",  # all of a fetch is in one file, whose size is limited
    "gc.auto=2000",
    "gc.autoDetach=false",
    "gc.autoPackLimit=200",  # each fetch leaves a pack
    "gc.pruneExpire=now",  # only the holder of the lock writes here
    "push.recurseSubmodules=no",
)


def environment(home: Path, git_folder: Path, scheme: str) -> dict[str, str]:
    """Variables for Git that leave out all configuration of user and system, and any transport but the remote's own."""
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
    """Run `git` with arguments and return what it prints; `settings` (`key=value`) go through its environment.

    `with_messages` adds what Git and the remote say on standard error, without secrets.

    Raises the GitError that fits the output of Git, Unreachable after `timeout` seconds, and UnusableContent when it
    prints too much. Git and all its children are then killed, and also when they write a file of more than `most_bytes`
    (0: unlimited). `inherit` names file descriptors that children keep open.
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
            # Before its first child starts, which takes a thousand times as long.
            _limit(process.pid, most_bytes)
        try:
            out, output = _exchange(process, stdin, timeout)
        except BaseException as error:
            _kill(process)
            if isinstance(error, subprocess.TimeoutExpired):
                message = f"{action} took more than {timeout:g} s and was stopped; it will be retried"
                raise Unreachable(message) from None
            raise
    log.debug("git %s took %.0f ms", arguments[0], (time.monotonic() - started) * 1000)
    if max(len(out), len(output)) > _LONGEST_OUTPUT:
        raise UnusableContent(f"{action} failed: the remote lists or prints more than {_LONGEST_OUTPUT // _MIB} MiB")
    if process.returncode != 0:
        ended = f"\ngit was stopped by signal {-process.returncode}" if process.returncode < 0 else ""
        refusals = "\n".join(line for line in out.decode(errors="replace").splitlines() if line.startswith("!\t"))
        text = output.decode(errors="replace")
        # Git names the clone only when the clone is what it stumbles over.
        local = local or variables["GIT_DIR"] in text
        raise classified(action, redact(f"{text}\n{refusals}{ended}"), local=local)
    return out + redact(output.decode(errors="replace")).encode() if with_messages else out


def _limit(pid: int, most_bytes: int) -> None:
    """Limit files and memory of a process and its future children, on Linux; lower limits of this process stay."""
    if sys.platform == "linux":
        for what, most in ((resource.RLIMIT_FSIZE, most_bytes), (resource.RLIMIT_DATA, _MOST_MEMORY)):
            with contextlib.suppress(ProcessLookupError):
                soft, hard = resource.prlimit(pid, what)
                lowest = most if soft == resource.RLIM_INFINITY else min(soft, most)
                resource.prlimit(pid, what, (lowest, hard))


def _exchange(process: subprocess.Popen[bytes], stdin: bytes, timeout: float) -> tuple[bytes, bytes]:
    """Like `communicate`, but output beyond the limit ends the process instead of filling the memory."""
    outputs = (bytearray(), bytearray())

    def read(stream: IO[bytes], found: bytearray) -> None:
        while chunk := stream.read1(64 * 1024):  # type: ignore[attr-defined]
            found += chunk
            if len(found) > _LONGEST_OUTPUT:
                _kill(process)
                return

    pipes = (process.stdin, process.stdout, process.stderr)
    to_git, *from_git = (pipe for pipe in pipes if pipe is not None)
    readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in zip(from_git, outputs, strict=True)]
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
    return bytes(outputs[0]), bytes(outputs[1])


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _as_variables(settings: Sequence[str]) -> dict[str, str]:
    pairs = [setting.split("=", 1) for setting in settings]
    variables = {"GIT_CONFIG_COUNT": str(len(pairs))}
    for number, (key, value) in enumerate(pairs):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables
