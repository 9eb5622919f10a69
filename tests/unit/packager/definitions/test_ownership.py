"""Sources that share a repository leave each other's clusters alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import pytest
import yaml

from caphv.api.object import Key, Obj
from packager.definitions.builder import Builder
from packager.definitions.files import NAMES
from packager.definitions.ownership import DIRECTORY, FILE, checked_name, name_of
from packager.definitions.source import Reader
from packager.git.changeplan import Plan
from packager.git.directory import Directory
from packager.git.remote import Remote
from packager.planning.commitplan import commit_plan
from packager.planning.planner import Planner
from packager.planning.state import ManagementState
from packager.rendering.bundler import Bundler
from tests.support.packager.definitions import k3s

pytestmark = pytest.mark.unit
A, B = "git.example.com/a, branch main", "git.example.com/b, branch main"
BUNDLER = Bundler()
CONFIRM = "caphv.io/confirm-removal"


def defined(namespace: str, name: str, *, confirmed: bool = False) -> Obj:
    found = k3s(name)
    found["metadata"]["namespace"] = namespace
    if confirmed:
        found["metadata"]["annotations"] = {CONFIRM: "true"}
    return found


ONE, TWO = defined("team-a", "one"), defined("team-b", "two")


class Site:
    """A repository and its sources, each with its own packager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Directory(folder, names=NAMES)
        self.planners: dict[str, Planner] = {}
        self.problems: list[str] = []

    def sync(
        self,
        source: str,
        *definitions: Obj,
        confirmed: Iterable[Key] = (),
        deleted: Collection[Key] = (),
        live: bool = False,
    ) -> Plan:
        files = {f"{one['metadata']['name']}.yaml": yaml.safe_dump(one).encode() for one in definitions}
        planner = self.planners.setdefault(source, Planner(BUNDLER, Builder(BUNDLER.renderer), max_prune=100))
        state = ManagementState(live=live, confirmed=frozenset(confirmed), deleted=frozenset(deleted))
        content = Reader(lambda _: []).read(files, name=source)
        planned, result = commit_plan(self.store, planner, state, content)
        self.problems = [str(one) for one in planned.built.errors] if planned.built else []
        return result.plan

    def forget(self) -> None:
        """Remove the records, as docs/gitops.md says for a source that moves."""
        for path in self.folder.glob(f"manifests/*/*/{FILE}"):
            path.unlink()
            record = path.with_name(".caphv-files")
            record.write_text(record.read_text().replace(f"{FILE}\n", ""))

    def clusters(self) -> set[str]:
        return {f"{path.parent.name}/{path.name}" for path in self.folder.glob("manifests/*/*")}

    def status(self) -> list[tuple[str, str, str]]:
        found = yaml.safe_load((self.folder / "caphv-status.yaml").read_text())
        return [(row["name"], row["state"], row.get("source", "")) for row in found["clusters"]]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("live", [False, True])
def test_two_sources_alternate_without_a_commit(site: Site, live: bool) -> None:
    site.sync(A, ONE, live=live)
    site.sync(B, TWO, live=live)
    for _ in range(2):
        for source, definition in ((A, ONE), (B, TWO)):
            plan = site.sync(source, definition, live=live)
            assert (plan.is_empty, plan.held, plan.refused) == (True, (), ())
    assert site.status() == [("team-a/one", "Written", A), ("team-b/two", "Written", B)]


@pytest.mark.parametrize("live", [False, True])
def test_a_confirmed_cluster_of_another_source_stays(site: Site, live: bool) -> None:
    two = defined("team-b", "two", confirmed=True)
    site.sync(A, ONE, live=live)
    site.sync(B, two, live=live)
    plan = site.sync(A, ONE, live=live, confirmed=[Key("team-b", "two")])
    assert (plan.removed, plan.is_empty) == ((), True)
    assert site.clusters() == {"team-a/one", "team-b/two"}
    # Its own source removes it, and nothing else.
    plan = site.sync(B, live=live)
    assert [str(removal) for removal in plan.removed if removal.definition] == ["manifests/team-b/two"]
    assert site.clusters() == {"team-a/one"}
    assert site.status() == [("team-a/one", "Written", A)]


@pytest.mark.parametrize("live", [False, True])
def test_a_file_of_a_user_next_to_the_clusters_is_no_cluster(site: Site, live: bool) -> None:
    site.sync(A, ONE, live=live)
    site.sync(B, TWO, live=live)
    (site.folder / "manifests/team-a/.gitkeep").touch()
    plan = site.sync(A, ONE, live=live)
    assert (plan.is_empty, plan.held) == (True, ())
    assert site.status() == [("team-a/one", "Written", A), ("team-b/two", "Written", B)]


def test_the_command_says_why_it_does_not_remove_a_cluster_of_another_source(site: Site) -> None:
    site.sync(A, ONE)
    (held,) = site.sync(B, confirmed=[Key("team-a", "one")]).held
    assert (held.what, held.why) == (
        "manifests/team-a/one",
        f"cluster is defined by another source, {A}: remove it there",
    )


def test_a_cluster_that_two_sources_define_is_a_problem_of_the_second(site: Site) -> None:
    site.sync(A, ONE)
    files = site.store.sync().files("manifests")
    other = defined("team-a", "one")
    other["spec"]["kubernetesVersion"] = "v1.35.1+k3s1"
    for _ in range(2):
        site.sync(B, other, TWO)
        (problem,) = site.problems
        assert "one.yaml:" in problem
        assert A in problem
        assert f"remove manifests/team-a/one/{FILE}" in problem
        now = site.store.sync().files("manifests")
        assert {path: now[path] for path in files} == files
        assert site.sync(A, ONE).is_empty
        assert site.problems == []
    assert site.status() == [("team-a/one", "Written", A), ("team-b/two", "Written", B)]


