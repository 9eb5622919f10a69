"""A branch for each group of clusters, so that Fleet syncs one group only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import Obj, uid_of
from caphv.api.resources import HELM_CHART_CONFIGS
from packager.git.remote import Remote
from packager.git.repository import Repository
from packager.rendering import branches
from sandbox import manifests
from sandbox.addons.fleet import FleetCluster
from sandbox.addons.helm import Helm
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.commands import call, manifest, write
from tests.support.packager.environment import Case, crd
from tests.support.packager.repositories import Origin, git, paths, put, wanted
from tests.support.waiting import until

pytestmark = pytest.mark.integration

GIT_REPO = "https://git.example.com/fleet.git"
PRODUCTION, TEST = "main-groups/team/production", "main-groups/team/test"
REVIEW = "caphv/proposed"


class Site:
    """Clusters with groups, pushed by the command."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        self._folder, self.origin = folder / "clusters", origin
        self._cache = folder / "cache"

    def call(self, command: str, *more: str, expect: int = 0) -> str:
        place = (str(self._folder), "--repo", self.origin.url)
        found = call(command, *place, "--git-cache", self._cache, *more)
        assert found.exit_code == expect, found.output
        return found.stdout if expect == 0 else found.output

    def push(self, groups: Mapping[str, str], mtu: int = 1450, *more: str) -> Obj:
        """Push clusters with these groups; the MTU is that of cluster `a`."""
        self.write(groups, mtu)
        pushed: Obj = json.loads(self.call("push", "-o", "json", *more))
        return pushed

    def write(self, groups: Mapping[str, str], mtu: int = 1450) -> None:
        def addons(name: str, group: str) -> Obj:
            fleet = {"fleet": {"group": group}} if group else {}
            return {"cni": {"name": "calico", "mtu": mtu if name == "a" else 1450}, **fleet}

        write(self._folder, *(manifest(name, addons(name, group)) for name, group in groups.items()))

    def list_groups(self, *groups: str) -> None:
        """List groups that have a branch, as a user does in Git."""
        self.origin.push({"caphv-branches.yaml": yaml.safe_dump({"groups": [*groups]})})

    def clusters(self, branch: str) -> set[str]:
        return {path.split("/")[2] for path in self.origin.files(branch) if path.startswith("clusters/")}


@pytest.fixture
def site(tmp_path: Path, origin: Origin) -> Site:
    return Site(tmp_path, origin)


def test_a_changed_setting_moves_the_branch_of_one_group(site: Site) -> None:
    groups = {"a": "production", "b": "test", "c": ""}
    assert site.push(groups)["branches"] == {}
    assert site.origin.branches() == ["main"]
    site.list_groups("production", "test")
    assert set(site.push(groups)["branches"]) == {"team/production", "team/test"}
    assert (site.clusters(PRODUCTION), site.clusters(TEST), site.clusters("main")) == ({"a"}, {"b"}, {"a", "b", "c"})
    assert site.push(groups)["branches"] == {}
    heads = {name: site.origin.head(name) for name in site.origin.branches()}

    pushed = site.push(groups, mtu=1400)
    assert [*pushed["branches"]] == ["team/production"]
    assert {name for name, head in heads.items() if site.origin.head(name) != head} == {"main", PRODUCTION}
    common, own = site.origin.files(), site.origin.files(PRODUCTION)
    assert {path for path in own if common.get(path) != own[path]} == {"README.md"}
    assert site.origin.count(PRODUCTION) == 2
    assert site.origin.head() in site.origin.message(PRODUCTION)


def test_a_cluster_changes_its_group_and_an_emptied_branch_has_no_cluster(site: Site) -> None:
    site.list_groups("production", "test")
    site.push({"a": "production", "b": "test"})
    site.push({"a": "production", "b": "production"})
    assert (site.clusters(PRODUCTION), site.clusters(TEST)) == ({"a", "b"}, set())
    # A group that is no longer listed: its branch stays until its GitRepo reads the common one.
    site.list_groups("test")
    site.push({"a": "production", "b": "production"})
    assert site.clusters(PRODUCTION) == {"a", "b"}
    assert "branch:" not in site.origin.files()["clusters/team/a/caphv.yaml"]


