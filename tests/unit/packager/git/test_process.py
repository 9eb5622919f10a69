"""A call of Git ends with its time, with everything that it started."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from packager.git.errors import GitError, Redactor, Unreachable
from packager.git.process import run

pytestmark = pytest.mark.unit


@pytest.fixture
def git(tmp_path: Path) -> Path:
    """A folder for PATH; what is written to `git` in it runs in its place."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").touch()
    (folder / "git").chmod(0o755)
    return folder


def call(folder: Path, script: str, *, timeout: float = 30.0, stdin: bytes = b"") -> bytes:
    (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
    assert (folder / "git").stat().st_mode & stat.S_IXUSR
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "GIT_DIR": str(folder)}
    redact = Redactor()
    return run("fetch", ["x"], variables=variables, stdin=stdin, timeout=timeout, redact=redact, local=False)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def until_dead(pid: int) -> None:
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def test_output_is_returned_and_input_is_given(git: Path) -> None:
    assert call(git, "cat", stdin=b"refs") == b"refs"


def test_call_that_takes_too_long_is_ended_with_its_children(git: Path) -> None:
    script = f"sleep 600 & echo $! > {git}/child; echo $$ > {git}/parent; wait"
    with pytest.raises(Unreachable):
        call(git, script, timeout=1.0)
    until_dead(int((git / "parent").read_text()))
    until_dead(int((git / "child").read_text()))


def test_child_that_keeps_the_pipes_open_is_ended_when_the_time_is_over(git: Path) -> None:
    """Git itself has ended, so that no timer of it is left."""
    with pytest.raises(Unreachable):
        call(git, f"sleep 600 & echo $! > {git}/child", timeout=1.0)
    until_dead(int((git / "child").read_text()))


def test_call_that_is_interrupted_leaves_nothing_running(git: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        while not (git / "parent").exists():
            time.sleep(0.02)
        raise KeyboardInterrupt

    monkeypatch.setattr("packager.git.process._exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(git, f"echo $$ > {git}/parent.new; mv {git}/parent.new {git}/parent; exec sleep 600")
    until_dead(int((git / "parent").read_text()))


def test_failure_is_an_error_without_secrets(git: Path) -> None:
    with pytest.raises(GitError) as failed:
        call(git, "echo 'fatal: unable to access https://user:canary@host/' >&2; exit 128")
    assert "canary" not in str(failed.value)
