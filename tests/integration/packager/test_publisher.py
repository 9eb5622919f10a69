"""The side of the packager that blocks, with real repositories: definitions and live clusters, one commit for both."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from caphv.api.object import Key, Obj
from commands.main import cli
from packager.addons.facts import ClusterFacts
from packager.controller import condition, definition_source
from packager.controller.open_repository import RepositoryConfig
from packager.controller.publisher import Published, Publisher, PublisherOptions
from packager.definitions import builder, sourcefile
from packager.git.errors import GitError
from packager.git.remote import Remote
from packager.planning.state import ManagementState
from packager.rendering.gitrepo import GitRepoOptions
from tests.support.packager.definitions import definition
from tests.support.packager.repositories import Origin, git

pytestmark = pytest.mark.integration

ONE = Key("team-a", "one")
BUNDLES, MANIFEST = "clusters/team-a/one", "manifests/team-a/one"


class Case:
    """A source, a repository, and a publisher between them; `restarted` makes another one."""

    def __init__(self, folder: Path) -> None:
        self.source = Origin.make(folder / "source.git")
        self.origin = Origin.make(folder / "fleet.git")
        self._cache = folder / "cache"
        self._publisher: Publisher | None = None

    def define(self, *definitions: Obj) -> None:
        """Push these definitions, and no others."""
        files = {f"{found['metadata']['name']}.yaml": yaml.safe_dump(found) for found in definitions}
        self.source.push(files or {"README.md": "nothing"}, replace=True)

    def publisher(self) -> Publisher:
        if self._publisher is None:
            self.restarted()
        assert self._publisher is not None
        return self._publisher

    def publish(self, *live: ClusterFacts, **work: frozenset[Key]) -> Published:
        """Check everything once."""
        return self.publisher().publish(ManagementState(live, why="A test.", **work))

    def restarted(self, namespace: str = "") -> None:
        self.close()
        place = RepositoryConfig(Remote(self.source.url), self._cache / "source")
        self._publisher = Publisher(
            PublisherOptions(
                RepositoryConfig(Remote(self.origin.url), self._cache),
                namespace=namespace,
                source=definition_source.SourceOptions(place, lambda _: []),
                git_repos=GitRepoOptions(self.origin.url),
            )
        )

    def close(self) -> None:
        if self._publisher:
            self._publisher.close()
            self._publisher = None

    def live(self, **annotations: str) -> ClusterFacts:
        """Cluster one as Fleet and Cluster API have made it of the manifest in the repository."""
        text = self.origin.files()[f"{MANIFEST}/cluster/cluster.yaml"]
        cluster: Obj = next(iter(yaml.safe_load_all(text)))
        metadata = {"uid": "1", "resourceVersion": "7", "annotations": {}, **cluster["metadata"]}
        metadata["annotations"] |= annotations
        references = {
            "infrastructureRef": {"apiGroup": "x", "kind": "HarvesterCluster", "name": "one-x7"},
            "controlPlaneRef": {"apiGroup": "y", "kind": "RKE2ControlPlane", "name": "one-z9"},
        }
        defaulted = {"name": "defaulted", "value": 1}
        spec = {**copy.deepcopy(cluster["spec"]), **references}
        spec["topology"]["variables"].append(defaulted)
        server = {"cni": "calico", "cloudProviderName": "external"}
        return ClusterFacts(
            {"metadata": metadata, "spec": spec},
            {"spec": {"targetNamespace": "team-a", "cloudConfig": {"delivery": "Secret"}}},
            {"kind": "RKE2ControlPlane", "spec": {"replicas": 3, "version": "v1.34.2+rke2r1", "serverConfig": server}},
        )

    def changed(self) -> list[str]:
        """Files that the newest commit changed."""
        return git(self.origin.folder, "diff", "--name-only", "main~1", "main").splitlines()

    def has(self, folder: str) -> bool:
        return any(path.startswith(f"{folder}/") for path in self.origin.files())


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    found = Case(tmp_path)
    yield found
    found.close()


def calico(mtu: int, name: str = "one", **spec: Any) -> Obj:
    return definition(name, addons={"cni": {"name": "calico", "mtu": mtu}}, **spec)


def test_a_commit_of_definitions_is_one_commit_and_the_cluster_that_follows_none(case: Case, tmp_path: Path) -> None:
    case.define(calico(1450))
    case.publish()
    assert case.origin.count() == 1
    assert f"Source: {case.source.url}@{case.source.head()}" in case.origin.message()
    subject = case.source.message().splitlines()[0]
    assert f"Clusters follow their definitions: {subject}\n" in case.origin.message()
    assert case.has(f"{BUNDLES}/cni")
    assert case.has(MANIFEST)
    # The cluster comes up: first there is only the Cluster, then all of it.
    case.publish(incomplete=frozenset({ONE}))
    case.publish(case.live())
    assert case.origin.count() == 1
    # The command makes the very same.
    other = Origin.make(tmp_path / "other.git")
    arguments = ["packager", "sync", "--source-repo", case.source.url, "--repo", other.url]
    done = CliRunner().invoke(cli, arguments, env={"XDG_CACHE_HOME": str(tmp_path / "xdg")})
    assert done.exit_code == 0, done.output
    repo = "gitrepos/fleet-default/caphv-team-a/gitrepo.yaml"
    mine, theirs = case.origin.files(), other.files()
    assert mine.pop(repo).replace(case.origin.url, other.url) == theirs.pop(repo)
    assert mine == theirs


def test_a_changed_setting_is_one_commit_and_the_cluster_that_follows_changes_nothing(case: Case) -> None:
    case.define(calico(1450))
    case.publish()
    before = case.live()
    case.define(calico(1400))
    case.publish(before)
    assert case.changed() == [
        f"{BUNDLES}/caphv.yaml",
        f"{BUNDLES}/cni/helmchartconfig.yaml",
        f"{MANIFEST}/cluster/cluster.yaml",
    ]
    # No one has applied the manifest yet, also not for a packager that starts again and cannot read the source.
    case.publish(before)
    away = case.source.folder.with_name("away")
    case.source.folder.rename(away)
    case.restarted()
    assert "check the address" in str(case.publish(before).source_error)
    away.rename(case.source.folder)
    case.publish(before)
    case.publish(case.live())
    assert case.origin.count() == 2
    # Settings that are dropped altogether.
    dropped = case.live()
    case.define(definition("one", addons=None))
    case.publish(dropped)
    case.publish(dropped)
    case.publish(case.live())
    assert case.origin.count() == 3


def test_individual_objects_follow_like_a_topology(case: Case) -> None:
    case.define(calico(1450, individualObjects=True))
    case.publish()
    objects = list(yaml.safe_load_all(case.origin.files()[f"{MANIFEST}/cluster/cluster.yaml"]))
    kinds = {obj["kind"]: obj for obj in objects}
    live = ClusterFacts(kinds["Cluster"], kinds["HarvesterCluster"], kinds["RKE2ControlPlane"])
    case.publish(live)
    assert case.origin.count() == 1
    # With one node the cloud provider is installed in another way.
    single = calico(1450, individualObjects=True, controlPlane={"replicas": 1, "cpu": 4, "memory": "8Gi"})
    case.define(single)
    case.publish(live)
    case.publish(live)
    assert case.origin.count() == 2
    assert any("/ccm/" in path for path in case.changed())
    # A pool with machines is no longer defined: the condition says that it stays.
    case.define({**single, "spec": {**single["spec"], "workers": [{"name": "other"}]}})
    for _ in range(2):
        published = case.publish(live)
        (held,) = published.result.plan.held
        assert held.what == f"{MANIFEST}/MachineDeployment/one-workers"
        assert "replicas: 0" in condition.outcomes(published, {}, "")[ONE].message
    assert case.origin.count() == 3


def test_a_cluster_that_truly_differs_is_a_commit_of_its_bundles(case: Case) -> None:
    case.define(calico(1450))
    case.publish()
    live = case.live()
    # A ClusterClass of the user delivers the cloud config in another way than the definition could know.
    differs = replace(live, harvester_cluster={"spec": {"cloudConfig": {"delivery": "File"}}})
    published = case.publish(differs)
    assert case.origin.count() == 2
    assert published.changed == {ONE}
    assert "A test." in case.origin.message()
    assert "Source:" not in case.origin.message()
    assert all(path.startswith(f"{BUNDLES}/") for path in case.changed())
    case.publish(differs)
    # What is known better stays, also while the cluster cannot be rendered, and with the next definition.
    case.publish(keep=frozenset({ONE}))
    assert case.origin.count() == 2
    case.define(calico(1400))
    case.publish(differs)
    assert case.origin.count() == 3
    assert "/etc/kubernetes/cloud-config" in str(case.origin.files())


def test_bundles_go_with_the_cluster_and_never_before(case: Case) -> None:
    case.define(calico(1450))
    case.publish()
    live, count = case.live(), 1
    # The definition is deleted. Without a confirmation, only the status file gets a line.
    case.define()
    held = case.publish(live).result.plan.held
    assert [reported.what for reported in held] == [MANIFEST]
    assert "caphv.io/confirm-removal" in held[0].why
    case.publish()
    assert case.has(BUNDLES), "it has a manifest, so it may come at any time"
    # The user confirms it on the Cluster: one commit lifts the protection, the next one removes the manifest, once
    # Fleet has applied the first one. The bundles stay until the Cluster is deleted.
    case.publish(live, confirmed=frozenset({ONE}), protected=frozenset({ONE}))
    assert case.changed() == [f"{MANIFEST}/cluster/cluster.yaml"]
    (held,) = case.publish(live, confirmed=frozenset({ONE}), protected=frozenset({ONE})).result.plan.held
    assert "once Fleet has applied that" in held.why
    case.publish(live, confirmed=frozenset({ONE}))
    assert (case.has(MANIFEST), case.has(BUNDLES)) == (False, True)
    count = case.origin.count()
    case.publish(keep=frozenset({ONE}))
    assert case.origin.count() == count
    case.publish()
    assert (case.has(BUNDLES), case.origin.count()) == (False, count + 1)


def test_more_than_the_budget_stays_manifests_and_bundles(case: Case) -> None:
    names = ("one", "two", "three", "four")
    confirmed = [calico(1450, name) for name in names]
    for found in confirmed:
        found["metadata"]["annotations"] = {"caphv.io/confirm-removal": "true"}
    case.define(*confirmed)
    case.publish()
    case.define()
    held = case.publish().result.plan.held
    assert "16 removals at once exceed --max-prune 10" in held[0].why
    assert all(case.has(f"{root}/team-a/{name}") for root in ("manifests", "clusters") for name in names)


def test_a_cluster_that_went_while_paused_is_marked_until_it_is_back(case: Case) -> None:
    case.define(calico(1450))
    case.publish()
    live = case.live()
    case.define()
    case.publish(live, confirmed=frozenset({ONE}))
    case.publish(live, confirmed=frozenset({ONE}))
    tree = case.origin.tree()
    case.publish(moved=frozenset({ONE}))
    assert sorted(case.changed()) == [f"{BUNDLES}/.caphv-files", f"{BUNDLES}/.caphv-moved"]
    case.restarted()
    count = case.origin.count()
    (held,) = case.publish().result.plan.held
    assert (held.what, case.origin.count()) == (BUNDLES, count)
    assert "remove .caphv-moved" in held.why
    case.publish(live)
    assert case.origin.tree() == tree
    case.publish()
    assert not case.has(BUNDLES)


def test_a_faulty_definition_and_a_paused_cluster_are_left_as_they_are(case: Case) -> None:
    case.define(calico(1450), calico(1450, "two"))
    case.publish()
    case.define(calico(1450, kubernetesVersion="latest"), calico(1400, "two"))
    published = case.publish(keep=frozenset({Key("team-a", "two")}))
    assert published.built is not None
    assert published.built.invalid == {ONE}
    assert case.changed() == ["caphv-status.yaml", "manifests/team-a/two/cluster/cluster.yaml"]
    # A file that no one can read may hold any cluster, so nothing is deleted.
    case.source.push({"broken.yaml": "kind: ["}, replace=True)
    held = case.publish().result.plan.held
    assert {reported.what for reported in held} == {MANIFEST, "manifests/team-a/two"}


def test_a_packager_of_one_namespace_leaves_bundles_of_others_to_others(case: Case) -> None:
    case.restarted(namespace="team-b")
    case.define(calico(1450))
    case.publish()
    assert (case.has(MANIFEST), case.has(BUNDLES)) == (True, False)
    case.restarted(namespace="team-a")
    case.publish()
    assert case.has(BUNDLES)
    case.restarted(namespace="team-b")
    case.publish()
    assert case.has(BUNDLES)


@pytest.mark.parametrize(
    "content", ["7", "kind: [", "metadata: {name: one, namespace: team-a}\nkind: Cluster\nspec: 7\n"]
)
def test_what_others_write_is_set_right_and_stops_nothing(case: Case, content: str) -> None:
    case.define(calico(1450))
    case.publish()
    tree, live = case.origin.tree(), case.live()
    case.origin.push({f"{MANIFEST}/cluster/cluster.yaml": content})
    away = case.source.folder.with_name("away")
    case.source.folder.rename(away)
    case.restarted()
    case.publish(live)
    away.rename(case.source.folder)
    case.publish(live)
    assert case.origin.tree() == tree


def test_a_definition_that_brings_a_fault_of_ours_to_light_stops_no_other(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.define(calico(1450))
    case.publish()
    build = builder.build

    def fails(obj: Obj, *rest: Any) -> Any:
        if obj["metadata"]["name"] == "one":
            raise KeyError("canary")
        return build(obj, *rest)

    monkeypatch.setattr(builder, "build", fails)
    case.define(calico(1400), calico(1450, "two"))
    published = case.publish()
    assert published.built is not None
    (problem,) = published.built.problems
    assert (problem.file, "KeyError" in problem.message, "canary" in problem.message) == ("one.yaml", True, False)
    assert case.has(BUNDLES)
    assert case.has("clusters/team-a/two")


@pytest.mark.parametrize("copy", ["one (copy)", "\\377", "_one", "one-"])
def test_a_copied_folder_stops_no_cluster(case: Case, copy: str) -> None:
    """Git allows names that the packager never writes, and neither removes nor rewrites."""
    case.define(calico(1450))
    case.publish()
    copied: dict[str, str] = {}
    for path, content in case.origin.files().items():
        if path.startswith((f"{BUNDLES}/", f"{MANIFEST}/")):
            copied[f'"{path.replace("/one/", f"/{copy}/")}"'] = content
        elif path.startswith("gitrepos/"):
            copied[f'"{path.replace("/caphv-team-a/", f"/{copy}/")}"'] = content
    copied[f'"clusters/team-a/{copy}/.caphv-moved"'] = ""
    assert any("gitrepos" in path for path in copied)
    before = case.origin.push(copied)

    case.define(calico(1450), definition("two", addons={"cni": {"name": "calico"}, "fleet": {"group": "x"}}))
    published = case.publish()
    assert case.has("clusters/team-a/two")
    assert published.result.commit == case.origin.head()
    changed = git(case.origin.folder, "diff", "--name-only", before, "main").splitlines()
    assert not [path for path in changed if copy in path]
    shown = copy.replace("\\377", "\\udcff")
    assert f"clusters/team-a/{shown}/cni/fleet.yaml" in published.result.plan.foreign


def test_a_source_without_its_branch_is_no_source_without_definitions(case: Case) -> None:
    going = calico(1450)
    going["metadata"]["annotations"] = {"caphv.io/confirm-removal": "true"}
    case.define(going)
    case.publish()
    git(case.source.folder, "update-ref", "-d", "refs/heads/main")
    assert "has no branch main" in str(case.publish().source_error)
    case.restarted()
    case.publish()
    assert case.has(MANIFEST)


def test_a_large_file_is_refused_and_others_are_not_read(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sourcefile, "_MAX_FILE_BYTES", 4000)
    case.define(calico(1450))
    case.source.push({"large.yaml": "a: " + "x" * 5000, "picture.png": "x" * 5000, ".hidden.yaml": "kind: ["})
    published = case.publish()
    assert published.built is not None
    assert [problem.file for problem in published.built.problems] == ["large.yaml"]
    assert case.has(BUNDLES)


def test_who_stops_commits_nothing_more(case: Case) -> None:
    case.define(calico(1450))
    publisher = case.publisher()
    publisher.stop()
    with pytest.raises(GitError, match="stopping"):
        publisher.publish(ManagementState(()))
    assert case.origin.branches() == []


def test_nothing_new_is_not_read(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.define(calico(1450))
    case.publish()
    live = case.live()
    case.publish(live)

    read: list[str] = []

    def refuse(name: str) -> Callable[..., Any]:
        def called(*_: Any, **__: Any) -> Any:
            read.append(name)
            raise AssertionError(f"{name} was called")

        return called

    monkeypatch.setattr("packager.definitions.sourcefile.parse", refuse("parse"))
    monkeypatch.setattr("packager.definitions.builder.build", refuse("build"))
    monkeypatch.setattr("packager.planning.appliedclusters.apply_manifest", refuse("applied"))
    monkeypatch.setattr("packager.rendering.renderer.Renderer._render", refuse("_render"))
    case.publish(live)
    assert read == []
    assert case.origin.count() == 1
