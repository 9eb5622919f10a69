"""One cluster's fault is that cluster's alone, and takes nothing away from it."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from packager.addons.facts import ClusterFacts
from packager.git.pruning import Pruning
from packager.git.remote import Remote
from packager.git.repository import Repository
from packager.planning.commitplan import commit_plan
from packager.planning.planner import Planner
from packager.planning.state import ManagementState, Pins
from packager.rendering.bundler import Bundler
from tests.support.packager.examples import cluster
from tests.support.packager.repositories import Origin
from tests.support.packager.tables import older_table

pytestmark = pytest.mark.unit
ALL = Pruning(complete=True, budget=100)


def given(clusters: Iterable[ClusterFacts], pins: Pins | None = None) -> ManagementState:
    return ManagementState(tuple(clusters), live=False, pruning=ALL, pins=pins or {})


def suspended(facts: ClusterFacts) -> ClusterFacts:
    facts.cluster["metadata"].setdefault("annotations", {})["addons.caphv.io/suspend"] = "true"
    return facts


def test_a_faulty_and_a_suspended_cluster_keep_what_they_have(tmp_path: Path) -> None:
    origin, planner = Origin.make(tmp_path / "origin"), Planner(Bundler())
    with Repository(Remote(origin.url), tmp_path / "cache") as repository:
        commit_plan(repository, planner, given([cluster("a"), cluster("b"), cluster("c"), cluster("d")]))
        before = origin.files()
        now = [cluster("a", {"cni": {"mtu": 1}}), suspended(cluster("b", {"cni": {"mtu": 1400}})), cluster("c")]
        planned, result = commit_plan(repository, planner, given(now))
    assert [str(failed.cluster) for failed in planned.batch.failed] == ["clusters/a"]
    assert {str(key) for key in planned.batch.suspended} == {"clusters/b"}
    assert [str(removal) for removal in result.plan.removed] == ["clusters/clusters/d"]
    gone = {path for path in before if path.startswith("clusters/clusters/d/")}
    assert origin.files() == {path: text for path, text in before.items() if path not in gone}


def test_versions_stay_with_those_that_have_no_pin(tmp_path: Path) -> None:
    origin = Origin.make(tmp_path / "origin")
    with Repository(Remote(origin.url), tmp_path / "cache") as repository:
        older = Planner(Bundler(versions_file=older_table(tmp_path)))
        commit_plan(repository, older, given([cluster("a"), cluster("b")]))
        bundler = Bundler()
        planner = Planner(bundler)
        facts = [cluster("a"), cluster("b")]
        _, unchanged = commit_plan(repository, planner, given(facts))
        pins = {facts[1].key: bundler.renderer.table.newest}
        _, upgraded = commit_plan(repository, planner, given(facts, pins))
        _, after = commit_plan(repository, planner, given(facts))
    assert not unchanged.commit
    assert upgraded.plan.changed == ("clusters/clusters/b",)
    assert not after.commit
