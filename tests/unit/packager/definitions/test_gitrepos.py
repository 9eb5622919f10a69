"""GitRepos of defined clusters: each folder is read by one of them, whatever groups the clusters name."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key
from packager.definitions.files import GITREPOS, NAMES
from packager.definitions.gitrepos import Member, folders
from packager.git.directory import Directory
from packager.rendering.gitrepo import GitRepoOptions

pytestmark = pytest.mark.unit
OPTIONS = GitRepoOptions("https://git.example.com/fleet.git")


def member(
    name: str, group: str = "", workspace: str = "fleet-default", namespace: str = "team-a", *, own: bool = False
) -> Member:
    return Member(Key(namespace, name), workspace, group, own)


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, *members: Member) -> dict[str, list[str]]:
        """Write the GitRepos, and folders of clusters; return the paths of what was written by workspace and name."""
        for one in members:
            path = self.folder / "clusters" / str(one.cluster) / "cni" / "fleet.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            manifest = self.folder / "manifests" / str(one.cluster) / "cluster" / "cluster.yaml"
            manifest.parent.mkdir(parents=True, exist_ok=True)
            kind = "GitRepo" if one.has_repo else "Other"
            manifest.write_text(f"apiVersion: fleet.cattle.io/v1alpha1\nkind: {kind}\n")
        found = folders(OPTIONS, members, Directory(self.folder, names=NAMES).sync())
        for place, folder in found.items():
            for name, content in folder.with_file_list.items():
                path = self.folder / GITREPOS / place / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return {place: yaml.safe_load(folder.files["gitrepo.yaml"])["spec"]["paths"] for place, folder in found.items()}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_without_groups_a_pattern_covers_new_clusters(site: Site) -> None:
    first = site.write(member("a"))
    assert first == {"fleet-default/caphv-team-a": ["clusters/team-a/*/*"]}
    assert site.write(member("a"), member("b")) == first


def test_a_group_has_a_gitrepo_of_its_own(site: Site) -> None:
    assert site.write(member("a"), member("b", "production"), member("c", "production")) == {
        "fleet-default/caphv-production": ["clusters/team-a/b/*", "clusters/team-a/c/*"],
        "fleet-default/caphv-team-a": ["clusters/team-a/a/*"],
    }


def test_a_file_of_a_user_next_to_the_clusters_is_read_by_no_gitrepo(site: Site) -> None:
    before = site.write(member("a"), member("b", "production"))
    (site.folder / "clusters/team-a/README.md").touch()
    assert site.write(member("a"), member("b", "production")) == before


def test_clusters_that_cannot_be_built_stay_where_they_are_read(site: Site) -> None:
    before = site.write(member("a"), member("b", "production"), member("c", "production"))
    assert site.write(member("c", "production")) == before


def test_a_gitrepo_gives_up_what_another_one_reads(site: Site) -> None:
    site.write(member("a"), member("b"))
    moved = site.write(member("a", "production"), member("b", "production"))
    assert moved == {
        "fleet-default/caphv-production": ["clusters/team-a/a/*", "clusters/team-a/b/*"],
        "fleet-default/caphv-team-a": ["clusters/.none"],
    }
    # It matches no folder, and changes no more.
    assert [*site.write(member("a", "production"), member("b", "production"))] == ["fleet-default/caphv-production"]
    assert site.write(member("a"), member("b")) == {
        "fleet-default/caphv-production": ["clusters/.none"],
        "fleet-default/caphv-team-a": ["clusters/team-a/*/*"],
    }


def test_a_gitrepo_keeps_what_no_other_one_reads(site: Site) -> None:
    site.write(member("a", "one"), member("b", "one", namespace="team-b"))
    # The definition of team-b/b is invalid now, and no other cluster of its namespace is known.
    found = site.write(member("a", "two"))
    assert found["fleet-default/caphv-one"] == ["clusters/team-b/b/*"]
    # Nothing more is taken from it: it is not written.
    assert [*site.write(member("a", "two"))] == ["fleet-default/caphv-two"]


def test_a_cluster_with_a_gitrepo_of_its_own_is_read_by_no_other_one(site: Site) -> None:
    assert site.write(member("a", own=True)) == {}
    expected = {"fleet-default/caphv-team-a": ["clusters/team-a/b/*"]}
    assert site.write(member("a", own=True), member("b")) == expected
    # Its definition is invalid now, or belongs to another source.
    assert site.write(member("b")) == expected
    assert site.write(member("a"), member("b")) == {"fleet-default/caphv-team-a": ["clusters/team-a/*/*"]}


def test_a_cluster_that_gets_a_gitrepo_of_its_own_leaves_the_common_one(site: Site) -> None:
    site.write(member("a"))
    assert site.write(member("a", own=True)) == {"fleet-default/caphv-team-a": ["clusters/.none"]}
    assert site.write(member("a", own=True)) == {}


def test_sources_of_one_namespace_agree_when_one_of_them_has_groups(site: Site) -> None:
    one, other = member("a", "production"), member("b")
    site.write(other)
    expected = {
        "fleet-default/caphv-production": ["clusters/team-a/a/*"],
        "fleet-default/caphv-team-a": ["clusters/team-a/b/*"],
    }
    for _ in range(2):
        assert site.write(one) == expected
        assert site.write(other) == expected


def test_gitrepos_of_other_workspaces_and_clients_stay(site: Site) -> None:
    site.write(member("a"))
    foreign = site.folder / GITREPOS / "team-a" / "mine" / "gitrepo.yaml"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("spec: {paths: [clusters/team-a/*/*]}\n")
    assert [*site.write(member("a", workspace="team-a"))] == ["team-a/caphv-team-a"]


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcde"), st.sampled_from(["", "one", "two", "own"]), min_size=1), min_size=1
    )
)
def test_whatever_moves_no_two_gitrepos_read_a_cluster(
    tmp_path_factory: pytest.TempPathFactory, steps: list[dict[str, str]]
) -> None:
    """Clusters that a step leaves out have become invalid: they are read all the same."""
    site, seen, own = Site(tmp_path_factory.mktemp("site")), set[str](), set[str]()
    for groups in steps:
        site.write(*(member(name, group, own=group == "own") for name, group in groups.items()))
        seen |= groups.keys()
        own = own - groups.keys() | {name for name, group in groups.items() if group == "own"}
        repos = [yaml.load(path.read_bytes(), yaml.CSafeLoader) for path in site.folder.rglob("gitrepo.yaml")]
        for name in seen:
            readers = [
                repo["metadata"]["name"]
                for repo in repos
                if any(fnmatch.fnmatchcase(f"clusters/team-a/{name}/cni", path) for path in repo["spec"]["paths"])
            ]
            assert len(readers) == (name not in own), (name, readers)


@given(st.dictionaries(st.sampled_from("abcde"), st.sampled_from(["", "one", "two"]), min_size=1))
def test_every_cluster_is_read_once(tmp_path_factory: pytest.TempPathFactory, groups: dict[str, str]) -> None:
    site = Site(tmp_path_factory.mktemp("site"))
    found = site.write(*(member(name, group) for name, group in groups.items()))
    paths = [path for listed in found.values() for path in listed]
    assert len(paths) == len(set(paths))
    if any(groups.values()):
        assert sorted(paths) == [f"clusters/team-a/{name}/*" for name in sorted(groups)]
    else:
        assert paths == ["clusters/team-a/*/*"]


def test_their_bundle_takes_over_what_exists_and_recreates_what_was_deleted(
    tmp_path: Path,
) -> None:
    (folder,) = folders(OPTIONS, [member("a")], Directory(tmp_path, names=NAMES).sync()).values()
    settings = yaml.safe_load(folder.files["fleet.yaml"])
    assert settings["keepResources"]
    assert settings["helm"]["takeOwnership"]
    assert settings["correctDrift"] == {"enabled": True, "force": True}
    assert {"type": "Ready"} in settings["ignore"]["conditions"]
    # Fleet writes durations back in this form.
    assert yaml.safe_load(folder.files["gitrepo.yaml"])["spec"]["pollingInterval"] == "1m0s"
