"""Between the commit that lifts a protection and the one that removes the file, Fleet has time to read the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import Key, Obj
from packager.contents.uninstall import Waiting
from packager.definitions.builder import Builder
from packager.definitions.files import NAMES
from packager.definitions.source import Reader
from packager.git.changeplan import Plan
from packager.git.directory import Directory
from packager.planning.commitplan import commit_plan
from packager.planning.planner import Planner
from packager.planning.state import ManagementState
from packager.rendering.bundler import Bundler
from tests.support.packager.definitions import k3s

pytestmark = pytest.mark.unit

BUNDLER = Bundler()
CLUSTER = Key("team-a", "edge")
MANIFEST = "manifests/team-a/edge"
FIXED = "15 minutes after Fleet can read that"


class Site:
    """A repository, its packager, and a clock. Without `waits`, a user decides when to sync."""

    def __init__(self, folder: Path, clock: list[float], *, namespace: str = "", waits: bool = True) -> None:
        self.file = folder / MANIFEST / "cluster" / "cluster.yaml"
        self.clock = clock
        self._store = Directory(folder, names=NAMES)
        self._planner = Planner(BUNDLER, Builder(BUNDLER.renderer), max_prune=100, namespace=namespace)
        self._reader = Reader(lambda _: [])
        self._waiting = Waiting(lambda: None) if waits else None

    def sync(self, *definitions: Obj, after: float = 0.0, **state: Any) -> Plan:
        self.clock[0] += after
        files = {f"{obj['metadata']['name']}.yaml": yaml.safe_dump(obj).encode() for obj in definitions}
        waited = self._waiting.waited() if self._waiting else None
        management = ManagementState(waited=waited, **state)
        plan = commit_plan(self._store, self._planner, management, self._reader.read(files)).result.plan
        if self._waiting:
            self._waiting.note(plan.held)
        return plan

    @property
    def pools(self) -> list[str]:
        objects = yaml.safe_load_all(self.file.read_text())
        return [obj["metadata"]["name"] for obj in objects if obj["kind"] == "MachineDeployment"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("packager.contents.uninstall.time.monotonic", lambda: now[0])
    return now


def cluster(*pools: str, confirmed: bool = False) -> Obj:
    workers = [{"name": name, "replicas": 0} for name in pools]
    obj = k3s("edge", individualObjects=True, workers=workers)
    obj["metadata"]["namespace"] = "team-a"
    if confirmed:
        obj["metadata"]["annotations"] = {"caphv.io/confirm-removal": "true"}
    return obj


def test_a_dropped_pool_waits_for_fleet(tmp_path: Path, clock: list[float]) -> None:
    site = Site(tmp_path, clock)
    site.sync(cluster("one", "two"))
    for after in (0.0, 60.0, 899.0):
        (held,) = site.sync(cluster("one"), after=after).held
        assert held.what == f"{MANIFEST}/MachineDeployment/edge-two"
        assert FIXED in held.why
        assert site.pools == ["edge-one", "edge-two"]
    assert site.sync(cluster("one"), after=1.0).held == ()
    assert site.pools == ["edge-one"]


def test_pools_that_are_dropped_one_after_the_other_are_removed_together(tmp_path: Path, clock: list[float]) -> None:
    site = Site(tmp_path, clock)
    site.sync(cluster("one", "two", "three"))
    site.sync(cluster("one", "two"))
    site.sync(cluster("one", "two"), after=60.0)
    for after in (600.0, 60.0, 300.0, 599.0):
        site.sync(cluster("one"), after=after)
        assert len(site.pools) == 3
    site.sync(cluster("one"), after=1.0)
    assert site.pools == ["edge-one"]


def test_a_user_decides_when_to_sync_again(tmp_path: Path, clock: list[float]) -> None:
    site = Site(tmp_path, clock, waits=False)
    site.sync(cluster("one", "two"), live=False)
    (held,) = site.sync(cluster("one"), live=False).held
    assert "sync again" in held.why
    site.sync(cluster("one"), live=False)
    assert site.pools == ["edge-one"]
    (held,) = site.sync(live=False, confirmed=frozenset({CLUSTER})).held
    assert "confirm again" in held.why
    site.sync(live=False, confirmed=frozenset({CLUSTER}))
    assert not site.file.exists()


@pytest.mark.parametrize(
    ("namespace", "live", "is_visible"),
    [("", True, True), ("team-a", True, True), ("team-b", True, False), ("", False, False)],
    ids=["all", "own", "other", "command"],
)
def test_a_cluster_that_is_not_visible_waits_for_fleet(
    tmp_path: Path, clock: list[float], namespace: str, live: bool, is_visible: bool
) -> None:
    site = Site(tmp_path, clock, namespace=namespace)
    site.sync(cluster("one"), live=live)
    site.sync(cluster("one", confirmed=True), live=live)
    for after in (0.0, 899.0):
        plan = site.sync(after=after, live=live)
        assert site.file.exists() is not is_visible
        assert [FIXED in held.why for held in plan.held] == ([] if is_visible else [True])
        if not is_visible:
            assert plan.held[0].what == MANIFEST
    site.sync(after=1.0, live=live)
    assert not site.file.exists()


def test_a_command_in_a_loop_waits_between_its_two_commits(tmp_path: Path, clock: list[float]) -> None:
    site = Site(tmp_path, clock)
    confirmed = frozenset({CLUSTER})
    site.sync(cluster("one"), live=False)
    for after in (0.0, 60.0, 899.0):
        (held,) = site.sync(after=after, live=False, confirmed=confirmed).held
        assert (held.what, FIXED in held.why) == (MANIFEST, True)
    # A cluster that is defined again is not removed, and a later removal waits again.
    site.sync(cluster("one"), after=1.0, live=False, confirmed=confirmed)
    assert "keep" in site.file.read_text()
    for after in (0.0, 60.0, 899.0):
        assert site.sync(after=after, live=False, confirmed=confirmed).held
    site.sync(after=1.0, live=False, confirmed=confirmed)
    assert not site.file.exists()