def test_a_repository_without_records_gets_them_and_nothing_else(site: Site) -> None:
    site.sync(DIRECTORY, ONE, TWO)
    site.forget()
    before = site.store.sync().files("")
    plan = site.sync(A, ONE, TWO)
    assert (plan.held, plan.removed) == ((), ())
    after = site.store.sync().files("")
    changed = {path for path in after if before.get(path) != after[path]}
    folders = {f"manifests/{name}" for name in ("team-a/one", "team-b/two")}
    assert changed == {f"{top}/{name}" for top in folders for name in (FILE, ".caphv-files")} | {"caphv-status.yaml"}
    assert site.sync(A, ONE, TWO).is_empty


@pytest.mark.parametrize("live", [False, True])
def test_two_sources_divide_a_repository_without_records(site: Site, live: bool) -> None:
    two = defined("team-b", "two", confirmed=True)
    site.sync(DIRECTORY, ONE, TWO)
    site.forget()
    assert [held.what for held in site.sync(A, ONE, live=live).held] == ["manifests/team-b/two"]
    assert site.sync(B, two, live=live).held == ()
    for _ in range(2):
        for source, definition in ((A, ONE), (B, two)):
            plan = site.sync(source, definition, live=live)
            assert (plan.is_empty, plan.held) == (True, ())
    assert site.status() == [("team-a/one", "Written", A), ("team-b/two", "Written", B)]


def test_an_unclaimed_cluster_is_removed_while_there_is_one_source(site: Site) -> None:
    two = defined("team-b", "two", confirmed=True)
    site.sync(DIRECTORY, ONE, two)
    site.forget()
    assert [removal.folder for removal in site.sync(A, ONE).removed if removal.definition] == ["manifests/team-b/two"]


def test_an_unclaimed_cluster_stays_once_there_are_several_sources(site: Site) -> None:
    three = defined("team-c", "three", confirmed=True)
    site.sync(DIRECTORY, ONE, TWO, three)
    site.forget()
    site.sync(A, ONE, TWO, three)
    site.sync(B)
    site.forget()
    (site.folder / f"manifests/team-b/two/{FILE}").write_text(f"{B}\n")
    for _ in range(2):
        plan = site.sync(A, ONE)
        assert plan.removed == ()
        assert [held.what for held in plan.held] == ["manifests/team-c/three"]
        assert "name that source in .caphv-source" in plan.held[0].why
        site.sync(B, TWO)
    assert site.sync(A, ONE).is_empty
    # Its source claims it, and the others report it no more.
    site.sync("c", three)
    assert site.sync(A, ONE).held == ()


def test_a_source_that_moves_gets_its_clusters_when_their_records_are_removed(site: Site) -> None:
    site.sync(A, ONE)
    site.sync(B, ONE)
    assert len(site.problems) == 1
    (site.folder / f"manifests/team-a/one/{FILE}").unlink()
    site.sync(B, ONE)
    assert (site.problems, site.status()) == ([], [("team-a/one", "Written", B)])
    assert site.sync(B, ONE).is_empty


def test_a_directory_without_a_name_replaces_no_record_and_keeps_none_from_others(site: Site) -> None:
    site.sync(DIRECTORY, ONE)
    site.sync(A, ONE)
    assert site.status() == [("team-a/one", "Written", A)]
    changed = defined("team-a", "one")
    changed["spec"]["kubernetesVersion"] = "v1.35.1+k3s1"
    assert not site.sync(DIRECTORY, changed).is_empty
    assert A in (site.folder / f"manifests/team-a/one/{FILE}").read_text()
    plan = site.sync(DIRECTORY)
    assert (plan.removed, plan.held) == ((), ())


def test_a_release_keeps_the_record(site: Site) -> None:
    site.sync(A, ONE)
    plan = site.sync(A, confirmed=[Key("team-a", "one")])
    assert "its protection is lifted" in plan.held[0].why
    assert A in (site.folder / f"manifests/team-a/one/{FILE}").read_text()
    assert site.sync(B).held == ()


def test_an_edited_status_file_is_no_obstacle(site: Site) -> None:
    site.sync(A, ONE)
    path = site.folder / "caphv-status.yaml"
    for text in ("[", "clusters: x\nproblems: [1, {source: B, x: 2026-01-01, 3: [4]}]\n"):
        path.write_text(text)
        site.sync(A, ONE)
        assert site.status() == [("team-a/one", "Written", A)]


@pytest.mark.parametrize(
    "url",
    [
        "https://git.example.com/team/clusters.git",
        "https://user@git.example.com/team/clusters",
        "ssh://git@git.example.com:2222/team/clusters.git",
        "git@git.example.com:team/clusters.git",
    ],
)
def test_one_repository_has_one_name(url: str) -> None:
    assert name_of(Remote(url)) == "git.example.com/team/clusters, branch main"
    assert name_of(Remote(url, "next", "a/b")) == "git.example.com/team/clusters, branch next, path a/b"


def test_names_of_other_repositories_differ() -> None:
    assert name_of(Remote("https://git.example.com:8443/x")) == "git.example.com:8443/x, branch main"
    assert name_of(Remote("ssh://git@[2001:db8::1]:22/x")) == "2001:db8::1/x, branch main"
    assert name_of(Remote("/srv/clusters.git")) == "/srv/clusters, branch main"
    assert checked_name("team a") == "team a"
    for name in ("", "#a", " a", "a ", "a\nb", DIRECTORY):
        with pytest.raises(ValueError, match="one line of text"):
            checked_name(name)
