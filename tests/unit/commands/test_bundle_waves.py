"""`caphv bundles upgrade` with a management cluster in memory in which a test plays the packager."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from caphv.api.object import Key, Obj
from packager.addons.versions import Versions
from packager.git.errors import AccessDenied, GitError, Unreachable
from packager.git.repository import Repository
from packager.git.snapshot import Snapshot
from packager.upgrade import request as upgrade_request
from packager.upgrade import rolloutfile
from packager.upgrade.request import Request
from packager.upgrade.rollout import Rollout, State
from tests.support.commandservers import Servers
from tests.support.packager.commands import manifest
from tests.support.packager.repositories import Origin

pytestmark = pytest.mark.unit

OLDER = "2026.11"
REQUEST = Request(("canary", "10%", "rest"), 600.0, OLDER)
OPTIONS = "--waves", "canary,10%,rest", "--gate", "ready=10m", "--release", OLDER
A, B = Key("team", "a"), Key("team", "b")


@dataclass
class Clock:
    """Time that passes while a command waits; the packager then does its next step."""

    now: float
    steps: Iterator[Callable[[], None]] = field(default_factory=lambda: iter(()))

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        next(self.steps, lambda: None)()


class Case:
    """Clusters `a` (canary), `b` and `c`, whose bundles have the newest release."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        self.servers, self.origin = Servers(monkeypatch, folder), Origin.make(folder / "origin.git")
        self.clock = Clock(time.monotonic())
        monkeypatch.setattr("commands.bundles.waves.time", self.clock)
        self.servers.management.serve("cluster.x-k8s.io/v1beta2", "ClusterClass")
        self.servers.management.serve("infrastructure.cluster.x-k8s.io/v1beta1", "HarvesterCluster")
        self.put("a", **{"caphv.io/wave": "canary"})
        self.put("b")
        self.put("c")
        pushed = self.bundles("push")
        assert pushed.exit_code == 0, pushed.output
        self.newest = set(self.releases().values()).pop()

    def put(self, name: str, addons: Obj | None = None, **labels: str) -> None:
        """Store a Cluster on the management cluster."""
        self.servers.management.put({"apiVersion": "cluster.x-k8s.io/v1beta2", **manifest(name, addons, **labels)})

    def bundles(self, command: str, *more: str) -> Result:
        return self.servers.caphv("bundles", command, *more, "--repo", self.origin.url)

    def upgrade(self, *more: str) -> Result:
        return self.bundles("upgrade", *more)

    def request(self, file: str = "caphv-upgrade.yaml", branch: str = "main") -> Request | None:
        """The request in the repository."""
        content = self.origin.files(branch).get(file)
        return upgrade_request.parse_file(content.encode()) if content else None

    def packager_steps(self, *states: Rollout) -> None:
        """Have the packager write one state after the other, and remove the request with the last."""

        def write(state: Rollout) -> None:
            if not state.is_active:
                self.origin.remove("caphv-upgrade.yaml")
            self.origin.push({"caphv-upgrade.status.yaml": rolloutfile.serialize(state).decode()})

        self.clock.steps = iter([lambda state=state: write(state) for state in states])  # type: ignore[misc]

    def releases(self) -> dict[str, str]:
        """Releases of the clusters' bundles in the repository."""
        listed = json.loads(self.bundles("list", "-o", "json").stdout)
        return {row["name"].split("/")[1]: row["versions"]["release"] for row in listed["items"]}


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Case:
    for name in ("REPO", "BRANCH", "PATH", "CREDENTIALS", "REVIEW"):
        monkeypatch.delenv(f"CAPHV_GIT_{name}", raising=False)
    return Case(monkeypatch, tmp_path)


def state(of: State, wave: int = 1, **fields: Any) -> Rollout:
    waves = ("canary", (A,)), ("rest", (B,))
    before = {A: Versions("2", "v2", {})} if of is State.PROGRESSING else {}
    return Rollout(OLDER, REQUEST, waves, of, wave, 1_800_000_000.0, before, **fields)


def test_a_dry_run_shows_the_waves_and_commits_nothing(case: Case) -> None:
    shown = json.loads(case.upgrade("--waves=canary,50%,rest", *OPTIONS[2:], "--dry-run", "-o", "json").stdout)
    assert [wave["clusters"] for wave in shown["items"]] == [["team/a"], ["team/b", "team/c"]]
    shown = json.loads(case.upgrade(*OPTIONS, "-l", "caphv.io/wave", "--dry-run", "-o", "json").stdout)
    assert [wave["clusters"] for wave in shown["items"]] == [["team/a"]]
    assert case.origin.count() == 1