def test_a_branch_that_another_client_moved_is_found_and_repaired(site: Site) -> None:
    site.list_groups("production")
    groups = {"a": "production"}
    site.push(groups)
    site.call("verify")
    site.origin.push({"clusters/team/a/cni/fleet.yaml": "name: another\n"}, PRODUCTION)
    assert f"branch {PRODUCTION} does not follow main" in site.call("verify", expect=1)
    assert [*site.push(groups)["branches"]] == ["team/production"]
    site.call("verify")
    assert site.clusters(PRODUCTION) == {"a"}
    # And one that was deleted.
    site.origin.remove_branch(PRODUCTION)
    assert [*site.push(groups)["branches"]] == ["team/production"]


def test_branches_of_groups_follow_a_change_when_its_review_is_merged(site: Site) -> None:
    groups = {"a": "production", "b": "test"}
    site.list_groups("production", "test")
    site.push(groups)
    heads = {name: site.origin.head(name) for name in site.origin.branches()}
    review = ("--review", REVIEW)

    assert site.push(groups, 1400, *review)["branches"] == {}
    proposed = site.origin.head(REVIEW)
    assert proposed != heads["main"]
    assert {name: site.origin.head(name) for name in heads} == heads
    git(site.origin.folder, "update-ref", "refs/heads/main", proposed)
    # Nothing is left to propose, but the branch of one group is behind.
    assert [*site.push(groups, 1400, *review)["branches"]] == ["team/production"]
    assert site.origin.head() == proposed
    assert site.origin.head(TEST) == heads[TEST]
    assert "mtu: 1400" in str(site.origin.files(PRODUCTION))
    site.call("verify")


def test_branches_of_groups_hold_the_folder_below_which_bundles_are(site: Site) -> None:
    groups = {"a": "production", "b": "test"}
    place = ("--path", "fleet/harvester")
    site.origin.push({"fleet/harvester/caphv-branches.yaml": "groups: [production, test]\n", "other/file": "kept\n"})
    assert set(site.push(groups, 1450, *place)["branches"]) == {"team/production", "team/test"}
    branch = "main-groups/fleet/harvester/team/production"
    own = {path for path in site.origin.files(branch) if path != "README.md"}
    assert own
    assert all(path.startswith("fleet/harvester/clusters/team/a/") for path in own)
    assert "other/file" in site.origin.files()
    assert [*site.push(groups, 1400, *place)["branches"]] == ["team/production"]
    site.call("verify", *place)


@pytest.mark.parametrize(("outer", "inner"), [("", "east"), ("east", "east/site"), ("", "east/site"), ("", "team")])
def test_management_clusters_with_nested_paths_leave_branches_to_each_other(site: Site, outer: str, inner: str) -> None:
    groups = {"a": "production", "b": "production"}
    for path in (outer, inner):
        site.origin.push({f"{path}/caphv-branches.yaml".lstrip("/"): "groups: [production]\n"})
    places = [("--path", path) if path else () for path in (outer, inner)]
    for place in places:
        assert [*site.push(groups, 1450, *place)["branches"]] == ["team/production"]
    heads = {name: site.origin.head(name) for name in site.origin.branches()}
    assert len(heads) == 3
    for place in places:
        assert site.push(groups, 1450, *place)["branches"] == {}
        site.call("verify", *place)
    assert {name: site.origin.head(name) for name in site.origin.branches()} == heads


