"""`caphv sandbox fault`: which faults are injected and cleared, and what is wrong usage."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from commands.main import cli
from commands.sandbox import fault as command
from sandbox import chaos
from sandbox.harvester.faults import KINDS, Fault

pytestmark = pytest.mark.unit


class Faults:
    """Remembers what was asked of the simulated Harvester."""

    def __init__(self) -> None:
        self.injected: list[Fault] = []
        self.cleared: list[tuple[str, str]] = []
        self.current: list[str] = []

    def inject(self, fault: Fault) -> str:
        self.injected.append(fault)
        return f"injected {fault.name}"

    def active(self) -> list[str]:
        return self.current

    def clear(self, kind: str, target: str) -> list[str]:
        self.cleared.append((kind, target))
        return self.current


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    found = Faults()

    def call(_box: object, work: Callable[[Faults], Awaitable[Any]]) -> Any:
        return work(found)

    monkeypatch.setattr(command, "_sandbox", lambda *_: "sandbox")
    monkeypatch.setattr(command, "_with_faults", call)
    return found


def fault(*words: str) -> Result:
    return CliRunner().invoke(cli, ["sandbox", "fault", *words], prog_name="caphv")


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_takes_a_target_where_it_has_one(faults: Faults, name: str) -> None:
    targets = ["one"] if KINDS[name].target else []
    result = fault(name, *targets)
    assert (result.exit_code, result.stdout) == (0, f"injected {name}\n"), result.output
    (injected,) = faults.injected
    assert (injected.name, injected.target) == (name, "".join(targets))
    assert fault(name, *targets, "another").exit_code == 2
    if targets:
        assert fault(name).exit_code == 2
    assert (fault(name, *targets, "--share", "0.5").exit_code == 0) is KINDS[name].in_transport
    assert (fault(name, *targets, "--delay", "1").exit_code == 0) is (name == "slow")


def test_chaos_runs_its_schedule(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[object, list[object]]] = []
    monkeypatch.setattr(chaos, "run", lambda _box, target, steps, _report: runs.append((target, steps)))
    result = fault("chaos", "--seed", "7", "--seconds", "300", "--no-kills")
    assert result.exit_code == 0, result.output
    steps = chaos.schedule(7, 300.0, kills=False)
    assert runs == [(faults, steps)]
    assert f"{len(steps)} steps done; no fault is active" in result.stdout
    fault("chaos")
    assert runs[1][1] == chaos.schedule(1, 60.0, kills=True)
    assert fault("chaos", "--seconds", "0").exit_code == 2


def test_faults_are_listed_and_cleared(faults: Faults) -> None:
    assert fault("list").stdout == fault("clear").stdout == "no faults\n"
    assert fault("clear", "away").stdout == "no such fault is active\n"
    faults.current = ["away", "slow"]
    assert fault("list").stdout == "away\nslow\n"
    fields = {"name": "slow", "target": "", "share": 1.0, "delay": 2.0}
    faults.current = [SimpleNamespace(**fields)]  # type: ignore[list-item]
    assert json.loads(fault("list", "-o", "json").stdout) == {"items": [fields]}
    faults.current = ["away", "slow"]
    assert fault("clear").stdout == "cleared: away\ncleared: slow\n"
    fault("clear", "host-failure", "harvester-1")
    assert faults.cleared == [("", ""), ("away", ""), ("", ""), ("host-failure", "harvester-1")]
    unknown = fault("clear", "awya")
    assert (unknown.exit_code, len(faults.cleared)) == (2, 4)
