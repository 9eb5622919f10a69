"""`caphv move`: whatever ends it after the first pause says that clusters are paused, and what to do."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner
from click.testing import Result as Outcome

from caphv.api.object import Key
from caphv.runtime.errors import ApiError, Forbidden, ServerFault, Unreachable
from commands import move as command
from commands.main import cli
from operations.backup import dryrun, movedobjects, preflight, reading
from operations.backup.dryrun import DryRun
from operations.backup.files import Backup, Origin
from operations.change import move as protocol
from operations.status.check import Check, Result
from tests.support.movesides import Sides, replace_steps, vms

pytestmark = pytest.mark.unit

AWAY = Unreachable("https://source: no answer")
REFUSED = Forbidden(403, "Forbidden", "may not do that")
PAUSED = "The clusters are paused on the source, where nothing was lost. Correct the cause and run the command again."


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Sides:
    @asynccontextmanager
    async def client(*_: object) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(command, "management_client", client)
    return replace_steps(monkeypatch)


def move(*options: str) -> Outcome:
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
    assert f"Error: a request failed: {error}" in result.stderr
    assert PAUSED in result.stderr


def test_a_pause_that_fails_says_that_clusters_may_be_paused(sides: Sides) -> None:
    sides.failures = {"pause": [REFUSED]}
    result = move()
    assert result.exit_code == 1
    assert "Error: not all clusters could be paused: may not do that" in result.output
    assert "Clusters may be paused on the source" in result.output


@pytest.mark.parametrize("step", ["pause", "read", "create", "vms", "delete"])
def test_an_interrupt_says_that_clusters_may_be_paused(step: str, sides: Sides) -> None:
    sides.failures = {step: [KeyboardInterrupt()]}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    result = move()
    signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130
    assert "Interrupted. Clusters may be paused on the source" in result.stderr
    assert PAUSED not in result.stderr


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
    async def find_moved(_client: object, _clusters: object, absent: list[Key]) -> set[Key]:
        assert absent == [Key("team", "stage")]
        return set(absent) if is_there else set()

    monkeypatch.setattr(movedobjects, "find_moved", find_moved)
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


def test_without_another_management_cluster_it_is_wrong_usage(sides: Sides) -> None:
    result = CliRunner().invoke(cli, ["move", "team/shop", "--yes"], env={"KUBECONFIG": "/nowhere"})
    assert (result.exit_code, "--to-kubeconfig or --to-context" in result.output) == (2, True)
    assert sides.steps == []


def test_a_plan_counts_what_is_moved_and_changes_nothing(sides: Sides) -> None:
    sides.vms = [vms("source")]
    text = move("--dry-run")
    assert (text.exit_code, "pause" in sides.steps) == (0, False)
    assert "moves team/shop to https://target:" in text.stdout
    assert "      1  Cluster" in text.stdout.splitlines()
    assert "on the source afterwards; 1 VM keeps running" in text.stdout
    data = json.loads(move("--dry-run", "-o", "json").stdout)
    assert (data["items"], data["target"], data["checks"]) == (
        [{"cluster": "team/shop", "applied": False}],
        "https://target",
        [],
    )
    assert data["objects"]["Cluster"] == 1


def test_a_check_that_fails_ends_a_plan_with_status_1(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Check("vms", "Move", Result.ERROR, "a VM is absent", "restore it")
    monkeypatch.setattr(preflight, "checks", lambda *_: [wrong])
    result = move("--dry-run")
    assert (result.exit_code, "a VM is absent" in result.stdout) == (1, True)
    result = move()
    assert (result.exit_code, "Nothing was changed: a check failed." in result.stderr) == (1, True)
    assert "pause" not in sides.steps


def test_with_data_on_standard_output_progress_is_on_standard_error(sides: Sides) -> None:
    result = move("-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["items"] == [{"cluster": "team/shop", "applied": True}]
    assert "paused on the source" in result.stderr
    assert "paused on the source" in move().stdout


def test_an_empty_namespace_is_no_move(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> Backup:
        return Backup(Origin("b", "", "https://source", "source"), (), {})

    monkeypatch.setattr(reading, "read_backup", nothing)
    words = ["move", "-n", "empty", "--to-context", "new", "--yes"]
    result = CliRunner().invoke(cli, words, env={"KUBECONFIG": "/nowhere"}, prog_name="caphv")
    assert (result.exit_code, "no clusters in namespace empty; all namespaces: -A" in result.output) == (2, True)
    words = ["move", "-A", "--to-context", "new", "--yes"]
    result = CliRunner().invoke(cli, words, env={"KUBECONFIG": "/nowhere"}, prog_name="caphv")
    assert (result.exit_code, "Error: no clusters on Harvester are in this" in result.output) == (2, True)
    assert "no such cluster on Harvester: team/shop" in move().output


def test_a_pause_that_is_not_confirmed_stops_the_move_unless_it_is_forced(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(movedobjects, "unpaused_objects", lambda _: [f"HarvesterMachine team/{n}" for n in range(7)])
    result = move()
    assert (result.exit_code, "create" in sides.steps) == (1, False)
    assert "the pause of HarvesterMachine team/0, HarvesterMachine team/1, " in result.output
    assert "HarvesterMachine team/4 and 2 more: does it run?" in result.output
    assert move("--force").exit_code == 0
