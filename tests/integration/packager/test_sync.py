"""`caphv packager sync` and `gitrepo`: one commit that names its source, and faults by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from caphv.api.object import Obj, uid_of
from caphv.validation.yaml.loader import files
from packager.definitions.protection import is_protected, unprotect
from sandbox.manifests import apply
from sandbox.processes.apiserver import ApiServer
from tests.support.addons.fleet import FleetCluster
from tests.support.addons.helm import Helm
from tests.support.packager.definitions import definition, k3s
from tests.support.packager.environment import crd
from tests.support.packager.repositories import Origin, git
from tests.support.packager.sync import STATUS, call, changed, done, put, status, sync
from tests.support.resources import HELM_CHART_CONFIGS

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_environment")]


def test_definitions_become_manifests_and_bundles_in_one_commit(source: Path, origin: Origin) -> None:
    put(source, definition("prod"), k3s("edge"), definition("own", addonDelivery="ClusterResourceSet"))
    done(sync(source, origin))
    assert origin.count() == 1
    assert "Source: definitions" in origin.message()
    found = origin.files()
    for cluster in ("prod", "edge", "own"):
        objects = list(yaml.safe_load_all(found[f"manifests/team-a/{cluster}/cluster/cluster.yaml"]))
        assert objects[0]["kind"] == "Cluster"
    for path in ("clusters/team-a/prod/cni/fleet.yaml", "clusters/team-a/edge/ccm/helmchart.yaml"):
        assert path in found
    assert not any(path.startswith("clusters/team-a/own/") for path in found)
    assert {"namespaces/team-a/namespace/objects.yaml", "namespaces/team-a/harvester-rke2/objects.yaml"} <= found.keys()
    repo = yaml.safe_load(found["gitrepos/fleet-default/caphv-team-a/gitrepo.yaml"])
    assert repo["spec"]["paths"] == ["clusters/team-a/*/*"]
    assert status(origin)["problems"] == []
    again = done(sync(source, origin))
    assert "nothing to do" in again.stdout
    assert origin.count() == 1


def test_a_changed_setting_is_one_small_commit_and_replaces_no_machine(source: Path, origin: Origin) -> None:
    put(source, definition("prod"), definition("other"))
    done(sync(source, origin))
    put(source, definition("prod", addons={"cni": {"name": "calico", "mtu": 1400}}))
    done(sync(source, origin))
    assert changed(origin) == [
        "clusters/team-a/prod/caphv.yaml",
        "clusters/team-a/prod/cni/helmchartconfig.yaml",
        "manifests/team-a/prod/cluster/cluster.yaml",
    ]
    difference = git(origin.folder, "diff", "--unified=0", "main~1", "main", "--", "manifests")
    lines = [line for line in difference.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert lines == ["-        mtu: 1450", "+        mtu: 1400"]
    assert origin.message().startswith("team-a/prod: mtu 1450→1400\n")


async def test_clusters_that_get_a_group_leave_their_gitrepo_without_an_uninstallation(
    source: Path, origin: Origin, management: ApiServer
) -> None:
    def repo(name: str) -> Obj:
        found: Obj = yaml.safe_load(origin.files()[f"gitrepos/fleet-default/caphv-{name}/gitrepo.yaml"])
        return found

    def content() -> dict[str, bytes]:
        return {path: text.encode() for path, text in origin.files().items()}

    put(source, definition("prod"))
    done(sync(source, origin))
    async with management.client() as client:
        await apply(client, [crd(HELM_CHART_CONFIGS)])
        fleet = FleetCluster(client, Helm(management.kubeconfig()))

        async def installed() -> set[str]:
            return {uid_of(obj) for obj in (await client.list(HELM_CHART_CONFIGS))["items"]}

        cni = [name for name in await fleet.sync(content(), repo("team-a")) if name.startswith("cni-")]
        before = await installed()
        assert cni
        put(source, definition("prod", addons={"fleet": {"group": "production"}}))
        done(sync(source, origin))
        # The worse order: the former GitRepo runs first, and Fleet deletes the Bundles that have its label.
        assert await fleet.sync(content(), repo("team-a")) == []
        assert fleet.error == "no resource found at the following paths to deploy"
        assert [name for name in await fleet.sync(content(), repo("production")) if name.startswith("cni-")] == cni
        assert await installed() == before
    count = origin.count()
    assert "nothing to do" in done(sync(source, origin)).stdout
    assert origin.count() == count


def test_a_bad_definition_is_reported_by_file_and_line_and_keeps_what_it_has(source: Path, origin: Origin) -> None:
    put(source, definition("good"), definition("bad"))
    done(sync(source, origin))
    before = origin.files()
    put(source, definition("good", targetNamespace="elsewhere"), definition("bad", kubernetesVersion="latest"))
    result = sync(source, origin)
    assert result.exit_code == 1
    line = (source / "bad.yaml").read_text().splitlines().index("  kubernetesVersion: latest") + 1
    assert f"error: bad.yaml:{line}: spec.kubernetesVersion: Invalid value" in result.stderr
    assert changed(origin) == [STATUS, "manifests/team-a/good/cluster/cluster.yaml"]
    after = origin.files()
    assert {path: text for path, text in after.items() if "/bad/" in path} == {
        path: text for path, text in before.items() if "/bad/" in path
    }
    (problem,) = status(origin)["problems"]
    assert (problem["file"], problem["line"], problem["severity"]) == ("bad.yaml", line, "error")
    assert {row["name"]: row["state"] for row in status(origin)["clusters"]} == {
        "team-a/bad": "Faulty",
        "team-a/good": "Written",
    }
    assert sync(source, origin).exit_code == 1
    assert origin.count() == 2


def test_files_and_clusters_of_others_are_not_touched(source: Path, origin: Origin) -> None:
    origin.push({"README.md": "ours", "clusters/team-a/theirs/cni/fleet.yaml": "theirs"})
    put(source, definition("a"))
    done(sync(source, origin))
    (source / "a.yaml").unlink()
    put(source, definition("b"))
    assert sync(source, origin, "--confirm", "team-a/a").exit_code == 1
    done(sync(source, origin, "--confirm", "team-a/a"))
    found = origin.files()
    assert found["README.md"] == "ours"
    assert found["clusters/team-a/theirs/cni/fleet.yaml"] == "theirs"


def test_a_class_that_is_there_stays_as_it_is(source: Path, origin: Origin) -> None:
    put(source, definition("a"))
    done(sync(source, origin))
    path = "namespaces/team-a/harvester-rke2/objects.yaml"
    older = origin.files()[path].replace("default: 2", "default: 3")
    origin.push({path: older})
    put(source, definition("b"))
    done(sync(source, origin))
    assert origin.files()[path] == older


def test_plain_manifests_are_taken_as_they_are(source: Path, origin: Origin, checkout: Path) -> None:
    (source / "production.yaml").write_text((checkout / "examples" / "rke2-pools.yaml").read_text())
    done(sync(source, origin))
    found = origin.files()
    written = list(yaml.safe_load_all(found["manifests/team-a/production/cluster/cluster.yaml"]))
    given = list(yaml.safe_load_all((source / "production.yaml").read_text()))
    assert sorted(unprotect(written), key=str) == sorted(given, key=str)
    assert {obj["kind"] for obj in written if not is_protected(obj)} == {"MachineHealthCheck"}
    assert "clusters/team-a/production/cni/helmchartconfig.yaml" in found


def test_objects_in_the_folder_of_a_cluster_go_with_it(source: Path, origin: Origin, checkout: Path) -> None:
    cluster, *others = yaml.safe_load_all((checkout / "examples" / "rke2-dhcp.yaml").read_text())
    folder = source / "production"
    folder.mkdir()
    (folder / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    (folder / "others.yaml").write_text(yaml.safe_dump_all(others))
    done(sync(source, origin))
    written = list(yaml.safe_load_all(origin.files()["manifests/team-a/production/cluster/cluster.yaml"]))
    assert len(written) == len(others) + 1
    (source / "stray.yaml").write_text(yaml.safe_dump(others[0]))
    result = sync(source, origin)
    assert result.exit_code == 1
    assert "stray.yaml:" in result.stderr
    assert "belongs to no Cluster" in result.stderr


def test_plain_manifests_are_validated_and_never_hold_secrets(source: Path, origin: Origin, checkout: Path) -> None:
    text = (checkout / "examples" / "rke2-pools.yaml").read_text()
    (source / "bad.yaml").write_text(text.replace("ipamType: pool", "ipamType: pol"))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x", "namespace": "team-b"}}
    other = text.replace("namespace: team-a", "namespace: team-b") + "---\n" + yaml.safe_dump(secret)
    (source / "secret.yaml").write_text(other)
    result = sync(source, origin)
    assert result.exit_code == 1
    assert "spec.loadBalancerConfig.ipamType: Unsupported value" in result.stderr
    assert "a Secret must not be in Git" in result.stderr
    assert not any(path.startswith("manifests/") for path in origin.files())


def test_two_of_one_cluster_are_both_refused(source: Path, origin: Origin) -> None:
    put(source, definition("a"))
    (source / "again.yaml").write_text((source / "a.yaml").read_text())
    result = sync(source, origin)
    assert result.exit_code == 1
    assert "a.yaml:" in result.stderr
    assert "again.yaml:" in result.stderr
    assert not any(path.startswith("manifests/") for path in origin.files())


def test_without_bundles_only_manifests_are_written(source: Path, origin: Origin) -> None:
    put(source, definition("a"))
    done(sync(source, origin, "--no-bundles"))
    assert {path.split("/")[0] for path in origin.files()} == {"manifests", "namespaces", STATUS}


def test_a_dry_run_and_a_folder(source: Path, origin: Origin, tmp_path: Path) -> None:
    put(source, definition("a"))
    reported = json.loads(done(sync(source, origin, "--dry-run", "-o", "json")).stdout)
    assert ("manifests/team-a/a", "added") in {(item["name"], item["change"]) for item in reported["items"]}
    assert reported["clusters"] == ["team-a/a"]
    assert git(origin.folder, "for-each-ref") == ""
    folder = tmp_path / "checkout"
    (folder / ".git").mkdir(parents=True)
    done(call("sync", source, "--folder", folder))
    assert (folder / "manifests/team-a/a/cluster/cluster.yaml").is_file()
    assert not (folder / "gitrepos").exists()
    assert "nothing to do" in done(call("sync", source, "--folder", folder)).stdout
    assert [name for name, _ in files([str(folder / "manifests")])]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--repo", "file:///x"],
        [".", "--source-repo", "file:///x", "--repo", "file:///y"],
        ["--source-repo", "file:///x", "--repo", "file:///x"],
        ["--source-repo", "file:///x", "--source-path", "a", "--repo", "file:///x", "--path", "a/b"],
        ["."],
        [".", "--folder", "x", "--client-secret", "y"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    assert call("sync", *arguments).exit_code == 2


def test_a_hostile_source_stays_in_its_folders(source: Path, origin: Origin) -> None:
    evil = definition("a")
    evil["metadata"]["namespace"] = "../../etc"
    (source / "evil.yaml").write_text(yaml.safe_dump(evil))
    (source / "list.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [k3s("b")]}))
    (source / "notes.yaml").write_text("just: notes\n")
    (source / "odd.yaml").write_text("metadata: 7\nkind: ClusterDefinition\napiVersion: caphv.io/v1alpha1\n")
    result = sync(source, origin)
    assert result.exit_code == 1
    assert "evil.yaml:" in result.stderr
    assert "odd.yaml:" in result.stderr
    assert "manifests/team-a/b/cluster/cluster.yaml" in origin.files()
    assert not any("etc" in path for path in origin.files())


def test_the_git_repo_of_the_management_cluster() -> None:
    result = done(call("gitrepo", "--repo", "https://git.example.com/f.git", "--path", "x", "--client-secret", "s"))
    repo = yaml.safe_load(result.stdout)
    assert repo["metadata"] == {"name": "caphv-management", "namespace": "fleet-local"}
    assert repo["spec"]["paths"] == ["x/namespaces/*/*", "x/manifests/*/*/*", "x/gitrepos/*/*"]
    assert call("gitrepo", "--repo", "https://user:secret@git.example.com/f.git").exit_code == 2
