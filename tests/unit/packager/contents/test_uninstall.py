"""Fleet uninstalls an add-on when its cluster disables it, and at no other time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from packager.addons.facts import ClusterFacts
from packager.contents.uninstall import Waiting
from packager.git.commit import Reason
from packager.git.directory import Directory
from packager.git.pruning import Pruning, Skipped
from packager.git.snapshot import Snapshot
from packager.planning.commitplan import commit_plan
from packager.planning.planner import Planner
from packager.planning.state import ManagementState
from packager.rendering.bundler import Bundler
from packager.rendering.bundles import bundle_name
from packager.rendering.options import RenderOptions
from packager.tree import CLUSTERS
from tests.support.packager.examples import KUBEADM, cluster

pytestmark = pytest.mark.unit
OFF: dict[str, Any] = {"enabled": False}
FOLDER = f"{CLUSTERS}/clusters/a"
PLANNER = Planner(Bundler())


class Site:
    """A repository, and what Fleet's agent has installed: each release remembers `keepResources` as deployed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Directory(folder, names=(CLUSTERS,))
        self.installed: dict[str, bool] = {}

    def push(
        self,
        facts: ClusterFacts,
        applied: frozenset[str] | None = None,
        *,
        budget: int = 99,
        planner: Planner = PLANNER,
    ) -> dict[str, str]:
        """Push one cluster; return what stays and why."""
        pruning = Pruning(complete=True, budget=budget)
        state = ManagementState((facts,), live=False, pruning=pruning, uninstallable=applied)
        planned, result = commit_plan(self.store, planner, state)
        assert all(found.ok for found in planned.batch.rendered), planned.batch.rendered
        return {held.what.rpartition("/")[2]: held.why for held in result.plan.held}

    def bundles(self) -> dict[str, Any]:
        """Bundles in the repository, by folder."""
        snapshot = self.store.sync()
        found = {
            name: snapshot.read(f"{FOLDER}/{name}/fleet.yaml") for name in snapshot.entries(FOLDER) if "." not in name
        }
        return {name: yaml.safe_load(content or b"") for name, content in found.items()}

    def fleet(self, *, lost: bool = False) -> set[str]:
        """Fleet reads the repository, or nothing where its path is lost. Return what it uninstalls."""
        now = {} if lost else {name: bool(found.get("keepResources")) for name, found in self.bundles().items()}
        uninstalled = {name for name, keep in self.installed.items() if name not in now and not keep}
        self.installed = now
        return uninstalled


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def facts(addons: dict[str, Any], *, allowed: bool = False, **more: Any) -> ClusterFacts:
    found = cluster("a", addons, **more)
    if allowed:
        found.cluster["metadata"]["annotations"]["addons.caphv.io/allow-network-change"] = "true"
    return found


def test_a_disabled_add_on_is_uninstalled_in_two_commits(site: Site) -> None:
    site.push(facts({}))
    assert site.fleet() == set()
    assert "may uninstall it now" in site.push(facts({"csi": OFF}))["csi"]
    assert site.bundles()["csi"]["keepResources"] is False
    assert site.fleet() == set()
    assert site.push(facts({"csi": OFF})) == {}
    assert "csi" not in site.bundles()
    assert site.fleet() == {"csi"}


def test_enabling_it_again_between_the_commits_protects_it_again(site: Site) -> None:
    site.push(facts({}))
    before = site.bundles()
    site.push(facts({"csi": OFF}))
    site.push(facts({}))
    assert site.bundles() == before


def test_the_second_commit_waits_until_fleet_has_deployed_the_first(site: Site) -> None:
    disabled = facts({"csi": OFF})
    site.push(facts({}), frozenset())
    site.push(disabled, frozenset())
    before = site.bundles()
    assert "waiting until Fleet has deployed" in site.push(disabled, frozenset())["csi"]
    assert site.bundles() == before
    assert site.push(disabled, frozenset({bundle_name(disabled.key, "csi")})) == {}
    assert "csi" not in site.bundles()


