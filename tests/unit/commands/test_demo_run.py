"""`caphv sandbox demo` with a scenario that is played: exit status, what it prints, and whether the sandbox stays."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from caphv.runtime.errors import Unreachable
from commands.main import cli
from sandbox import environment
from sandbox.processes import binaries
from sandbox.processes.children import ProcessError
from sandbox.processes.gobuild import BuildError
from sandbox.scenario import lifecycle
from sandbox.scenario.lifecycle import ScenarioError
from sandbox.scenario.view import MachineRow, Step

pytestmark = pytest.mark.unit


class Played:
    """A sandbox and a scenario whose steps a test names."""

    def __init__(self) -> None:
        self.ups = self.downs = 0
        self.fails = False
        self.error: BaseException | None = None
        self.start_error: BaseException | None = None
        self.folder: Path | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.view: Any = SimpleNamespace(steps=[], machine_rows=lambda: self.rows)
        self.rows: list[MachineRow] = []
        self.spec = SimpleNamespace(namespace="team", name="demo")

    def sandbox(self, folder: Path, _settings: object) -> Any:
        self.folder = folder
        return self

    def scenario(self, _folder: Path, _spec: object) -> Any:
        return self

    async def up(self, _progress: object) -> None:
        self.ups += 1
        if self.start_error:
            raise self.start_error

    async def down(self) -> None:
        self.downs += 1
        assert self.folder
        self.folder.rmdir()

    def page(self) -> str:
        return "http://127.0.0.1:8642/token"

    def status(self) -> dict[str, str]:
        return {"network": "127.10.0.0/16"}

    def kubeconfig(self, name: str) -> str:
        return f"{self.folder}/{name}.kubeconfig"

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        yield

    async def run(self) -> None:
        step = Step("Push a definition")
        self.view.steps.append(step)
        self.on_change()
        self.rows = [MachineRow("cp-1", True, "v1.36.2", "10.0.0.1", "zone-1", "host-1", "Running")]
        self.on_change()
        self.on_change()
        self.rows = []
        step.seconds, step.outcome, step.failed = 1.0, "done", self.fails
        self.on_change()
        if self.error:
            raise self.error
        if self.fails:
            raise ScenarioError("it failed")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Played:
    found = Played()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(environment, "Sandbox", found.sandbox)
    monkeypatch.setattr(lifecycle, "Scenario", found.scenario)
    monkeypatch.setattr(lifecycle, "in_network", lambda spec, _network: spec)
    monkeypatch.setattr(binaries, "prepare", lambda _report, **_core: None)
    return found


def demo(*words: str) -> Result:
    return CliRunner().invoke(cli, ["sandbox", "demo", *words], prog_name="caphv")


def test_a_demo_that_succeeds_removes_its_sandbox(played: Played) -> None:
    result = demo()
    assert result.exit_code == 0, result.output
    assert (played.ups, played.downs) == (1, 1)
    lines = result.output.splitlines()
    assert "Live page: http://127.0.0.1:8642/token" in lines
    assert [line for line in lines if "cp-1" in line] == [
        "    cp-1: Running (control plane v1.36.2 10.0.0.1 zone-1 host-1)",
        "    cp-1: deleted",
    ]
    assert [line for line in lines if "Push a definition" in line] == [
        "▸ Push a definition",
        "✓ Push a definition (1.0 s): done",
    ]
    assert "OK: 1 of 1 steps in" in result.output
    assert "SECONDS" not in result.output
    assert "export KUBECONFIG" not in result.output


def test_a_demo_is_kept_on_request(played: Played) -> None:
    result = demo("--keep")
    assert (result.exit_code, played.downs) == (0, 0), result.output
    assert f"export KUBECONFIG={played.folder}/management.kubeconfig" in result.output
    assert f"caphv sandbox down --dir {played.folder}" in result.output


@pytest.mark.parametrize("words", [(), ("--keep",)])
def test_a_demo_that_fails_keeps_its_sandbox_and_says_where_it_is(played: Played, words: tuple[str, ...]) -> None:
    played.fails = True
    result = demo(*words)
    assert (result.exit_code, played.downs) == (1, 0), result.output
    assert f"logs are in {played.folder}" in result.output
    assert f"caphv sandbox down --dir {played.folder}" in result.output
    assert "OK:" not in result.output
    assert "✗ Push a definition" in result.output


@pytest.mark.parametrize("during", ["start_error", "error"])
@pytest.mark.parametrize("error", [Unreachable("https://127.0.0.1:1: closed"), ProcessError("etcd closed")], ids=type)
def test_a_demo_that_ends_with_an_error_keeps_its_sandbox(played: Played, during: str, error: Exception) -> None:
    setattr(played, during, error)
    result = demo()
    assert (result.exit_code, played.downs) == (1, 0), result.output
    assert "closed" in result.output
    assert f"logs are in {played.folder}" in result.output
    assert f"caphv sandbox down --dir {played.folder}" in result.output


@pytest.mark.parametrize("during", ["start_error", "error"])
def test_a_demo_that_is_interrupted_removes_its_sandbox(played: Played, during: str) -> None:
    setattr(played, during, KeyboardInterrupt())
    result = demo()
    assert (result.exit_code != 0, played.downs) == (True, 1), result.output
    assert "FAILED" not in result.output


def test_a_build_that_fails_is_an_error_and_leaves_no_folder(
    played: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(_report: object, **_core: object) -> None:
        raise BuildError("no Go")

    monkeypatch.setattr(binaries, "prepare", fail)
    result = demo()
    assert (result.exit_code, "no Go" in result.output, played.ups) == (1, True, 0)
    assert list(tmp_path.iterdir()) == []
