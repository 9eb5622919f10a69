"""What the next commit of an upgrade in waves is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import Key
from packager import rollout
from packager.addons.gather import ClusterFacts
from packager.addons.versions import Versions, table
from packager.bundler import Bundler
from packager.controller.fleet import Report
from packager.controller.state import ClusterFilter
from packager.git.directory import Directory
from packager.inventory import pinned
from packager.planner import ManagementState, Planned, Planner, publish
from packager.rollout import Outdated, Rollout, State, advance, begin, next_wave, parse_request
from packager.tree import CLUSTERS
from packager.waves import split
from tests.support.packager.examples import cluster

pytestmark = pytest.mark.unit

OLD, NEW = Versions("1", "v1", {"a": "1"}), Versions("2", "v2", {"a": "2"})
READY, NOT_READY = Report(()), Report(("ccm: image cannot be pulled",))
A, B, C = (Key("clusters", name) for name in "abc")


def of(versions: Mapping[Key, Versions]) -> Outdated:
    return lambda key: None if versions.get(key) == NEW else versions.get(key)


def started() -> Rollout:
    """The first wave is committed at second 100."""
    waves = split(("1", "rest"), [cluster(name) for name in "abc"])
    step = next_wave(begin(waves, "2", 60.0, "1,rest ready=60s"), of({A: OLD, B: OLD, C: OLD}), NEW, 100.0)
    assert step
    assert step.pins == {A: NEW}
    return step.rollout


def test_a_ready_wave_is_followed_by_the_next_and_the_last_by_the_end() -> None:
    second = advance(started(), of({B: OLD, C: OLD}), {A: READY}, NEW, now=101.0)
    assert second
    assert (second.pins, second.rollout.since) == ({B: NEW, C: NEW}, 101.0)
    end = advance(second.rollout, of({}), {B: READY, C: READY}, NEW, now=102.0)
    assert end
    assert (end.rollout.state, end.pins) == (State.COMPLETE, {})


def test_a_wave_is_awaited_until_its_gate_and_then_reverted() -> None:
    first, others = started(), of({B: OLD, C: OLD})
    assert advance(first, others, {A: NOT_READY}, NEW, now=159.0) is None
    found = advance(first, others, {A: NOT_READY}, NEW, now=160.0)
    assert found
    assert (found.rollout.state, found.pins) == (State.REVERTED, {A: OLD})
    assert found.rollout.problems == {A: NOT_READY.problems}
    assert found.rollout.notes(A) == ["release 2 was reverted: ccm: image cannot be pulled"]
    assert found.rollout.notes(B) == []


def test_a_wave_is_not_reverted_because_fleet_cannot_be_seen() -> None:
    assert advance(started(), of({B: OLD}), {}, NEW, now=1e9) is None


def test_a_cluster_that_could_not_be_upgraded_is_not_awaited() -> None:
    found = advance(started(), of({A: OLD, B: OLD}), {A: READY}, NEW, now=101.0)
    assert found
    # There is nothing to give back.
    assert (found.rollout.state, found.pins) == (State.REVERTED, {})
    assert found.rollout.problems == {A: ("its bundles were not upgraded",)}


def test_waves_whose_clusters_are_upgraded_or_deleted_are_skipped() -> None:
    found = advance(started(), of({B: NEW}), {A: READY}, NEW, now=101.0)
    assert found
    assert found.rollout.state is State.COMPLETE


def test_a_wave_waits_for_clusters_that_cannot_be_read() -> None:
    first, others = started(), of({B: OLD})
    assert advance(first, others, {A: READY}, NEW, now=1e9, unknown={C}) is None
    found = advance(first, others, {A: READY}, NEW, now=1e9, unknown={A})
    assert found
    assert found.pins == {B: NEW}


def test_a_wave_without_clusters_is_never_ready() -> None:
    empty, others = replace(started(), before={}), of({B: OLD, C: OLD})
    assert advance(empty, others, {}, NEW, now=159.0) is None
    found = advance(empty, others, {}, NEW, now=160.0)
    assert found
    assert (found.rollout.state, found.pins) == (State.STOPPED, {})
    assert found.why.endswith("is stopped after wave 1 of 2 (1): none of its clusters is left to become ready.")


@dataclass
class Site:
    """A repository with clusters a, b and c at an older release; the first wave is committed at second 100."""

    store: Directory
    planner: Planner
    file: str = rollout.FILE

    def sync(self, *names: str, present: str = "abc", **observed: Any) -> Rollout | None:
        """Plan for the clusters that can be read, and commit."""
        return self.planned(*map(cluster, names), present=present, **observed).upgrade

    def planned(self, *facts: ClusterFacts, present: str = "abc", **observed: Any) -> Planned:
        now = rollout.Observed(frozenset(Key("clusters", name) for name in present), file=self.file, **observed)
        state = ManagementState(facts, keep=frozenset((A, B, C)), upgrade=now)
        return publish(self.store, self.planner, state)[0]

    def upgraded(self) -> set[str]:
        """The clusters with the newest release."""
        newest = table().newest
        return {name for name in "abc" if pinned(cluster(name), self.store.sync().tree) == newest}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    files = (CLUSTERS, "caphv-upgrade.yaml", "caphv-upgrade-other.yaml")
    made = Site(Directory(tmp_path, names=files), Planner(Bundler()))
    facts = tuple(map(cluster, "abc"))
    older = table().releases[1]
    publish(made.store, made.planner, ManagementState(facts, pins={one.key: older for one in facts}))
    made.sync(*"abc", request="1,rest ready=60s", can_start=True, now=100.0)
    assert made.upgraded() == {"a"}
    return made


def test_a_cluster_that_cannot_be_read_stays_in_its_wave(site: Site) -> None:
    for names in ("", "bc"):
        found = site.sync(*names, now=101.0)
        assert found
        assert (found.wave, [*found.before]) == (1, [A])
    # Nor is it known to be ready, or not to be.
    for report in (READY, NOT_READY):
        found = site.sync("b", "c", now=1000.0, reports={A: report})
        assert found
        assert found.is_active
    assert site.upgraded() == {"a"}
    site.sync(*"abc", now=1000.0, reports={A: READY})
    assert site.upgraded() == {"a", "b", "c"}


def test_clusters_of_the_next_wave_that_cannot_be_read_are_not_left_out(site: Site) -> None:
    site.sync("a", now=101.0, reports={A: READY})
    assert site.upgraded() == {"a"}
    site.sync("a", "b", present="ab", now=102.0, reports={A: READY})
    assert site.upgraded() == {"a", "b"}


def test_a_deleted_or_suspended_cluster_leaves_its_wave(site: Site) -> None:
    found = site.sync("b", "c", present="bc", now=160.0)
    assert found
    assert found.state is State.STOPPED


INVALID = {"cni": {"mtu": 1}}


def test_clusters_that_cannot_be_rendered_are_left_out_of_their_wave(site: Site) -> None:
    site.planned(request="stop", now=101.0)
    facts = cluster("a"), cluster("b"), cluster("c", INVALID)
    begun = site.planned(*facts, request="rest ready=60s", can_start=True, now=102.0)
    assert begun.step
    assert begun.upgrade
    assert (begun.step.pins.keys(), begun.upgrade.before.keys()) == ({B}, {B})
    (why,) = begun.upgrade.left_out[C]
    assert "mtu: Invalid value: 1" in why
    assert begun.step.why == f"Upgrade to release {begun.upgrade.release}: wave 1 of 1 (rest). Left out: {C}: {why}."
    assert begun.upgrade.notes(C) == [f"left out of the upgrade to release {begun.upgrade.release}: {why}"]
    # Until it has another release, by whatever way.
    older = table().releases[1].release
    assert begun.upgrade.notes(C, older) == begun.upgrade.notes(C)
    assert [begun.upgrade.notes(C, release) for release in (begun.upgrade.release, "2099.01")] == [[], []]
    assert site.upgraded() == {"a", "b"}
    # It is not awaited, and costs the others nothing.
    found = site.planned(*facts, now=103.0, reports={B: READY}).upgrade
    assert found
    assert (found.state, found.left_out) == (State.COMPLETE, {C: (why,)})
    assert site.upgraded() == {"a", "b"}


def test_a_wave_whose_clusters_are_all_left_out_is_skipped(site: Site) -> None:
    facts = cluster("a"), cluster("b", INVALID, labels={"caphv.io/wave": "canary"}), cluster("c")
    found = site.planned(*facts, request="canary,rest ready=60s", can_start=True, now=101.0).upgrade
    assert found
    assert (found.title, [*found.before], [*found.left_out]) == ("wave 2 of 2 (rest)", [C], [B])


def test_an_upgrade_that_no_cluster_can_follow_does_not_start(site: Site) -> None:
    facts = cluster("a"), cluster("b", INVALID), cluster("c", INVALID)
    before = site.store.sync().read(site.file)
    refused = site.planned(*facts, request="rest ready=60s", can_start=True, now=101.0)
    assert refused.problem.startswith("'rest ready=60s' cannot start: no cluster can be upgraded to release")
    assert "mtu: Invalid value: 1" in refused.problem
    # The one in progress continues, and is reverted when its time is over.
    assert refused.step is None
    assert site.store.sync().read(site.file) == before
    over = site.planned(*facts, request="rest ready=60s", can_start=True, now=1000.0, reports={A: NOT_READY})
    assert over.upgrade
    assert over.upgrade.state is State.REVERTED
    assert over.problem == refused.problem
    assert site.upgraded() == set()


def test_a_cluster_that_cannot_be_rendered_keeps_its_versions_when_its_wave_is_reverted(site: Site) -> None:
    found = site.planned(cluster("a", INVALID), cluster("b"), now=1000.0, reports={A: NOT_READY}).upgrade
    assert found
    assert found.state is State.REVERTED
    first, second = found.problems[A]
    assert first == NOT_READY.problems[0]
    assert second.startswith(f"it keeps release {found.release}, which cannot be reverted: ")
    assert site.upgraded() == {"a"}


def test_an_upgrade_to_a_release_that_the_packager_does_not_have_says_so(site: Site, tmp_path: Path) -> None:
    file = tmp_path / site.file
    begun = rollout.read(file.read_bytes())
    assert begun
    file.write_bytes(rollout.write(replace(begun, release="2099.01")))
    planned = site.planned(*map(cluster, "abc"), now=101.0, reports={A: READY})
    assert planned.step is None
    assert planned.upgrade
    (note,) = planned.upgrade.notes(A)
    assert note.startswith("wave 1 of 2 (1) of the upgrade to release 2099.01, which cannot continue: there is no ")
    assert note.endswith("annotate the packager's Lease with addons.caphv.io/upgrade=stop")
    stopped = site.sync(*"abc", request="stop", now=102.0)
    assert stopped
    assert stopped.state is State.STOPPED


def test_packagers_that_divide_the_clusters_do_not_continue_the_upgrades_of_each_other(site: Site) -> None:
    other = replace(site, file=rollout.file_of("other"))
    for now in (101.0, 1000.0):
        assert other.sync("c", present="c", now=now) is None
    begun = other.sync("c", present="c", request="rest ready=1h", can_start=True, now=1001.0)
    assert begun
    assert site.upgraded() == {"a", "c"}
    own = site.sync("a", "b", present="ab", now=1002.0)
    assert own
    assert (own.request, own.wave) == ("1,rest ready=60s", 1)


def test_the_file_of_a_packager_is_named_as_its_share_of_the_clusters() -> None:
    assert rollout.file_of(ClusterFilter().share) == "caphv-upgrade.yaml"
    assert rollout.file_of(ClusterFilter("team-a").share) == "caphv-upgrade-team-a.yaml"
    assert rollout.file_of(ClusterFilter("team-a", "Blue.green").share) == "caphv-upgrade-blue-green-team-a.yaml"


def test_the_file_holds_everything() -> None:
    for found in (
        started(),
        replace(started(), state=State.REVERTED, problems={A: ("a: b", "c")}),
        replace(started(), before={A: OLD, B: NEW, C: OLD}, left_out={B: ("c: d",)}, kept={B: "1"}),
    ):
        assert rollout.read(rollout.write(found)) == found
    assert rollout.read(None) is None
    earlier = "\n".join(row for row in rollout.write(started()).decode().splitlines() if "leftOut" not in row)
    assert rollout.read(earlier.encode()) == started()


@pytest.mark.parametrize("content", [b"", b"[]", b"a: [", b"{waves: [], wave: 3}", b"x" * 5_000_000])
def test_a_damaged_file_ends_its_upgrade(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert rollout.read(content) is None
    assert "caphv-upgrade.yaml is damaged" in caplog.text


def test_a_request_names_waves_gate_and_release() -> None:
    found = parse_request(" canary,10%,rest  ready=10m release=2026.12 ")
    assert found == rollout.Request(("canary", "10%", "rest"), 600.0, "2026.12")
    assert parse_request("rest ready=90s").release == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "ready must be a time"),
        ("rest", "ready must be a time"),
        ("rest ready=soon", "ready must be a time"),
        ("canary ready=10m", "the last wave must be 'rest'"),
        ("rest ready=10m releas=1", "releas: unknown"),
    ],
)
def test_a_wrong_request_is_explained(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_request(text)
