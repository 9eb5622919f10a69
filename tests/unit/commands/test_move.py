"""`caphv move`: whatever ends it after the first pause says that clusters are paused, and what to do."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from click.testing import CliRunner, Result

from caphv.api.object import Key, Resource
from caphv.api.objectid import id_of
from caphv.runtime.errors import ApiError, Forbidden, ServerFault, Unreachable
from commands import move as command
from commands.main import cli
from overview.backup import adoption, dryrun, moving, preflight, reading, writing
from overview.backup.adoption import VirtualMachines
from overview.backup.dryrun import DryRun
from overview.backup.files import Backup, Origin
from overview.backup.writing import Restore
from tests.support.backup import whole_cluster

pytestmark = pytest.mark.unit

AWAY = Unreachable("https://source: no answer")
REFUSED = Forbidden(403, "Forbidden", "may not do that")
PAUSED = "The clusters are paused on the source, where nothing was lost. Correct it and run this again."


@dataclass
class Sides:
    """Both management clusters. `failures` are raised by the steps of these names, one for each call from the pause."""

    failures: dict[str, list[BaseException]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    async def step(self, name: str) -> None:
        self.steps.append(name)
        if "pause" in self.steps and (left := self.failures.get(name)):
            error = left.pop(0)
            if isinstance(error, KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)  # cancels the main task
                await asyncio.sleep(60)
            raise error


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Sides:
    both = Sides()
    objects = {id_of(obj): obj for obj in whole_cluster()}
    backup = Backup(Origin("b", "", "https://source", "source"), ("team/shop",), objects)
    kinds = {("cluster.x-k8s.io", "Cluster"): Resource("cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")}
    vms = VirtualMachines()

    @asynccontextmanager
    async def client(*_: object) -> AsyncIterator[None]:
        yield

    def answer(name: str, value: Any) -> Any:
        async def called(*_: object) -> Any:
            await both.step(name)
            return value

        return called

    monkeypatch.setattr(command, "management_client", client)
    monkeypatch.setattr(command, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(command, "_PAUSE_SECONDS", 10.0)
    monkeypatch.setattr(reading, "read_backup", answer("read", backup))
    monkeypatch.setattr(writing, "prepare", answer("prepare", Restore(backup, "https://target", "target", kinds)))
    for name in ("create", "verify", "unpause"):
        monkeypatch.setattr(writing, name, answer(name, []))
    monkeypatch.setattr(moving, "pause", answer("pause", None))
    monkeypatch.setattr(moving, "not_paused_yet", lambda _: [])
    monkeypatch.setattr(moving, "absent_on", lambda _: [])
    monkeypatch.setattr(moving, "delete_source", answer("delete", []))
    monkeypatch.setattr(adoption, "read_vms", answer("vms", vms))
    monkeypatch.setattr(preflight, "checks", lambda *_: [])
    monkeypatch.setattr(dryrun, "try_creation", answer("try", DryRun()))
    return both


def move(*options: str) -> Result:
    words = ["move", "team/shop", "--to-context", "new", "--yes", *options]
    return CliRunner().invoke(cli, words, env={"KUBECONFIG": "/nowhere"}, prog_name="caphv")


def test_a_move_without_an_error(sides: Sides) -> None:
    result = move()
    assert result.exit_code == 0, result.output
    assert PAUSED not in result.output


@pytest.mark.parametrize(
    "error", [REFUSED, AWAY, ServerFault(500, "", "broken")], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("step", ["prepare", "create", "verify", "unpause", "delete"])
def test_a_request_that_fails_after_the_pause_says_that_clusters_are_paused(
    step: str, error: ApiError | Unreachable, sides: Sides
) -> None:
    sides.failures = {step: [error]}
    result = move()
    assert result.exit_code == 1
    assert f"Error: a request failed: {error}" in result.output
    assert PAUSED in result.output


def test_a_pause_that_fails_says_that_clusters_may_be_paused(sides: Sides) -> None:
    sides.failures = {"pause": [REFUSED]}
    result = move()
    assert result.exit_code == 1
    assert "Error: not all clusters could be paused: may not do that" in result.output
    assert "Clusters may be paused on the source" in result.output


@pytest.mark.parametrize("step", ["read", "create", "vms", "delete"])
def test_an_interrupt_after_the_pause_says_so(step: str, sides: Sides) -> None:
    sides.failures = {step: [KeyboardInterrupt()]}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    result = move()
    signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130
    assert PAUSED in result.output


@pytest.mark.parametrize("step", ["read", "vms"])
def test_a_server_that_does_not_answer_is_asked_again(step: str, sides: Sides) -> None:
    sides.failures = {step: [AWAY, ServerFault(503, "", "starting"), AWAY]}
    result = move()
    assert result.exit_code == 0, result.output


def test_a_server_that_stays_away_is_named(sides: Sides) -> None:
    sides.failures = {"vms": [AWAY] * 10_000}
    result = move("--timeout", "1s")
    assert result.exit_code == 1
    assert "Error: a request failed: https://source: no answer" in result.output
    assert PAUSED in result.output


def test_before_the_pause_no_pause_is_reported(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> Backup:
        raise REFUSED

    monkeypatch.setattr(reading, "read_backup", refused)
    result = move()
    assert result.exit_code == 2
    assert "may not do that" in result.output
    assert PAUSED not in result.output


@pytest.mark.parametrize(("is_there", "status"), [(True, 0), (False, 2)])
def test_a_cluster_that_an_interrupted_move_has_moved_is_found_there(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, is_there: bool, status: int
) -> None:
    async def moved_before(_client: object, _clusters: object, absent: list[Key]) -> set[Key]:
        assert absent == [Key("team", "stage")]
        return set(absent) if is_there else set()

    monkeypatch.setattr(moving, "moved_before", moved_before)
    result = move("team/stage")
    assert result.exit_code == status, result.output
    assert ("pause" in sides.steps) is is_there


def test_a_refused_dry_run_stops_the_move_before_the_pause(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> DryRun:
        return DryRun(("Machine team/shop-0: exceeded quota",))

    monkeypatch.setattr(dryrun, "try_creation", refused)
    result = move()
    assert result.exit_code == 1
    assert "Machine team/shop-0: exceeded quota" in result.output
    assert "override it with --force" in result.output
    assert "pause" not in sides.steps
    assert move("--force").exit_code == 0