def test_an_upgrade_in_waves_is_requested_by_one_file_and_changes_no_cluster(case: Case) -> None:
    before = case.origin.files()
    done = case.upgrade(*OPTIONS, "-l", "tier=edge", "--message", "For CVE-1", "--author", "Ann <a@example.com>")
    assert (done.exit_code, case.origin.count()) == (0, 2), done.output
    after = case.origin.files()
    assert {path for path in after if after[path] != before.get(path)} == {"caphv-upgrade.yaml"}
    assert case.request() == Request(REQUEST.waves, REQUEST.gate, OLDER, "tier=edge")
    assert case.origin.message() == "Upgrade add-ons in waves: canary, 10%, rest\n\nFor CVE-1"
    # The same again is the same request.
    again = case.upgrade(*OPTIONS, "-l", "tier=edge")
    assert (again.exit_code, case.origin.count()) == (0, 2)
    assert "nothing changed" in again.stdout


def test_a_request_can_be_reviewed_and_is_for_one_of_several_packagers(case: Case) -> None:
    done = case.upgrade(*OPTIONS, "--packager", "blue-team-a", "--review", "caphv/upgrade")
    assert done.exit_code == 0, done.output
    file = "caphv-upgrade-blue-team-a.yaml"
    assert (case.request(file), case.request(file, "caphv/upgrade")) == (None, REQUEST)