def test_two_clients_that_push_together_agree_on_the_branches(origin: Origin, tmp_path: Path) -> None:
    """The second one has read the branches before the first one moved them."""

    def split(snapshot: Any, _: Any) -> dict[str, list[str]]:
        return {"a/one": [f"clusters/a/{name}" for name in snapshot.entries("clusters/a")]}

    with (
        Repository(Remote(origin.url), tmp_path / "first", split=split) as first,
        Repository(Remote(origin.url), tmp_path / "second", split=split) as second,
    ):
        put(first, wanted("a/x"))
        second.sync()
        assert put(first, wanted("a/x", "a/y")).moved == ("a/one",)
        put(second, wanted("a/x", "a/y", "a/z"))
        assert second.stale() == []
    assert set(origin.files("main-groups/a/one")) == {*paths("a/x", "a/y", "a/z"), "README.md"}
    assert origin.count("main-groups/a/one") == 3


def test_an_invalid_list_is_reported_and_changes_nothing(site: Site) -> None:
    site.push({"a": "production"})
    site.origin.push({"caphv-branches.yaml": "groups: production\n"})
    count = site.origin.count()
    found = site.call("push", expect=1)
    assert "caphv-branches.yaml must have one field, groups" in found
    assert site.origin.count() == count


async def test_a_cluster_moves_to_another_branch_without_an_uninstallation(site: Site, management: ApiServer) -> None:
    async with management.client() as client:
        await manifests.apply(client, [crd(HELM_CHART_CONFIGS)])
        fleet = FleetCluster(client, Helm(management.kubeconfig()))

        async def sync(group: str = "") -> str:
            """Let Fleet read cluster `a` as the GitRepo of its group says; return what identifies the CNI's object."""
            more = ("--own-branch", group) if group else ()
            text = site.call("render", "-o", "gitrepo", "--repo", GIT_REPO, "--own-branch", "none", *more)
            (repo,) = (one for one in yaml.safe_load_all(text) if "clusters/team/a/*" in one["spec"]["paths"])
            assert repo["spec"]["branch"] == (f"main-groups/team/{group}" if group else "main")
            files = {path: content.encode() for path, content in site.origin.files(repo["spec"]["branch"]).items()}
            assert [name for name in await fleet.sync(files, repo) if name.startswith("cni-")]
            listed = await client.list(HELM_CHART_CONFIGS)
            return uid_of(next(obj for obj in listed["items"] if "calico" in obj["metadata"]["name"]))

        site.push({"a": "production", "b": "test"})
        before = await sync()
        site.list_groups("production", "test")
        site.push({"a": "production", "b": "test"})
        assert await sync("production") == before
        site.push({"a": "test", "b": "test"})
        # The former GitRepo drops it first.
        await fleet.sync({path: text.encode() for path, text in site.origin.files(PRODUCTION).items()}, None)
        assert await sync("test") == before


async def test_the_packager_in_the_cluster_follows_the_list(case: Case) -> None:
    await case.running("--interval=2")
    await case.cluster("one", values={"cni": {"name": "calico"}, "fleet": {"group": "production"}})
    await case.cluster("two")
    await case.until_condition("one", "True", part=f"commit {await head(case)}")
    case.origin.push({branches.FILE: "groups: [production]\n"})
    branch = f"main-groups/{case.namespace}/production"

    async def has_branch() -> bool:
        return branch in case.origin.branches()

    await until(has_branch)
    await case.until_condition("one", "True", part=case.origin.head(branch))
    await case.set_values("two", {"cni": {"name": "calico", "mtu": 1400}})
    await case.until_condition("two", "True", part=await head(case, 1))
    assert case.origin.count(branch) == 1
    await case.set_values("one", {"cni": {"name": "calico", "mtu": 1400}, "fleet": {"group": "production"}})

    async def has_moved() -> bool:
        return case.origin.count(branch) == 2

    await until(has_moved)
    await case.until_condition("one", "True", part=case.origin.head(branch))


async def head(case: Case, more: int = 0) -> str:
    """Wait for a further commit, if asked, and return the head of the branch."""
    if more:
        await case.until_count(case.count() + more)

    async def there() -> bool:
        return case.count() > 0

    await until(there)
    return case.origin.head()
