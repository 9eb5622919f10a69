"""The progress of builds of the sandbox, on a terminal and in a pipe."""

from __future__ import annotations

import io
import sys

import click
import pytest

from commands.sandbox import common
from sandbox.processes import binaries

pytestmark = pytest.mark.unit


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("done", "total", "line"),
    [(0, 0, "core: build"), (3, 0, "core: build, 3 so far"), (3, 9, "core: build, 3 of 9 packages")],
)
def test_a_pipe_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: int, total: int, line: str
) -> None:
    monkeypatch.setattr(binaries, "plain_report", lambda report: report)
    with common.build_report() as report:
        report("core", "build", done, total)
    written = capsys.readouterr()
    assert (written.err, written.out) == (f"{line}\n", "")


def test_a_terminal_gets_a_bar_for_each_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with common.build_report() as report:
        report("core", "fetch", 0, 0)
        report("core", "build", 3, 9)
        report("helm", "build", 1, 2)
    shown = click.unstyle(terminal.getvalue())
    for part in ("core: build", "3/9", "helm: build", "1/2"):
        assert part in shown[-400:]


def test_a_component_has_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    common.print_part("etcd", 1.25)
    assert capsys.readouterr().out.split() == ["etcd", "1.2", "s"]
