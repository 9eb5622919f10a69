"""`caphv bundles` with files, folders and a repository on disk: what is written, what is printed, and exit statuses."""

import json
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from caphv.api.object import Obj
from packager.addons.facts import ClusterFacts
from packager.git.directory import Directory
from packager.git.pruning import Pruning
from packager.git.remote import Remote
from packager.git.repository import Repository
from packager.planning.commitplan import commit_plan
from packager.planning.planner import Planner
from packager.planning.state import ManagementState
from packager.rendering.bundler import Bundler
from tests.support.packager.commands import call, manifest, write
from tests.support.packager.examples import cluster
from tests.support.packager.repositories import Origin
from tests.support.packager.sync import call as packager_call
from tests.support.packager.tables import older_table

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and nothing of the user who runs the tests."""
    for name in ("REPO", "BRANCH", "PATH", "CREDENTIALS", "PASSWORD", "USERNAME", "REVIEW", "AUTHOR", "CACHE"):
        monkeypatch.delenv(f"CAPHV_GIT_{name}", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin.make(tmp_path / "origin")


@pytest.fixture
def clusters(tmp_path: Path) -> Path:
    return tmp_path / "clusters"


INVALID: Obj = {"cni": {"mtu": 1}}


# Rendering


def test_render_prints_the_files_of_clusters(clusters: Path) -> None:
    result = call("render", write(clusters, manifest("a", {"cni": {"mtu": 1400}}), manifest("b")))
    assert result.exit_code == 0, result.output
    parts = [part.partition("\n") for part in result.stdout.split("---\n") if part.startswith("# clusters/")]
    found = {head.removeprefix("# "): yaml.safe_load(body) for head, _, body in parts}
    assert {path.split("/")[2] for path in found} == {"a", "b"}
    assert found["clusters/team/a/ccm/fleet.yaml"]["overrideTargets"] == [{"clusterName": "a"}]
    assert found["clusters/team/a/caphv.yaml"]["network"]["cni"] == "calico"


def test_a_namespace_without_clusters_is_reported(clusters: Path) -> None:
    result = call("render", write(clusters, manifest("a")), "-n", "nowhere")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no such cluster" in result.stderr


def test_render_as_json_and_as_tree(clusters: Path) -> None:
    write(clusters, manifest("a"), manifest("bad", INVALID))
    result = call("render", clusters, "-o", "json")
    assert result.exit_code == 1
    good, bad = json.loads(result.stdout)["items"]
    assert (good["name"], bad["files"], bad["findings"][0]["rule"]) == ("a", {}, "schema-minimum")
    tree = call("render", clusters, "-o", "tree").stdout.splitlines()
    assert tree[:5] == ["clusters/", "  team/", "    a/", "      caphv.yaml", "      ccm/"]
    assert tree.count("        fleet.yaml") == 3


def test_render_from_stdin_names_the_line_of_a_fault() -> None:
    text = "# the first line\n" + yaml.safe_dump({"kind": "List", "items": [manifest("bad", INVALID)]})
    result = call("render", "-", stdin=text)
    assert result.exit_code == 1
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "mtu: 1" in line)
    assert f"<stdin>:{line}: cluster team/bad: error: " in result.stderr
    assert "must be at least 576" in result.stderr


def test_render_into_a_folder_keeps_versions_and_leaves_other_files(clusters: Path, tmp_path: Path) -> None:
    target = tmp_path / "fleet"
    publish(older_table(tmp_path), target, cluster("a", namespace="team"))
    (target / "mine.txt").write_text("mine")
    write(clusters, manifest("a", {"csi": {"enabled": False}}), manifest("b"))
    assert call("render", clusters, "--to", target).exit_code == 0
    there = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert "mine.txt" in there
    assert "clusters/team/b/csi/fleet.yaml" in there
    # What was disabled is released first, and removed with the next call.
    assert "keepResources: false" in (target / "clusters/team/a/csi/fleet.yaml").read_text()
    assert call("render", clusters, "--to", target).exit_code == 0
    assert not (target / "clusters/team/a/csi/fleet.yaml").exists()
    assert not (target / "clusters/team/a/csi").exists()
    assert "release: older" in (target / "clusters/team/a/caphv.yaml").read_text()


def state(facts: Iterable[ClusterFacts]) -> ManagementState:
    return ManagementState(tuple(facts), live=False, pruning=Pruning(complete=True, budget=0))


def publish(table: Path, target: Path, *facts: ClusterFacts) -> None:
    """Have a folder hold what an earlier release rendered."""
    commit_plan(Directory(target, names=("clusters",)), Planner(Bundler(versions_file=table)), state(facts))


def test_gitrepos_are_made_for_all_clusters_or_not_at_all(clusters: Path) -> None:
    write(clusters, manifest("a"), manifest("b"))
    options = ("-o", "gitrepo", "--repo", "https://git.example.com/fleet.git", "--path", "add-ons")
    result = call("render", clusters, *options, "--client-secret", "fleet-git")
    (found,) = yaml.safe_load_all(result.stdout)
    assert found["spec"]["paths"] == ["add-ons/clusters/team/*/*"]
    assert found["spec"]["clientSecretName"] == "fleet-git"
    write(clusters, manifest("a"), manifest("bad", INVALID))
    result = call("render", clusters, *options)
    assert (result.exit_code, result.stdout) == (1, "")


def test_gitrepos_are_not_made_for_a_folder_that_fleet_cannot_read(clusters: Path, origin: Origin) -> None:
    write(clusters, manifest("a"))
    result = call("render", clusters, "-o", "gitrepo", "--repo", "file:///srv/fleet.git")
    assert result.exit_code == 2
    assert "give its https:// or ssh:// address" in result.output


def test_gitrepos_of_clusters_have_the_certificates_that_fleet_trusts(clusters: Path, tmp_path: Path) -> None:
    write(clusters, manifest("a"))
    (tmp_path / "ca.pem").write_text("CA")
    options = ("-o", "gitrepo", "--repo", "https://git.example.com/f.git")
    for more, bundle in (((), None), (("--ca-file", tmp_path / "ca.pem"), b64encode(b"CA").decode())):
        result = call("render", clusters, *options, *more)
        assert yaml.safe_load(result.stdout)["spec"].get("caBundle") == bundle


def test_gitrepo_of_the_management_cluster_is_printed(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    more = ("--path", "x", "--branch", "stable", "--client-secret", "s", "--ca-file", tmp_path / "ca.pem")
    result = packager_call("gitrepo", "--repo", "https://git.example.com/f.git", *more)
    repo = yaml.safe_load(result.stdout)
    assert not result.stdout.endswith("\n\n")
    assert repo["metadata"] == {"name": "caphv-management", "namespace": "fleet-local"}
    assert repo["spec"]["paths"] == ["x/namespaces/*/*", "x/manifests/*/*/*", "x/gitrepos/*/*"]
    assert (repo["spec"]["branch"], repo["spec"]["clientSecretName"]) == ("stable", "s")
    assert "caBundle" in repo["spec"]
    for url in ("https://user:secret@git.example.com/f.git", "file:///srv/fleet.git"):
        assert packager_call("gitrepo", "--repo", url).exit_code == 2


# Pushing and comparing


def test_a_changed_setting_is_one_small_commit(clusters: Path, origin: Origin) -> None:
    write(clusters, manifest("a"), manifest("b"))
    assert call("verify", clusters, "--repo", origin.url).exit_code == 1
    assert call("push", clusters, "--repo", origin.url, "--message", "first").exit_code == 0
    assert origin.message().split("\n\n")[1] == "first"
    assert call("verify", clusters, "--repo", origin.url).exit_code == 0
    assert call("diff", clusters, "--repo", origin.url).output == ""
    again = call("push", clusters, "--repo", origin.url)
    assert (again.exit_code, again.stdout, origin.count()) == (0, "nothing changed\n", 1)

    write(clusters, manifest("a", {"cni": {"mtu": 1400}}), manifest("b"))
    shown = call("diff", clusters, "--repo", origin.url)
    assert shown.exit_code == 1
    lines = shown.stdout.splitlines()
    assert [line for line in lines if line.startswith("+ ") and "mtu" in line] == ["+        mtu: 1400"]
    assert {line for line in lines if line.startswith("+++")} == {
        "+++ b/clusters/team/a/caphv.yaml",
        "+++ b/clusters/team/a/cni/helmchartconfig.yaml",
    }
    proof = json.loads(call("verify", clusters, "--repo", origin.url, "-o", "json").stdout)
    assert {one["name"]: one["state"] for one in proof["items"]} == {"team/a": "differs", "team/b": "matches"}
    pushed = json.loads(call("push", clusters, "--repo", origin.url, "-o", "json").stdout)
    assert pushed["commit"] == origin.head()
    assert pushed["files"] == {
        "written": ["clusters/team/a/caphv.yaml", "clusters/team/a/cni/helmchartconfig.yaml"],
        "removed": [],
    }
    subject, reason, *_ = origin.message().split("\n\n")
    assert (subject, reason) == ("team/a: mtu none→1400", "Bundles follow the settings of their clusters.")


def test_an_invalid_cluster_is_reported_and_loses_nothing(clusters: Path, origin: Origin) -> None:
    call("push", write(clusters, manifest("a"), manifest("b")), "--repo", origin.url)
    before = origin.files()
    write(clusters, manifest("a", INVALID), manifest("b", {"cni": {"mtu": 1400}}))
    result = call("push", clusters, "--prune", "--max-prune", 99, "--repo", origin.url)
    assert result.exit_code == 1
    assert "cluster team/a: error: " in result.stderr
    now = origin.files()
    assert {path for path in now if now[path] != before[path]} == {
        "clusters/team/b/caphv.yaml",
        "clusters/team/b/cni/helmchartconfig.yaml",
    }
    assert before.keys() == now.keys()


def test_a_suspended_cluster_is_reported_and_keeps_what_it_has(clusters: Path, origin: Origin) -> None:
    call("push", write(clusters, manifest("a")), "--repo", origin.url)
    suspended = manifest("a", {"cni": {"mtu": 1400}})
    suspended["metadata"]["annotations"]["addons.caphv.io/suspend"] = "true"
    for command in (("push", "--repo", origin.url, "--prune", "--max-prune", 99), ("render",)):
        result = call(*command, write(clusters, suspended))
        assert result.exit_code == 0
        assert "cluster team/a: suspended by annotation addons.caphv.io/suspend" in result.stderr
    assert origin.count() == 1


def test_clusters_that_were_not_given_stay_unless_it_is_asked_for(clusters: Path, origin: Origin) -> None:
    call("push", write(clusters, *map(manifest, "abcde")), "--repo", origin.url)
    write(clusters, manifest("a"))
    assert call("push", clusters, "--repo", origin.url).stdout == "nothing changed\n"
    assert call("verify", clusters, "--repo", origin.url, "--partial").exit_code == 0
    extra = call("verify", clusters, "--repo", origin.url)
    assert extra.exit_code == 1
    assert extra.stdout.count("extra") == 5
    held = call("push", clusters, "--prune", "--repo", origin.url)
    assert held.exit_code == 1
    assert "exceed --max-prune 10" in held.stdout
    assert origin.count() == 1
    assert call("push", clusters, "--prune", "--max-prune", 12, "--repo", origin.url).exit_code == 0
    assert {path.split("/")[2] for path in origin.files()} == {"a"}


def test_nothing_is_removed_when_a_file_cannot_be_read(clusters: Path, origin: Origin) -> None:
    call("push", write(clusters, *map(manifest, "ab")), "--repo", origin.url)
    write(clusters, manifest("a", {"cni": {"mtu": 1400}}))
    (clusters / "b.yaml").write_text("{")
    result = call("push", clusters, "--prune", "--max-prune", 99, "--repo", origin.url)
    assert result.exit_code == 2
    assert "b.yaml:2" in result.stderr
    assert {path.split("/")[2] for path in origin.files()} == {"a", "b"}
    assert call("verify", clusters, "--repo", origin.url).exit_code == 2


def test_pruning_a_namespace_leaves_the_others(clusters: Path, origin: Origin) -> None:
    other = cluster("z", namespace="other").cluster
    other["spec"] |= {"infrastructureRef": {"kind": "HarvesterCluster"}}
    call("push", write(clusters, *map(manifest, "ab"), other), "--repo", origin.url)
    write(clusters, manifest("a"))
    assert call("push", clusters, "-n", "team", "--prune", "--repo", origin.url).exit_code == 0
    assert {path.split("/")[2] for path in origin.files()} == {"a", "z"}


def test_diff_of_one_file_shows_what_a_push_of_it_changes(clusters: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    one, other = write(clusters, manifest("a")), write(tmp_path / "more", manifest("b"))
    assert call("push", one, other, "--folder", fleet).exit_code == 0
    assert call("diff", one, "--folder", fleet).exit_code == 0
    removals = call("diff", one, "--prune", "--folder", fleet, "-o", "text")
    assert removals.exit_code == 1
    assert "team/b" in removals.stdout


def test_a_branch_for_review_and_a_path_in_the_repository(clusters: Path, origin: Origin) -> None:
    origin.push({"readme": "x"})
    options = ("--repo", origin.url, "--path", "add-ons")
    result = call("push", write(clusters, manifest("a")), *options, "--review", "caphv/a", "--author", "Me <me@x>")
    assert result.exit_code == 0, result.output
    assert "on caphv/a" in result.stdout
    assert "add-ons/clusters/team/a/caphv.yaml" in origin.files("caphv/a")
    assert list(origin.files()) == ["readme"]


def test_verify_finds_what_was_changed_by_hand(clusters: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    call("render", write(clusters, manifest("a")), "--to", fleet)
    assert call("verify", clusters, "--folder", fleet).exit_code == 0
    changed = fleet / "clusters/team/a/csi/fleet.yaml"
    changed.write_text(changed.read_text().replace("0.1.31", "0.1.30"))
    result = call("verify", clusters, "--folder", fleet)
    assert result.exit_code == 1
    assert "csi/fleet.yaml" in result.stdout
    summary = call("diff", clusters, "--folder", fleet, "-o", "text").stdout.splitlines()
    assert summary[1].split() == ["team/a", "differs", "csi/fleet.yaml", "+1", "-1"]


# Versions


def test_files_of_others_that_fleet_deploys_are_reported(clusters: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    assert call("push", write(clusters, manifest("a")), "--folder", fleet).exit_code == 0
    foreign = ["clusters/extra/one/bundle/fleet.yaml", "clusters/team/a/cni/backdoor.yaml"]
    for path in (*foreign, "clusters/team/a/cni/README.md"):
        (fleet / path).parent.mkdir(parents=True, exist_ok=True)
        (fleet / path).write_text("kind: ClusterRoleBinding")
    result = call("verify", clusters, "--folder", fleet)
    assert result.exit_code == 1
    assert all(path in result.stdout for path in foreign)
    assert "README.md" not in result.stdout
    proof = json.loads(call("verify", clusters, "--folder", fleet, "-o", "json").stdout)
    assert any(item["wrong"] for item in proof["items"])
    # A push reports them, and leaves them to their owner.
    assert "foreign clusters/team/a/cni/backdoor.yaml" in call("push", clusters, "--folder", fleet).stdout
    pushed = json.loads(call("push", clusters, "--prune", "--folder", fleet, "-o", "json").stdout)
    assert [item["name"] for item in pushed["items"] if item["change"] == "foreign"] == foreign
    assert all((fleet / path).exists() for path in foreign)


def test_list_shows_pinned_versions_and_hashes(clusters: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    publish(older_table(tmp_path), fleet, cluster("a", namespace="team"))
    call("render", write(clusters, manifest("b", {"cni": {"name": "cilium"}})), "--to", fleet)
    newest = Bundler().renderer.table.newest.release
    head, old, new = call("list", "--folder", fleet).stdout.splitlines()
    assert head.split() == ["CLUSTER", "RELEASE", "NEWER", "CNI", "BUNDLES", "HASH"]
    assert old.split()[:5] == ["team/a", "older", newest, "calico", "ccm,cni,csi"]
    assert new.split()[:4] == ["team/b", newest, "-", "cilium"]
    content = json.loads(call("list", "--folder", fleet, "-o", "json").stdout)["items"]
    assert content[0]["versions"]["charts"]["harvester-csi-driver"] == "0.0.1"
    (fleet / "clusters/team/a/caphv.yaml").write_text("nonsense")
    result = call("list", "--folder", fleet)
    assert result.exit_code == 1


def test_upgrades_go_in_waves(clusters: Path, origin: Origin, tmp_path: Path) -> None:
    older = Bundler(versions_file=older_table(tmp_path))
    with Repository(Remote(origin.url), tmp_path / "first") as repository:
        facts = [cluster(name, namespace="team") for name in "abcd"]
        commit_plan(repository, Planner(older), state(facts))
    write(clusters, *(manifest(name, wave="1" if name == "c" else "2") for name in "abcde"))
    assert call("upgrade", clusters, "--repo", origin.url).exit_code == 2
    shown = call("upgrade", clusters, "--repo", origin.url, "-l", "wave=1", "--dry-run")
    assert '+  version: "0.2.15"' in shown.stdout
    assert origin.count() == 1
    assert call("upgrade", clusters, "--repo", origin.url, "-l", "wave=1").exit_code == 0
    assert releases(origin) == {"a": "older", "b": "older", "c": "2026.12", "d": "older"}
    result = call("upgrade", clusters, "--repo", origin.url, "--count", "2", "--max-prune", 99)
    assert "2 clusters for release 2026.12, 1 more wait; 1 are not in the repository yet" in result.stderr
    assert releases(origin) == {"a": "2026.12", "b": "2026.12", "c": "2026.12", "d": "older"}
    assert call("push", clusters, "--repo", origin.url).exit_code == 0
    assert releases(origin)["d"] == "older"
    assert call("upgrade", clusters, "--repo", origin.url, "--all").exit_code == 0
    assert set(releases(origin).values()) == {"2026.12"}
    assert "nothing changed" in call("upgrade", clusters, "--repo", origin.url, "--all").stdout


def releases(origin: Origin) -> dict[str, str]:
    return {
        path.split("/")[2]: yaml.safe_load(content)["versions"]["release"]
        for path, content in origin.files().items()
        if path.endswith("/caphv.yaml")
    }


# Wrong usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("push", "x.yaml"), "give a repository"),
        (("push", "x.yaml", "--repo", "https://user:hidden@host/x"), "must not hold a password"),
        (("push", "x.yaml", "--folder", "x", "--repo", "file:///x"), "mutually exclusive"),
        (("push", "x.yaml", "--repo", "file:///x", "--author", "no-address"), "--author"),
        (("push", "x.yaml", "--prune", "-l", "a=b", "--repo", "file:///x"), "--prune needs all clusters"),
        (("diff", "x.yaml", "--folder", "x", "-l", "a b"), "selects no labels"),
        (("diff", "x.yaml", "--folder", "x", "--path", "../y"), "relative path"),
        (("render", "x.yaml", "--kubeconfig", "y"), "not both"),
        (("render", "x.yaml", "--chart-repo", "ftp://x"), "is not a chart repository"),
        (("upgrade", "x.yaml", "--folder", "x", "--all", "--release", "1"), "there is no release '1'"),
        (("render", "--kubeconfig", "not-there"), "cannot read the kubeconfig not-there"),
        (("verify", "x.yaml", "--repo", "file:///not/there"), "reading branches"),
    ],
)
def test_wrong_usage_is_explained(arguments: tuple[str, ...], message: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "hidden" not in result.output


def test_a_folder_contradicts_no_repository_that_is_empty_or_from_the_environment(
    clusters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(clusters, manifest("a"))
    assert call("push", clusters, "--folder", tmp_path / "fleet", "--repo", "").exit_code == 0
    monkeypatch.setenv("CAPHV_GIT_REPO", "file:///not/there")
    assert call("verify", clusters, "--folder", tmp_path / "fleet").exit_code == 0


@pytest.mark.parametrize("name", ["render", "diff", "push", "verify", "list", "upgrade"])
def test_every_command_teaches_with_examples(name: str) -> None:
    text = call(name, "--help").output
    assert f"caphv bundles {name}" in text.partition("Examples:")[2]
    assert "Exit status:" in text


# The management cluster


def test_files_are_suggested_only_to_a_user_who_named_no_management_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setenv("KUBECONFIG", str(missing))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    hint = "alternatively, give files or folders with clusters"
    for words, has_hint in (((), True), (("--kubeconfig", missing), False), (("--context", "x"), False)):
        result = call("render", *words)
        assert (result.exit_code, "cannot read the management cluster: " in result.output) == (2, True), result.output
        assert (hint in result.output) is has_hint