def test_a_request_is_written_into_a_checkout(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "checkout"
    folder.mkdir()
    done = case.servers.caphv("bundles", "upgrade", *OPTIONS, "--folder", str(folder))
    assert done.exit_code == 0, done.output
    assert upgrade_request.parse_file((folder / "caphv-upgrade.yaml").read_bytes()) == REQUEST
    assert case.servers.caphv("bundles", "upgrade", "--stop", "--folder", str(folder)).exit_code == 0
    assert not (folder / "caphv-upgrade.yaml").exists()


def test_a_stop_removes_the_request(case: Case) -> None:
    nothing = case.upgrade("--stop")
    assert (nothing.exit_code, case.origin.count()) == (0, 1)
    case.upgrade(*OPTIONS)
    assert case.upgrade("--stop", "--message", "Too slow").exit_code == 0
    assert case.request() is None
    assert case.origin.message() == "Stop the upgrade of add-ons\n\nToo slow"


@pytest.mark.parametrize(
    ("end", "status", "texts"),
    [
        (state(State.COMPLETE, 2), 0, ["Complete: release 2026.11, wave 2 of 2 (rest)"]),
        (
            state(State.COMPLETE, 2, left_out={B: ("cni.mtu: 1",)}, kept_releases={B: "2"}),
            1,
            ["Complete: release 2026.11", "left out  team/b: cni.mtu: 1"],
        ),
        (
            state(State.REVERTED, problems={A: ("image cannot be pulled",)}),
            1,
            ["Reverted: release 2026.11, wave 1 of 2 (canary)", "not ready  team/a: image cannot be pulled"],
        ),
        (state(State.STOPPED), 1, ["Stopped: release 2026.11"]),
    ],
)
def test_a_command_that_waits_reports_the_end(case: Case, end: Rollout, status: int, texts: list[str]) -> None:
    case.packager_steps(state(State.PROGRESSING), end)
    done = case.upgrade(*OPTIONS, "--wait")
    assert done.exit_code == status, done.output
    assert [text for text in texts if text not in done.stdout] == []

    # The end of an earlier upgrade is not that of the next one, which has the same request.
    case.packager_steps(state(State.PROGRESSING), state(State.COMPLETE, 2))
    done = case.upgrade(*OPTIONS, "--wait", "-o", "json")
    assert done.exit_code == 0, done.output
    status = yaml.safe_load(case.origin.files()["caphv-upgrade.status.yaml"])
    assert json.loads(done.stdout) == {"items": status.pop("waves"), **status}


def test_a_command_does_not_wait_forever(case: Case) -> None:
    done = case.upgrade(*OPTIONS, "--wait", "--timeout", "10m")
    assert done.exit_code == 1
    assert "timed out: the packager has not started the upgrade" in done.stderr
    case.packager_steps(state(State.PROGRESSING))
    done = case.upgrade(*OPTIONS, "--wait", "--timeout", "10m")
    assert done.exit_code == 1
    assert "timed out: wave 1 of 2 (canary), 1 cluster; it continues" in done.stderr
    assert case.request() == REQUEST


def test_a_command_says_why_it_cannot_see_the_upgrade(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[GitError] = [Unreachable("git.example.com: no answer")] * 1000
    read = Repository.read

    def fail(repository: Repository, call: Callable[[Snapshot], object]) -> object:
        # The request is pushed before the host stops answering.
        return read(repository, call) if case.request() is None else raise_(failures.pop())

    monkeypatch.setattr(Repository, "read", fail)
    done = case.upgrade(*OPTIONS, "--wait", "--timeout", "10m")
    assert done.exit_code == 1
    assert "the repository cannot be read: git.example.com: no answer" in done.stderr
    assert "it continues" not in done.stderr

    failures[:] = [AccessDenied("git.example.com: access denied")]
    done = case.upgrade(*OPTIONS, "--wait", "--timeout", "10m")
    assert done.exit_code == 2
    assert "access denied" in done.stderr
    assert failures == []


def raise_(error: Exception) -> object:
    raise error


def test_a_command_does_not_wait_for_another_upgrade(case: Case) -> None:
    other = upgrade_request.serialize(Request(("rest",), 60.0)).decode()
    case.clock.steps = iter([lambda: case.origin.push({"caphv-upgrade.yaml": other}) and None])
    done = case.upgrade(*OPTIONS, "--wait")
    assert done.exit_code == 1
    assert "now requests another upgrade" in done.stderr


@pytest.mark.parametrize("former", [None, replace(state(State.COMPLETE, 2), request=Request(("rest",), 60.0))])
def test_a_command_does_not_wait_for_an_upgrade_that_was_stopped_before_it_started(
    case: Case, former: Rollout | None
) -> None:
    if former:
        case.origin.push({"caphv-upgrade.status.yaml": rolloutfile.serialize(former).decode()})
    case.clock.steps = iter([lambda: None, lambda: case.origin.remove("caphv-upgrade.yaml") and None])
    done = case.upgrade(*OPTIONS, "--wait")
    assert done.exit_code == 1
    assert "caphv-upgrade.yaml was removed before the packager started the upgrade" in done.stderr


def test_a_damaged_status_ends_the_wait(case: Case) -> None:
    case.clock.steps = iter([lambda: case.origin.push({"caphv-upgrade.status.yaml": "waves: ["}) and None])
    done = case.upgrade(*OPTIONS, "--wait")
    assert done.exit_code == 2
    assert "caphv-upgrade.status.yaml is damaged" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--waves", "canary,rest"],
        ["--gate", "ready=1m", "--all"],
        ["--waves", "canary,rest", "--gate", "1m"],
        ["--waves", "canary,rest", "--gate", "done=1m"],
        ["--waves", "canary", "--gate", "ready=1m"],
        ["--waves", "canary,rest", "--gate", "ready=1m", "--count", "1"],
        ["--waves", "canary,rest", "--gate", "ready=1m", "--all"],
        ["--waves", "canary,rest", "--gate", "ready=1m", "-n", "team"],
        ["--waves", "canary,rest", "--gate", "ready=1m", "a.yaml"],
        ["--waves", "canary,rest", "--gate", "ready=1m", "--stop"],
        ["--waves", "canary,rest", "--gate", "ready=1m", "--wait", "--review", "caphv/x"],
        ["--waves", "canary,rest", "--gate", "ready=1m", "--wait", "--dry-run"],
        ["--waves", "canary,rest", "--gate", "ready=1m", "--release", "none"],
        ["--waves", "canary,rest", "--gate", "ready=1m", "-l", "a in"],
        ["--waves", "canary,rest", "--gate", "ready=200h"],
        ["--waves", "canary,rest", "--gate", "ready=1m", "--packager", "../x"],
        ["--all", "--wait"],
        ["--all", "--packager", "team"],
        ["--stop", "--release", OLDER],
        ["--all", "--release", "none"],
    ],
)
def test_wrong_usage_commits_nothing(case: Case, options: list[str]) -> None:
    assert case.bundles("upgrade", *options).exit_code == 2
    assert case.origin.count() == 1


def test_an_upgrade_at_once_leaves_the_rest_as_it_is(case: Case) -> None:
    shown = case.bundles("upgrade", "--count", "1", "--release", OLDER, "--dry-run")
    assert "+++ b/clusters/team/a/" in shown.stdout
    assert "+++ b/clusters/team/b/" not in shown.stdout
    assert case.origin.count() == 1
    assert case.bundles("upgrade", "--count", "1", "--release", OLDER).exit_code == 0
    assert case.releases() == {"a": OLDER, "b": case.newest, "c": case.newest}
    assert f"Upgrade to release {OLDER} of the bundles." in case.origin.message()