def test_a_cni_is_uninstalled_only_when_asked_twice(site: Site) -> None:
    none = {"cni": {"name": "none"}}
    site.push(facts({}))
    before = site.bundles()
    for _ in range(3):
        assert "allow-network-change=true" in site.push(facts(none))["cni"]
        assert site.bundles()["cni"] == before["cni"]
        assert site.fleet() == set()
    site.push(facts(none, allowed=True))
    site.fleet()
    assert site.push(facts(none, allowed=True)) == {}
    assert site.fleet() == {"cni"}


def test_force_is_the_second_question_too(site: Site) -> None:
    forced = Planner(Bundler(RenderOptions(force=True)))
    site.push(facts({}))
    site.push(facts({"cni": {"name": "none"}}), planner=forced)
    assert site.bundles()["cni"]["keepResources"] is False


def test_crds_outlive_their_bundle(site: Site) -> None:
    calico = {"cni": {"name": "calico"}}
    site.push(facts(calico, spec=KUBEADM))
    assert {"cni-crds", "csi-crds", "snapshot-controller"} <= set(site.bundles())
    site.fleet()
    site.push(facts({**calico, "csi": OFF}, spec=KUBEADM))
    assert "csi-crds" not in site.bundles()
    # What is uninstalled must not wait for a bundle that no longer exists.
    assert "dependsOn" not in site.bundles()["snapshot-controller"]
    site.fleet()
    site.push(facts({**calico, "csi": OFF}, spec=KUBEADM))
    assert site.fleet() == {"csi", "snapshot-controller"}
    site.push(facts({"csi": OFF}, spec=KUBEADM, allowed=True))
    assert "cni-crds" not in site.bundles()
    assert "cni-crds" not in site.fleet()


def test_add_ons_stay_installed_where_the_cluster_says_so(site: Site) -> None:
    kept = {"fleet": {"keepResources": True}}
    site.push(facts(kept))
    site.fleet()
    assert site.push(facts({**kept, "csi": OFF, "cni": {"name": "none"}})) == {}
    assert set(site.bundles()) == {"ccm"}
    assert site.fleet() == set()


def test_too_many_removals_release_nothing(site: Site) -> None:
    site.push(facts({}))
    before = site.bundles()
    assert "--max-prune" in site.push(facts({"csi": OFF}), budget=0)["csi"]
    assert site.bundles()["csi"] == before["csi"]


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "csi": st.just(OFF),
        "ccm": st.sampled_from([OFF, {"loadBalancer": {"ipam": "pool"}}]),
        "cni": st.just({"name": "none"}),
        "fleet": st.sampled_from([{"keepResources": True}, {"keepResources": False}]),
    },
)
STEPS = st.lists(st.tuples(st.just("push"), SETTINGS) | st.tuples(st.sampled_from(["fleet", "lost"]), st.none()))


