"""What the next commit of an upgrade in waves is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import Key
from packager.addons.facts import ClusterFacts
from packager.addons.versions import Versions, load_table
from packager.contents.inventory import pinned_versions
from packager.controller.state import ClusterFilter
from packager.fleet import Report
from packager.git.directory import Directory
from packager.planning.commitplan import commit_plan
from packager.planning.planner import Planner
from packager.planning.state import ManagementState, Planned
from packager.rendering.bundler import Bundler
from packager.tree import CLUSTERS
from packager.upgrade import request as upgrade_request
from packager.upgrade import rolloutfile
from packager.upgrade.decision import Observed
from packager.upgrade.request import Request
from packager.upgrade.rollout import Outdated, Rollout, State, advance, begin, next_wave
from packager.upgrade.rolloutfile import status_file_of
from packager.upgrade.waves import split
from tests.support.packager.examples import cluster

pytestmark = pytest.mark.unit

OLD, NEW = Versions("1", "v1", {"a": "1"}), Versions("2", "v2", {"a": "2"})
READY, NOT_READY = Report(()), Report(("ccm: image cannot be pulled",))
REQUEST = Request(("1", "rest"), 60.0)
REST = Request(("rest",), 60.0)
A, B, C = (Key("clusters", name) for name in "abc")


def of(versions: Mapping[Key, Versions]) -> Outdated:
    return lambda key: None if versions.get(key) == NEW else versions.get(key)


def started() -> Rollout:
    """The first wave is committed at second 100."""
    waves = split(("1", "rest"), [cluster(name) for name in "abc"])
    step = next_wave(begin(waves, "2", REQUEST), of({A: OLD, B: OLD, C: OLD}), NEW, 100.0)
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


def test_a_packager_with_other_templates_continues_what_another_began() -> None:
    """Its target has the same release, but is not what the clusters of the wave have."""
    former = replace(NEW, templates="former")
    assert advance(started(), of({A: former, B: OLD}), {A: NOT_READY}, NEW, now=101.0) is None
    found = advance(started(), of({A: former, B: OLD}), {A: READY}, NEW, now=101.0)
    assert found
    assert (found.rollout.state, B in found.pins) == (State.PROGRESSING, True)
    reverted = advance(started(), of({A: former, B: OLD}), {A: NOT_READY}, NEW, now=160.0)
    assert reverted
    assert (reverted.rollout.state, reverted.pins) == (State.REVERTED, {A: OLD})


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
    folder: Path
    file: str = upgrade_request.FILE

    def request(self, request: Request | str | None) -> None:
        """Write or remove the request, as a user does."""
        path = self.folder / self.file
        if request is None:
            path.unlink()
        else:
            path.write_bytes(upgrade_request.serialize(request) if isinstance(request, Request) else request.encode())

    def sync(self, *names: str, present: str = "abc", **observed: Any) -> Rollout | None:
        """Plan for the clusters that can be read, and commit."""
        return self.planned(*map(cluster, names), present=present, **observed).waves.upgrade

    def planned(self, *facts: ClusterFacts, present: str = "abc", **observed: Any) -> Planned:
        now = Observed(frozenset(Key("clusters", name) for name in present), file=self.file, **observed)
        state = ManagementState(facts, keep=frozenset((A, B, C)), upgrade=now)
        return commit_plan(self.store, self.planner, state)[0]

    def upgraded(self) -> set[str]:
        """The clusters with the newest release."""
        newest = load_table().newest
        return {name for name in "abc" if pinned_versions(cluster(name), self.store.sync().tree) == newest}

    def status(self) -> bytes | None:
        return self.store.sync().read(status_file_of(self.file))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    requests = ("caphv-upgrade.yaml", "caphv-upgrade-other.yaml")
    files = (CLUSTERS, *requests, *map(status_file_of, requests))
    made = Site(Directory(tmp_path, names=files), Planner(Bundler()), tmp_path)
    facts = tuple(map(cluster, "abc"))
    older = load_table().releases[1]
    commit_plan(made.store, made.planner, ManagementState(facts, pins={one.key: older for one in facts}))
    made.request(REQUEST)
    made.sync(*"abc", now=100.0)
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
    facts = cluster("a"), cluster("b"), cluster("c", INVALID)
    # Another request replaces the one in progress.
    site.request(REST)
    begun = site.planned(*facts, now=102.0).waves
    assert begun.step
    assert begun.upgrade
    assert (begun.step.pins.keys(), begun.upgrade.before.keys()) == ({B}, {B})
    (why,) = begun.upgrade.left_out[C]
    assert "mtu: Invalid value: 1" in why
    assert begun.step.why == f"Upgrade to release {begun.upgrade.release}: wave 1 of 1 (rest). Left out: {C}: {why}."
    assert begun.upgrade.notes(C) == [f"left out of the upgrade to release {begun.upgrade.release}: {why}"]
    # Until it has another release, by whatever way.
    older = load_table().releases[1].release
    assert begun.upgrade.notes(C, older) == begun.upgrade.notes(C)
    assert [begun.upgrade.notes(C, release) for release in (begun.upgrade.release, "2099.01")] == [[], []]
    assert site.upgraded() == {"a", "b"}
    # It is not awaited, and costs the others nothing.
    found = site.planned(*facts, now=103.0, reports={B: READY}).waves.upgrade
    assert found
    assert (found.state, found.left_out) == (State.COMPLETE, {C: (why,)})
    assert site.upgraded() == {"a", "b"}


def test_a_wave_whose_clusters_are_all_left_out_is_skipped(site: Site) -> None:
    facts = cluster("a"), cluster("b", INVALID, labels={"caphv.io/wave": "canary"}), cluster("c")
    site.request(Request(("canary", "rest"), 60.0))
    found = site.planned(*facts, now=101.0).waves.upgrade
    assert found
    assert (found.title, [*found.before], [*found.left_out]) == ("wave 2 of 2 (rest)", [C], [B])


def test_an_upgrade_that_no_cluster_can_follow_does_not_start(site: Site) -> None:
    facts = cluster("a"), cluster("b", INVALID), cluster("c", INVALID)
    before = site.status()
    site.request(REST)
    refused = site.planned(*facts, now=101.0).waves
    assert refused.problem.startswith("caphv-upgrade.yaml cannot be followed: no cluster can be upgraded to release")
    assert "mtu: Invalid value: 1" in refused.problem
    # The one in progress continues, and is reverted when its time is over.
    assert refused.step is None
    assert site.status() == before
    over = site.planned(*facts, now=1000.0, reports={A: NOT_READY}).waves
    assert over.upgrade
    assert over.upgrade.state is State.REVERTED
    assert over.problem == refused.problem
    assert site.upgraded() == set()
    # The request was not for the upgrade that ended, so it stays, and is followed once that is possible.
    assert (site.folder / site.file).exists()
    following = site.sync(*"abc", now=1001.0)
    assert following
    assert (following.request, following.state, site.upgraded()) == (REST, State.PROGRESSING, {"a", "b", "c"})


def test_a_cluster_that_cannot_be_rendered_keeps_its_versions_when_its_wave_is_reverted(site: Site) -> None:
    found = site.planned(cluster("a", INVALID), cluster("b"), now=1000.0, reports={A: NOT_READY}).waves.upgrade
    assert found
    assert found.state is State.REVERTED
    first, second = found.problems[A]
    assert first == NOT_READY.problems[0]
    assert second.startswith(f"it keeps release {found.release}, which cannot be reverted: ")
    assert site.upgraded() == {"a"}


def test_an_upgrade_to_a_release_that_the_packager_does_not_have_says_so(site: Site) -> None:
    file = site.folder / status_file_of(site.file)
    begun = rolloutfile.parse(file.read_bytes())
    assert begun
    file.write_bytes(rolloutfile.serialize(replace(begun, release="2099.01")))
    planned = site.planned(*map(cluster, "abc"), now=101.0, reports={A: READY}).waves
    assert planned.step is None
    assert planned.upgrade
    (note,) = planned.upgrade.notes(A)
    assert note.startswith("wave 1 of 2 (1) of the upgrade to release 2099.01, which cannot continue: there is no ")
    assert note.endswith("run a packager that has it, or remove caphv-upgrade.yaml to stop the upgrade")
    site.request(None)
    stopped = site.sync(*"abc", now=102.0)
    assert stopped
    assert stopped.state is State.STOPPED


def test_a_removed_request_stops_the_upgrade_and_what_is_upgraded_stays(site: Site) -> None:
    site.request(None)
    planned = site.planned(*map(cluster, "abc"), now=101.0, reports={A: READY}).waves
    assert planned.step
    assert (planned.step.rollout.state, planned.step.pins) == (State.STOPPED, {})
    assert planned.step.why.endswith("is stopped after wave 1 of 2 (1): caphv-upgrade.yaml was removed.")
    # It is stopped once.
    assert site.planned(*map(cluster, "abc"), now=1000.0, reports={A: NOT_READY}).plan.is_empty
    assert site.upgraded() == {"a"}


def test_a_request_is_removed_with_the_end_of_its_upgrade_and_can_be_repeated(site: Site) -> None:
    request = site.folder / site.file
    site.sync(*"abc", now=1000.0, reports={A: NOT_READY})
    assert (request.exists(), site.upgraded()) == (False, set())
    site.request(REQUEST)
    site.sync(*"abc", now=1001.0)
    site.sync(*"abc", now=1002.0, reports={A: READY})
    assert (request.exists(), site.upgraded()) == (True, {"a", "b", "c"})
    end = site.sync(*"abc", now=1003.0, reports={B: READY, C: READY})
    assert end
    assert (request.exists(), end.state) == (False, State.COMPLETE)
    # Nothing is left to upgrade.
    site.request(REST)
    end = site.sync(*"abc", now=1004.0)
    assert end
    assert (request.exists(), end.state, end.request) == (False, State.COMPLETE, REST)


def test_an_invalid_request_is_explained_and_what_is_in_progress_continues(site: Site) -> None:
    site.request("waves: [canary]\n")
    planned = site.planned(*map(cluster, "abc"), now=101.0, reports={A: READY}).waves
    assert planned.problem.startswith("caphv-upgrade.yaml: waves: the last wave must be 'rest'")
    assert "; ready: must be a time such as 90s, 45m or 2h, not missing" in planned.problem
    assert site.upgraded() == {"a", "b", "c"}
    end = site.sync(*"abc", now=102.0, reports={B: READY, C: READY})
    assert end
    assert end.state is State.COMPLETE
    # The user's text stays.
    assert (site.folder / site.file).read_text() == "waves: [canary]\n"


def test_a_request_waits_while_no_wave_can_be_awaited(site: Site) -> None:
    site.request(REST)
    waiting = site.planned(*map(cluster, "abc"), now=101.0, blocked="Fleet is not visible").waves
    assert (waiting.problem, waiting.is_pending) == ("caphv-upgrade.yaml: Fleet is not visible", True)
    assert (waiting.step, site.upgraded()) == (None, {"a"})
    # One that is in progress waits without a word: Fleet is not visible when a packager starts.
    site.request(REQUEST)
    waiting = site.planned(*map(cluster, "abc"), now=1000.0, blocked="Fleet is not visible").waves
    assert (waiting.problem, waiting.step, site.upgraded()) == ("", None, {"a"})


def test_a_request_may_select_clusters(site: Site) -> None:
    site.request(Request(("rest",), 60.0, selector="tier in (edge)"))
    facts = cluster("a"), cluster("b", labels={"tier": "edge"}), cluster("c", labels={"tier": "core"})
    begun = site.planned(*facts, now=101.0).waves.upgrade
    assert begun
    assert [*begun.before] == [B]
    assert site.upgraded() == {"a", "b"}


def test_a_damaged_status_is_explained_and_nothing_starts_over(site: Site) -> None:
    status = site.folder / status_file_of(site.file)
    status.write_text("waves: 1\n")
    planned = site.planned(*map(cluster, "abc"), now=101.0, reports={A: READY})
    assert planned.waves.problem.startswith("caphv-upgrade.status.yaml is damaged: ")
    assert (planned.plan.is_empty, site.upgraded()) == (True, {"a"})
    status.unlink()
    begun = site.sync(*"abc", now=102.0)
    assert begun
    assert [wave for wave, _ in begun.waves] == ["1", "rest"]
    assert site.upgraded() == {"a", "b"}


def test_packagers_that_divide_the_clusters_do_not_continue_the_upgrades_of_each_other(site: Site) -> None:
    other = replace(site, file=upgrade_request.file_of("other"))
    for now in (101.0, 1000.0):
        assert other.sync("c", present="c", now=now) is None
    other.request(replace(REST, gate=3600.0))
    begun = other.sync("c", present="c", now=1001.0)
    assert begun
    assert site.upgraded() == {"a", "c"}
    own = site.sync("a", "b", present="ab", now=1002.0)
    assert own
    assert (own.request, own.wave) == (REQUEST, 1)


def test_the_files_of_a_packager_are_named_as_its_share_of_the_clusters() -> None:
    for selection, name in (
        (ClusterFilter(), "caphv-upgrade"),
        (ClusterFilter("team-a"), "caphv-upgrade-team-a"),
        # A filter may have the name of a namespace.
        (ClusterFilter("", "team-a"), "caphv-upgrade-team-a-90515031"),
        (ClusterFilter("team-a", "Blue.green"), "caphv-upgrade-blue-green-team-a-c3b37d74"),
    ):
        file = upgrade_request.file_of(selection.share)
        assert (file, status_file_of(file)) == (f"{name}.yaml", f"{name}.status.yaml")


def test_the_file_holds_everything() -> None:
    for found in (
        started(),
        replace(started(), state=State.REVERTED, problems={A: ("a: b", "c")}),
        replace(started(), before={A: OLD, B: NEW, C: OLD}, left_out={B: ("c: d",)}, kept_releases={B: "1"}),
    ):
        assert rolloutfile.parse(rolloutfile.serialize(found)) == found
    assert rolloutfile.parse(None) is None


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"a: [", b"{waves: [], wave: 3}", b"{waves: [], wave: .inf}", b"x" * 5_000_000]
)
def test_a_damaged_file_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        rolloutfile.parse(content)
