"""Upgrading from 0.11 replaces no Machine and uninstalls nothing: 20 clusters whose repository that release wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import NAMESPACES, Obj
from caphv.api.resources import HELM_CHART_CONFIGS, HELM_CHARTS
from caphv.runtime.client import ApiClient
from packager.bundler import Bundler
from packager.definitions.builder import Builder
from packager.definitions.files import NAMES, management_git_repo
from packager.definitions.protection import unprotected
from packager.definitions.shared import cluster_class, is_of_earlier_release
from packager.definitions.source import Reader
from packager.git.directory import Directory
from packager.git.prune import Plan
from packager.planner import ManagementState, Planner, publish
from packager.rendering.gitrepo import GitRepoOptions
from sandbox import manifests
from sandbox.addons.apply import Objects
from sandbox.addons.fleet import FleetCluster
from sandbox.addons.helm import Helm
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.earlier_release import URL, extract, files_in
from tests.support.packager.environment import crd, install_kinds_of
from webhooks import crossobject

pytestmark = pytest.mark.integration
OPTIONS = GitRepoOptions(URL)
OLD_FLAG = {"keepResources": True}
"""What 0.11 set on each GitRepo."""


class Site:
    """The repository of 0.11, and its definitions, with the packager of today."""

    def __init__(self, folder: Path) -> None:
        self.definitions, self.repository = extract(folder)
        self.before = files_in(self.repository)

    def sync(self, refused: str = "") -> Plan:
        """Sync the definitions as they are now; return what the commit changed. All errors have the text `refused`."""
        bundler = Bundler()
        planner = Planner(bundler, Builder(bundler.renderer, OPTIONS), max_prune=100)
        store = Directory(self.repository, names=NAMES)
        source = Reader(crossobject.check).read(files_in(self.definitions))
        planned, result = publish(store, planner, ManagementState(live=False), source)
        assert planned.built
        errors = [error.message for error in planned.built.errors]
        assert bool(errors) == bool(refused), errors
        assert all(refused in error for error in errors), errors
        return result.plan

    @property
    def after(self) -> dict[str, bytes]:
        return files_in(self.repository)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def objects(files: dict[str, bytes], root: str) -> dict[tuple[str, str, str], Obj]:
    """Return the objects below a root by file, kind and name."""
    return {
        (path, obj["kind"], obj["metadata"]["name"]): obj
        for path, content in files.items()
        if path.startswith(f"{root}/") and path.endswith(".yaml") and not path.endswith("/fleet.yaml")
        for obj in yaml.safe_load_all(content)
        if obj and "kind" in obj
    }


def without_protection(found: dict[Any, Obj]) -> dict[Any, Obj]:
    return {key: unprotected([obj])[0] for key, obj in found.items()}


def without_policy(data: dict[str, str]) -> dict[str, list[Obj]]:
    """Return the objects in a ConfigMap, without what keeps Helm controllers from uninstalling failed charts."""
    found = {name: [obj for obj in yaml.safe_load_all(text) if obj] for name, text in data.items()}
    for objs in found.values():
        for obj in objs:
            obj.get("spec", {}).pop("failurePolicy", "")
    return found


def test_no_object_of_a_cluster_changes(site: Site) -> None:
    plan = site.sync()
    assert plan.removed == ()
    assert plan.held == ()
    before, after = (without_protection(objects(files, "manifests")) for files in (site.before, site.after))
    assert len({path for path, _, _ in before}) == 20
    for key in [key for key in before if key[1] == "GitRepo"]:
        # The flag overrode what bundles say.
        assert before[key]["spec"].pop("keepResources") is True
        assert "keepResources" not in after[key]["spec"]
    for key in [key for key in before if key[1] == "ConfigMap"]:
        before[key]["data"], after[key]["data"] = (without_policy(found[key]["data"]) for found in (before, after))
    assert {key: after[key] for key in before} == before
    # Add-ons by ClusterResourceSet are not pinned: on K3s they get the snapshot CRDs that the CSI driver lacks.
    added = {name for _, _, name in after.keys() - before.keys()}
    assert added == {"k3s-sets-csi-crds", "k3s-sets-snapshot-controller"}
    shared = [without_protection(objects(files, "namespaces")) for files in (site.before, site.after)]
    assert shared[0] == shared[1]
    assert site.sync().is_empty


def test_bundles_keep_their_release_and_all_are_protected(site: Site) -> None:
    site.sync()
    changed = {path for path, content in site.before.items() if site.after[path] != content and "clusters/" in path}
    records = {path for path in changed if path.endswith("/caphv.yaml")}
    # Only the cluster with `keepResources: false`: a lost GitRepo must not uninstall its add-ons.
    assert {path.split("/")[2] for path in changed} == {"unkept"}
    for path in changed - records:
        old, new = (yaml.safe_load(files[path]) for files in (site.before, site.after))
        assert new == {**old, "keepResources": True}


def test_a_deleted_lockfile_is_restored_before_anything_changes(site: Site) -> None:
    """As after a wrong resolution of a merge. The cluster would get the newest release, and another CNI unnoticed."""
    record = site.repository / "clusters" / "team-a" / "example" / "caphv.yaml"
    content = record.read_bytes()
    assert b'release: "2026.11"' in content
    record.unlink()
    definition = site.definitions / "example.yaml"
    text = definition.read_text()
    assert "name: calico" in text
    definition.write_text(text.replace("name: calico", "name: cilium"))
    folder = "clusters/team-a/example"
    assert folder not in site.sync("is missing: restore it from the history").changed
    record.write_bytes(content)
    assert folder not in site.sync("was rendered as").changed
    definition.write_text(text)
    site.sync()
    assert record.read_bytes() == content


def test_new_boot_files_come_with_the_next_deliberate_change(site: Site) -> None:
    site.sync()
    path = site.definitions / "example.yaml"
    path.write_text(path.read_text().replace("kubernetesVersion: v1.34", "kubernetesVersion: v1.35"))
    plan = site.sync()
    assert {folder for folder in plan.changed if folder.startswith("manifests/")} == {"manifests/team-a/example"}
    name = "manifests/team-a/example/cluster/cluster.yaml"
    assert b"caphv-manifests.sh" not in site.before[name]
    assert b"caphv-manifests.sh" in site.after[name]


def test_the_class_of_0_11_gets_the_variables_that_a_definition_needs(site: Site) -> None:
    site.sync()
    path = site.definitions / "example.yaml"
    path.write_text(path.read_text() + "  hardening: {cisProfile: cis}\n")
    plan = site.sync()
    assert {folder for folder in plan.changed if folder.startswith(("manifests/", "namespaces/"))} == {
        "manifests/team-a/example",
        "namespaces/team-a/harvester-rke2",
    }
    name = "namespaces/team-a/harvester-rke2/objects.yaml"
    found = list(yaml.safe_load_all(site.after[name]))
    assert [obj["spec"] for obj in found] == [obj["spec"] for obj in cluster_class("harvester-rke2", "team-a")]
    assert site.sync().is_empty
    # One that users have changed is theirs.
    changed = list(yaml.safe_load_all(site.before[name]))
    assert is_of_earlier_release(changed)
    changed[-1]["spec"]["patches"].pop()
    assert not is_of_earlier_release(changed)


async def test_fleet_neither_deletes_nor_changes_an_object_of_the_management_cluster(
    empty_api_server: ApiServer, site: Site
) -> None:
    new = management_git_repo(OPTIONS)
    old = {**new, "spec": {**new["spec"], **OLD_FLAG}}
    async with empty_api_server.client() as client:
        await install_kinds_of(client, site.before)
        await client.create(NAMESPACES, {"metadata": {"name": "fleet-default"}})
        fleet = FleetCluster(client, Helm(empty_api_server.kubeconfig()))
        ready = await fleet.sync(site.before, old)
        assert len(ready) == len(fleet.releases) > 20
        before = await identities(fleet, client)
        site.sync()
        assert await fleet.sync(site.after, new) == ready
        after = await identities(fleet, client)
        assert {key for key in before if key[0] != "GitRepo" and before[key] != after[key]} == set()


async def identities(fleet: FleetCluster, client: ApiClient) -> dict[tuple[str, str, str], tuple[str, int]]:
    """Return uid and generation of each object that Fleet deployed: a spec that changes has another generation."""
    objects, found = Objects(client, "reader"), {}
    for release in fleet.releases.values():
        for obj in release.bundle.objects:
            live = await objects.read(obj, release.bundle.namespace)
            assert live, (obj["kind"], obj["metadata"]["name"])
            key = obj["kind"], live["metadata"].get("namespace", ""), live["metadata"]["name"]
            found[key] = live["metadata"]["uid"], live["metadata"].get("generation", 0)
    return found


def cluster_names(files: dict[str, bytes]) -> Iterator[str]:
    yield from sorted({path.split("/")[2] for path in files if path.startswith("clusters/")})


async def test_fleet_uninstalls_no_add_on_with_the_sync_nor_with_the_release_of_the_bundles(
    empty_api_server: ApiServer, site: Site
) -> None:
    before = site.before
    site.sync()
    after = site.after
    async with empty_api_server.client() as client:
        await manifests.apply(client, [crd(HELM_CHARTS), crd(HELM_CHART_CONFIGS)])
        there = Objects(client, "reader")
        for name in cluster_names(before):
            # One cluster after the other, in one API server: each finds what the previous one has left.
            fleet = FleetCluster(client, Helm(empty_api_server.kubeconfig()))
            repo: Obj = {"spec": {"paths": [f"clusters/team-a/{name}/*"]}}
            ready = await fleet.sync(before, {"spec": {**repo["spec"], **OLD_FLAG}})
            releases = {one.bundle.release: one for one in fleet.releases.values()}
            installed = {release: one.bundle.objects for release, one in releases.items() if not one.error}
            assert await fleet.sync(after, repo) == ready
            for release, wanted in installed.items():
                for obj in wanted:
                    assert await there.read(obj, "kube-system"), (name, release)
            # Bundles whose flag of the GitRepo went away are deployed again, with the same objects.
            assert {one.bundle.keep_resources for one in fleet.releases.values()} == {True}