@settings(max_examples=40)
@given(STEPS)
def test_nothing_is_uninstalled_by_accident(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    site = Site(tmp_path_factory.mktemp("site"))
    wanted: dict[str, Any] = {}
    read: dict[str, Any] = {}
    for step, addons in steps:
        if step == "push":
            spec = {"topology": {"classRef": {"name": "harvester-rke2"}, "version": "v1.36.2+rke2r1"}}
            site.push(facts(wanted := addons, spec=spec))
            continue
        # A path that is lost before Fleet reads a commit is as if the commit had not been made.
        read = read if step == "lost" else wanted
        uninstalled = site.fleet(lost=step == "lost")
        assert "cni" not in uninstalled
        enabled = {name for name in ("csi", "ccm") if read.get(name) != OFF}
        assert not uninstalled & enabled, "an add-on that the cluster wants"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    now = [0.0]
    monkeypatch.setattr("packager.contents.uninstall.time.monotonic", lambda: now[0])
    return now


def test_removals_wait_a_fixed_time_where_fleet_is_not_visible(clock: list[float]) -> None:
    waiting = Waiting(lambda: None)
    held = [Skipped(f"{FOLDER}/csi", "because", "1"), Skipped("manifests/clusters/a", "because")]
    name = bundle_name(facts({}).key, "csi")
    for clock[0], over in ((0.0, set()), (899.0, set()), (900.0, {name})):
        waiting.note(held)
        assert waiting.uninstallable_bundles() == over
    waiting.note([])
    waiting.note(held)
    assert waiting.uninstallable_bundles() == set()
    clock[0] += 900
    assert waiting.uninstallable_bundles() == {name}
    # Another release of the same bundle.
    waiting.note([Skipped(f"{FOLDER}/csi", "because", "2")])
    assert waiting.uninstallable_bundles() == set()
    assert Waiting(lambda: frozenset({"csi-a"})).uninstallable_bundles() == {"csi-a"}


class Blind(Site):
    """A repository whose Fleet is not visible; with `review` every commit is only proposed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.waiting = Waiting(lambda: None)
        self.merged: Snapshot | None = None

    def push(self, facts: ClusterFacts, *_: Any, budget: int = 99, **__: Any) -> dict[str, str]:
        state = ManagementState(
            (facts,),
            live=False,
            pruning=Pruning(complete=True, budget=budget),
            uninstallable=self.waiting.uninstallable_bundles(),
        )
        snapshot = self.store.sync()
        proposed = Snapshot(snapshot._objects, snapshot.commit, merged=self.merged)
        plan = PLANNER.plan(proposed, state).plan
        self.store.commit(lambda _: plan, Reason("a test"))
        self.waiting.note(plan.held)
        return {held.what.rpartition("/")[2]: held.why for held in plan.held}


def test_no_time_passes_before_fleet_may_uninstall(tmp_path: Path, clock: list[float]) -> None:
    blind, disabled = Blind(tmp_path), facts({"csi": OFF})
    blind.push(facts({}))
    for clock[0] in (0.0, 2000.0):
        assert "--max-prune" in blind.push(disabled, budget=0)["csi"]
    for clock[0], waits in ((2000.0, "may uninstall it now"), (2001.0, "waiting until"), (2900.0, "waiting until")):
        assert waits in blind.push(disabled)["csi"]
    clock[0] = 2901.0
    assert blind.push(disabled) == {}
    assert "csi" not in blind.bundles()


def test_no_time_passes_while_a_release_is_only_proposed(tmp_path: Path, clock: list[float]) -> None:
    blind, disabled = Blind(tmp_path), facts({"csi": OFF})
    blind.push(facts({}))
    blind.merged = blind.store.sync()
    for clock[0] in (0.0, 2000.0):
        assert "may uninstall it now" in blind.push(disabled)["csi"]
    blind.merged = None
    for clock[0] in (2001.0, 2900.0):
        assert "waiting until" in blind.push(disabled)["csi"]
    clock[0] = 2901.0
    assert blind.push(disabled) == {}


def test_a_cni_waits_from_its_release_on(tmp_path: Path, clock: list[float]) -> None:
    blind, none = Blind(tmp_path), {"cni": {"name": "none"}}
    blind.push(facts({}))
    for clock[0] in (0.0, 2000.0):
        assert "allow-network-change=true" in blind.push(facts(none))["cni"]
    assert "may uninstall it now" in blind.push(facts(none, allowed=True))["cni"]
    for clock[0] in (2001.0, 2900.0):
        assert "waiting until" in blind.push(facts(none, allowed=True))["cni"]


def test_options_that_a_user_edited_are_released_whatever_they_hold(site: Site) -> None:
    site.push(cluster("a", {"ccm": {"enabled": True}}))
    file = site.folder / FOLDER / "ccm" / "fleet.yaml"
    file.write_text(f"{file.read_text()}7: 2026-01-01\n")
    assert "ccm" in site.push(cluster("a", {"ccm": {"enabled": False}}))
    assert site.bundles()["ccm"]["7"] == "2026-01-01"
