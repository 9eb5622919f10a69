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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from packager.git.errors import Redactor, Unreachable, classified

log = logging.getLogger(__name__)

_PASSED_ON = ("PATH", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.compression=1",  # 1,000 clusters are written in one go, and a repository is packed again anyhow
    "core.fsmonitor=false",
    "credential.helper=",  # an empty value forgets the helpers before it
    "fetch.recurseSubmodules=false",
    "gc.auto=2000",
    "gc.autoDetach=false",
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
    inherit: Sequence[int] = (),
) -> bytes:
    """Run `git` with arguments and return what it prints; `settings` (`key=value`) go through its environment.

    Raises the GitError that fits the output of Git, and Unreachable after `timeout` seconds: then Git and all its
    children are killed. `inherit` names file descriptors that children keep open.
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
        try:
            out, output = process.communicate(stdin, timeout)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                message = f"{action} took more than {timeout:g} s and was stopped; it will be retried"
                raise Unreachable(message) from None
            raise
    log.debug("git %s took %.0f ms", arguments[0], (time.monotonic() - started) * 1000)
    if process.returncode != 0:
        ended = f"\ngit was stopped by signal {-process.returncode}" if process.returncode < 0 else ""
        refusals = "\n".join(line for line in out.decode(errors="replace").splitlines() if line.startswith("!\t"))
        text = output.decode(errors="replace")
        # Git names the clone only when the clone is what it stumbles over.
        local = local or variables["GIT_DIR"] in text
        raise classified(action, redact(f"{text}\n{refusals}{ended}"), local=local)
    return out


def _as_variables(settings: Sequence[str]) -> dict[str, str]:
    pairs = [setting.split("=", 1) for setting in settings]
    variables = {"GIT_CONFIG_COUNT": str(len(pairs))}
    for number, (key, value) in enumerate(pairs):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables
