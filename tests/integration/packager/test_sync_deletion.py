"""`caphv packager sync` deletes nothing that no one confirmed, and repeats what was confirmed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from caphv.api.object import Obj
from packager.definitions.protection import is_protected
from tests.support.packager.definitions import definition
from tests.support.packager.repositories import Origin, git
from tests.support.packager.sync import Management, changed, done, put, status, sync

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_environment")]


def test_nothing_is_deleted_while_a_file_cannot_be_read(source: Path, origin: Origin) -> None:
    put(source, definition("a"), definition("b"))
    done(sync(source, origin))
    (source / "a.yaml").unlink()
    (source / "b.yaml").write_text("apiVersion: [caphv.io\n")
    result = sync(source, origin, "--confirm", "team-a/a", "--confirm", "team-a/b")
    assert result.exit_code == 1
    assert "b.yaml:" in result.stderr
    assert "not all clusters are known" in result.stdout
    assert {
        "manifests/team-a/a/cluster/cluster.yaml",
        "manifests/team-a/b/cluster/cluster.yaml",
    } <= origin.files().keys()


def test_links_in_a_folder_are_followed_with_a_warning(source: Path, origin: Origin, tmp_path: Path) -> None:
    """A packager that reads the same files from a repository does not follow them."""
    shared = source / ".shared"
    (shared / "teams" / "..data").mkdir(parents=True)
    put(shared, definition("a"))
    put(shared / "teams" / "..data", definition("b"))
    (source / "a.yaml").symlink_to(shared / "a.yaml")
    (source / "teams").symlink_to(shared / "teams")
    result = done(sync(source, origin))
    assert "warning: a.yaml:1: is a symbolic link, which is followed in a folder, but not in a repo" in result.stderr
    assert "warning: teams:1: is a symbolic link, which is not followed" in result.stderr
    assert "manifests/team-a/a/cluster/cluster.yaml" in origin.files()
    # Kubernetes mounts a ConfigMap as links.
    (shared / "teams" / "b.yaml").symlink_to("..data/b.yaml")
    mounted = sync(shared / "teams", origin, "--dry-run")
    assert "added manifests/team-a/b" in mounted.stdout
    assert "link" not in mounted.stderr

    put(tmp_path, definition("c"))
    (source / "c.yaml").symlink_to(tmp_path / "c.yaml")
    outside = sync(source, origin, "--dry-run")
    assert outside.exit_code == 2
    assert "c.yaml: leads out of" in outside.output


def test_a_definition_is_deleted_only_with_a_confirmation(source: Path, origin: Origin) -> None:
    put(source, definition("a"), definition("b"))
    done(sync(source, origin))
    (source / "a.yaml").unlink()
    result = sync(source, origin)
    assert result.exit_code == 1
    assert "left manifests/team-a/a: removing a definition deletes its cluster" in result.stdout
    kept = origin.files()
    assert "clusters/team-a/a/cni/fleet.yaml" in kept
    assert "manifests/team-a/a/cluster/cluster.yaml" in kept
    lifted = sync(source, origin, "--confirm", "team-a/a")
    assert (lifted.exit_code, changed(origin)) == (1, ["manifests/team-a/a/cluster/cluster.yaml"])
    done(sync(source, origin, "--confirm", "team-a/a"))
    left = {path for path in origin.files() if "/a/" in path}
    assert left == set()
    assert "namespaces/team-a/namespace/objects.yaml" in origin.files()
    assert "manifests/team-a/b/cluster/cluster.yaml" in origin.files()


def test_an_annotation_confirms_before(source: Path, origin: Origin) -> None:
    going = definition("a")
    going["metadata"]["annotations"] = {"caphv.io/confirm-removal": "true"}
    put(source, going, definition("b"))
    done(sync(source, origin))
    (source / "a.yaml").unlink()
    done(sync(source, origin))
    assert not any(path.startswith("manifests/team-a/a/") for path in origin.files())


def test_more_removals_than_the_budget_are_all_held_back(source: Path, origin: Origin) -> None:
    put(source, *(definition(name) for name in ("a", "b", "c", "d")))
    done(sync(source, origin))
    for name in ("a", "b", "d"):
        (source / f"{name}.yaml").unlink()
    confirmed = [word for name in ("a", "b", "d") for word in ("--confirm", f"team-a/{name}")]
    assert sync(source, origin, *confirmed).exit_code == 1, "the commit that lifts their protection"
    result = sync(source, origin, *confirmed)
    assert result.exit_code == 1
    assert "12 removals at once exceed --max-prune 10" in result.stdout
    assert origin.count() == 2, "the status file is as before"
    states = {row["name"]: row["state"] for row in status(origin)["clusters"]}
    assert states == {"team-a/c": "Written"} | dict.fromkeys(("team-a/a", "team-a/b", "team-a/d"), "HeldBack")
    done(sync(source, origin, *confirmed, "--max-prune", 12))
    assert not any("/a/" in path for path in origin.files())


@pytest.mark.parametrize("confirmed_by", ["option", "annotation"])
def test_a_confirmed_deletion_is_repeated_until_the_cluster_is_deleted(
    source: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch, confirmed_by: str
) -> None:
    management = Management(monkeypatch)
    option = ("--confirm", "team-a/old") if confirmed_by == "option" else ()
    old = definition("old")
    if not option:
        old["metadata"]["annotations"] = {"caphv.io/confirm-removal": "true"}
    put(source, old, definition("other"), definition("going"))
    done(sync(source, origin, "--apply"))
    (source / "old.yaml").unlink()
    if option:
        assert "protection is lifted" in sync(source, origin, "--apply", *option).stdout
    count = origin.count()

    management.reachable = False
    unreachable = sync(source, origin, "--apply", *option)
    assert (unreachable.exit_code, origin.count()) == (2, count)
    assert "cannot be reached" in unreachable.stderr

    management.reachable = True
    management.refused = {"team-a/old"}
    put(source, definition("other", addons={"cni": {"mtu": 1400}}))
    refused = sync(source, origin, "--apply", *option)
    assert refused.exit_code == 1
    assert "error: Cluster team-a/old: forbidden" in refused.stderr
    assert "left manifests/team-a/old: not all Clusters of removed definitions can be deleted" in refused.stdout
    # Others are synced.
    assert "clusters/team-a/other/cni/helmchartconfig.yaml" in changed(origin)
    assert "manifests/team-a/old/cluster/cluster.yaml" in origin.files()

    management.refused = set()
    done(sync(source, origin, "--apply", *option))
    assert management.deleted == ["team-a/old"]
    assert not any("/old/" in path for path in origin.files())
    done(sync(source, origin, "--apply", *option))
    assert management.deleted == ["team-a/old"]


WORKERS: Obj = {"name": "workers", "replicas": 2, "cpu": 8, "memory": "16Gi"}


def objects(origin: Origin, branch: str = "main") -> list[Obj]:
    return [*yaml.safe_load_all(origin.files(branch)["manifests/team-a/a/cluster/cluster.yaml"])]


def manifest(origin: Origin) -> set[tuple[str, str]]:
    return {(obj["kind"], obj["metadata"]["name"]) for obj in objects(origin)}


def unprotected(origin: Origin, branch: str = "main") -> set[tuple[str, str]]:
    found = [obj for obj in objects(origin, branch) if not is_protected(obj)]
    return {(obj["kind"], obj["metadata"]["name"]) for obj in found}


def test_a_pool_with_machines_stays_until_it_was_empty(source: Path, origin: Origin) -> None:
    def put_pools(*pools: Obj) -> None:
        put(source, definition("a", individualObjects=True, workers=[*pools]))

    gpu, deployment = {**WORKERS, "name": "gpu"}, ("MachineDeployment", "a-gpu")
    put_pools(WORKERS, gpu)
    done(sync(source, origin))
    put_pools(WORKERS)
    for _ in range(2):
        result = sync(source, origin)
        assert result.exit_code == 1
        assert "left manifests/team-a/a/MachineDeployment/a-gpu: it is no longer defined" in result.stdout
        assert deployment in manifest(origin)
    put_pools(WORKERS, {**gpu, "replicas": 0})
    done(sync(source, origin))
    assert deployment not in unprotected(origin), "it may be scaled up in the cluster"
    put_pools(WORKERS)
    # Its protection is lifted on the branch that Fleet reads, before a commit removes it.
    for _ in range(2):
        lifted = sync(source, origin, "--review", "caphv/x")
        assert lifted.exit_code == 1
        assert "left manifests/team-a/a/MachineDeployment/a-gpu: its protection is lifted" in lifted.stdout
        assert deployment in unprotected(origin, "caphv/x")
    assert sync(source, origin).exit_code == 1
    assert deployment in unprotected(origin)
    done(sync(source, origin))
    assert deployment not in manifest(origin)
    done(sync(source, origin))


def test_what_a_definition_drops_is_deleted_before_its_manifest_forgets_it(
    source: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    management = Management(monkeypatch)
    put(source, definition("a", addonDelivery="ClusterResourceSet"), definition("b"))
    done(sync(source, origin, "--apply"))
    before = manifest(origin)
    assert management.deleted == []

    management.refused = {"team-a/a-mhc"}
    put(source, definition("a", healthCheck={"enabled": False}, addonDelivery="Fleet"), definition("b", addons=None))
    refused = sync(source, origin, "--apply")
    assert refused.exit_code == 1
    assert "error: MachineHealthCheck team-a/a-mhc: forbidden" in refused.stderr
    assert manifest(origin) == before
    assert "manifests/team-a/b/cluster/cluster.yaml" in changed(origin), "others are synced"

    management.refused = set()
    done(sync(source, origin, "--apply"))
    assert manifest(origin) == {("Cluster", "a")}
    assert {*management.deleted} == {f"{kind} team-a/{name}" for kind, name in before - {("Cluster", "a")}}
    count = len(management.deleted)
    done(sync(source, origin, "--apply"))
    assert len(management.deleted) == count


def test_a_dry_run_deletes_no_cluster(source: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    management = Management(monkeypatch)
    old = definition("old")
    old["metadata"]["annotations"] = {"caphv.io/confirm-removal": "true"}
    put(source, old, definition("other"))
    done(sync(source, origin, "--apply"))
    (source / "old.yaml").unlink()
    put(source, definition("other", healthCheck={"enabled": False}))
    assert "removed manifests/team-a/old" in sync(source, origin, "--apply", "--dry-run").stdout
    assert management.deleted == []


def test_a_review_never_lifts_the_protection_and_removes_at_once(source: Path, origin: Origin) -> None:
    """One pull request with both would have Fleet remove a release whose objects are protected: an orphan."""
    put(source, definition("a"), definition("b"))
    done(sync(source, origin))
    review = ("--review", "caphv/x", "--confirm", "team-a/b")
    (source / "b.yaml").unlink()
    put(source, definition("a", addons={"csi": {"enabled": False}}))
    assert sync(source, origin, *review).exit_code == 1
    proposed = origin.head("caphv/x")
    bundle = "clusters/team-a/a/csi/fleet.yaml"
    for _ in range(2):
        waiting = sync(source, origin, *review)
        assert (waiting.exit_code, origin.head("caphv/x")) == (1, proposed)
        assert "left manifests/team-a/b: its protection is lifted" in waiting.stdout
    assert "resource-policy" not in origin.files("caphv/x")["manifests/team-a/b/cluster/cluster.yaml"]
    assert "keepResources: false" in origin.files("caphv/x")[bundle]
    git(origin.folder, "update-ref", "refs/heads/main", proposed)
    done(sync(source, origin, *review))
    left = origin.files("caphv/x")
    assert bundle not in left
    assert not any("/b/" in path for path in left)


def test_what_is_not_merged_is_not_applied(source: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    management = Management(monkeypatch)
    put(source, definition("a"))
    result = sync(source, origin, "--review", "caphv/x", "--apply")
    assert result.exit_code == 2
    assert "--apply and --review caphv/x are mutually exclusive" in result.stderr
    assert management.applied == 0


@pytest.mark.parametrize("rejected", ["branch", "nothing"])
def test_a_cluster_is_deleted_once_its_removal_is_pushed(
    source: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch, rejected: str
) -> None:
    management = Management(monkeypatch)
    old = definition("old")
    old["metadata"]["annotations"] = {"caphv.io/confirm-removal": "true"}
    put(source, old, definition("other"))
    done(sync(source, origin, "--apply"))
    (source / "old.yaml").unlink()
    hook = origin.folder / "hooks" / "update"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nexit {int(rejected == 'branch')}\n")
    hook.chmod(0o755)
    management.leaves = rejected == "nothing"
    result = sync(source, origin, "--apply")
    assert result.exit_code == 2
    holds = any("/old/" in path for path in origin.files())
    if rejected == "nothing":
        assert (
            "Cluster team-a/old: the repository no longer holds it. Delete the Cluster: kubectl delete cluster old"
            in result.stderr
        )
        assert (holds, management.deleted) == (False, [])
    else:
        assert "hook declined" in result.stderr
        assert (holds, management.deleted) == (True, [])
        assert "asked for the deletion" not in result.stderr
