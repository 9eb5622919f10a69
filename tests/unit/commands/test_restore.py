"""`caphv backup` and `caphv restore` with servers in memory: exit status, what is created, and when the pause ends."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from caphv.api.object import SECRETS, Obj, Resource, key_of
from caphv.runtime.errors import Forbidden, Invalid, Unreachable
from operations.backup.order import is_paused
from tests.support.backup import made, whole_cluster
from tests.support.commandservers import Servers
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit

STAYS = "All clusters stay paused"


def namespace(name: str, uid: str = "") -> Obj:
    obj: Obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    return {**obj, "metadata": {"name": name, "uid": uid}} if uid else obj


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    """A backup in directory `saved`, and an empty management cluster with the same kinds, which has its namespaces."""
    found = Servers(monkeypatch, tmp_path)
    objs = whole_cluster()
    spaces = [namespace("team"), namespace("classes")]
    found.management = MemoryServer(*objs, *spaces, namespace("kube-system", "old"), server="https://old:6443")
    result = found.caphv("backup", "-A", "saved", "--unencrypted")
    assert result.exit_code == 0, result.output
    kinds = [(obj["apiVersion"], obj["kind"]) for obj in objs]
    new = [*spaces, namespace("kube-system", "new")]
    found.management = MemoryServer(*new, served=kinds, server="https://new:6443")
    return found


def restore(servers: Servers, *options: str) -> Result:
    return servers.caphv("restore", "saved", "--unencrypted", *options)


def cluster(servers: Servers) -> Obj | None:
    return servers.management.find("Cluster", "shop", "team")


def changed(servers: Servers, verb: str) -> int:
    return sum(request.startswith(f"{verb} ") for request in servers.management.requests)


def test_a_dry_run_shows_what_would_be_created(servers: Servers) -> None:
    result = restore(servers, "--dry-run")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].endswith("from https://old:6443: team/shop")
    created = len(whole_cluster())
    assert [line for line in lines if "objects: " in line] == [
        f"{created} objects: create",
        "2 objects: exists and is the same",
    ]
    numbers = [line.split() for line in lines if line.startswith("    ")]
    assert sum(int(number) for number, _ in numbers) == created + 2
    assert (["1", "Cluster"] in numbers, ["2", "Machine"] in numbers) == (True, True)
    assert servers.management.requests == []


def test_a_dry_run_says_what_would_be_refused(servers: Servers) -> None:
    servers.management.errors["dry-run create MachineHealthCheck"] = Invalid(422, "Invalid", "no such field")
    result = restore(servers, "--dry-run")
    assert (result.exit_code, "shop-check: no such field" in result.stderr) == (1, True)


def test_objects_of_new_namespaces_cannot_be_tried(servers: Servers) -> None:
    servers.management = MemoryServer(
        namespace("classes"), served=[(obj["apiVersion"], obj["kind"]) for obj in whole_cluster()]
    )
    servers.management.errors["dry-run create Machine"] = Invalid(422, "Invalid", "no such field")
    result = restore(servers, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "creates new namespaces: team" in result.output


def test_nothing_is_created_without_a_confirmation(servers: Servers) -> None:
    result = restore(servers)
    assert (result.exit_code, "confirmation needs a terminal" in result.output) == (2, True)
    assert servers.management.requests == []


def test_clusters_stay_paused_until_the_old_management_cluster_is_stopped(servers: Servers) -> None:
    first = restore(servers, "--yes")
    assert (first.exit_code, STAYS in first.output) == (1, True), first.output
    assert "https://old:6443 (uid of kube-system: old)" in first.output
    restored = cluster(servers)
    assert restored is not None
    assert is_paused(restored)
    created = changed(servers, "create")

    second = restore(servers, "--old-management-cluster-stopped")
    assert second.exit_code == 0, second.output
    assert changed(servers, "create") == created, "nothing is created again, so nothing has to be confirmed"
    restored = cluster(servers)
    assert restored is not None
    assert not is_paused(restored)

    assert f"Verified {len(whole_cluster()) + 2} objects; differences: 0" in second.stdout
    assert f"{len(whole_cluster())} objects: restored before" in second.stdout
    assert "create" not in second.stdout

    third = restore(servers)
    assert (third.exit_code, "Nothing to do" in third.output) == (0, True), third.output


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1)])
def test_on_a_terminal_it_asks_whether_the_old_management_cluster_is_stopped(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    monkeypatch.setattr(
        "commands.restore.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True), exit=sys.exit)
    )
    monkeypatch.setattr("commands.restore.confirm", lambda *_: None)
    result = servers.caphv("restore", "saved", "--unencrypted", stdin=f"{answer}\n")
    assert (result.exit_code, STAYS in result.output) == (status, bool(status)), result.output
    restored = cluster(servers)
    assert restored is not None
    assert is_paused(restored) is bool(status)


def test_the_same_management_cluster_needs_no_confirmation(servers: Servers) -> None:
    servers.management.put(namespace("kube-system", "old"))
    result = restore(servers, "--yes")
    assert (result.exit_code, STAYS in result.output) == (0, False), result.output


def test_an_unknown_old_management_cluster_is_not_the_same(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of them lets its kube-system be read."""
    servers.management = MemoryServer(*whole_cluster(), namespace("team"), namespace("classes"))
    assert servers.caphv("backup", "-A", "unknown", "--unencrypted").exit_code == 0
    kinds = [(obj["apiVersion"], obj["kind"]) for obj in whole_cluster()]
    servers.management = MemoryServer(namespace("team"), namespace("classes"), served=kinds)
    result = servers.caphv("restore", "unknown", "--unencrypted", "--yes")
    assert (result.exit_code, STAYS in result.output) == (1, True), result.output
    assert "uid of kube-system: unknown" in result.output


def without(name: str) -> Callable[[Servers], None]:
    def remove(_servers: Servers) -> None:
        (file,) = Path("saved").rglob(name)
        file.unlink()

    return remove


def test_a_backup_with_missing_files_is_restored_on_request_only(servers: Servers) -> None:
    without("*shop-check*")(servers)
    refused = restore(servers, "--yes")
    assert (refused.exit_code, "1 of its parts are missing" in refused.output) == (2, True), refused.output
    dry = restore(servers, "--dry-run")
    assert dry.exit_code == 1
    assert "1  Cluster\n" in dry.stdout, "it shows the rest, too"
    assert servers.management.requests == []
    assert restore(servers, "--dry-run", "--incomplete").exit_code == 0
    result = restore(servers, "--yes", "--incomplete", "--old-management-cluster-stopped")
    assert result.exit_code == 0, result.output
    assert cluster(servers) is not None


def test_different_objects_are_kept_on_request_only(servers: Servers) -> None:
    servers.management.put(made("v1", "Secret", "identity", data={"kubeconfig": "other"}))
    refused = restore(servers, "--yes")
    assert (refused.exit_code, "exists and is different" in refused.stderr) == (2, True), refused.output
    assert restore(servers, "--dry-run").exit_code == 1
    assert servers.management.requests == []
    kept = restore(servers, "--yes", "--keep-existing", "--old-management-cluster-stopped")
    assert kept.exit_code == 0, kept.output
    secret = servers.management.find("Secret", "identity", "team")
    assert secret is not None
    assert secret["data"] == {"kubeconfig": "other"}


def test_kinds_that_are_not_installed_stop_it(servers: Servers) -> None:
    kinds = [(obj["apiVersion"], obj["kind"]) for obj in whole_cluster() if obj["kind"] != "RKE2Config"]
    servers.management = MemoryServer(served=kinds, server="https://new:6443")
    result = restore(servers, "--yes")
    assert (result.exit_code, "RKE2Config of bootstrap.cluster.x-k8s.io is not" in result.stderr) == (2, True)
    assert servers.management.requests == []


def test_what_cannot_be_created_is_named_and_can_be_repeated(servers: Servers) -> None:
    servers.management.errors["create RKE2ControlPlane"] = Forbidden(403, "Forbidden", "cannot create")
    result = restore(servers, "--yes", "--old-management-cluster-stopped")
    assert (result.exit_code, "shop-cp: cannot create" in result.stderr) == (1, True), result.output
    assert "1 object could not be created. Correct the cause and run the command again" in result.stderr
    servers.management.errors.clear()
    again = restore(servers, "--yes", "--old-management-cluster-stopped")
    assert again.exit_code == 0, again.output


def test_objects_that_are_other_than_in_the_backup_stay_paused(servers: Servers) -> None:
    create = servers.management.create

    async def mutated(resource: Resource, obj: Obj, **options: Any) -> Obj:
        if resource.kind == "RKE2ControlPlane":
            obj = {**obj, "spec": {"replicas": 7}}
        return await create(resource, obj, **options)

    servers.management.create = mutated  # type: ignore[method-assign]
    result = restore(servers, "--yes", "--old-management-cluster-stopped")
    assert (result.exit_code, "differs from the backup" in result.stderr) == (1, True), result.output
    restored = cluster(servers)
    assert restored is not None
    assert is_paused(restored)
    accepted = restore(servers, "--yes", "--old-management-cluster-stopped", "--accept-differences", "--keep-existing")
    assert accepted.exit_code == 0, accepted.output
    restored = cluster(servers)
    assert restored is not None
    assert not is_paused(restored)


@pytest.mark.parametrize(
    ("failure", "status", "message"),
    [
        (Unreachable("no answer"), 1, "created objects cannot be read back, and all stay paused: no answer."),
        (KeyboardInterrupt(), 130, "Interrupted. Restored clusters may be paused. Run the command again to continue."),
    ],
    ids=["away", "interrupted"],
)
def test_whatever_ends_it_after_the_creation_says_that_clusters_are_paused(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, failure: BaseException, status: int, message: str
) -> None:
    list_some = servers.management.list

    async def fail_once_created(resource: Resource, namespace: str = "", **more: Any) -> Obj:
        if changed(servers, "create"):
            raise failure
        return await list_some(resource, namespace, **more)

    monkeypatch.setattr(servers.management, "list", fail_once_created)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    result = restore(servers, "--yes")
    signal.signal(signal.SIGINT, before)
    assert (result.exit_code, message in result.stderr) == (status, True), result.output


def test_a_pause_that_does_not_end_is_no_success(servers: Servers) -> None:
    assert restore(servers, "--yes").exit_code == 1
    servers.management.errors["patch Cluster"] = Unreachable("https://new:6443: no answer")
    result = restore(servers, "--old-management-cluster-stopped")
    assert (result.exit_code, "Some objects are still paused" in result.stderr) == (1, True), result.output


def test_what_is_no_backup_or_has_another_form_is_refused(servers: Servers) -> None:
    Path("empty").mkdir()
    Path("passphrase").write_text("correct horse battery staple")
    for words, problem in (
        (("empty", "--unencrypted"), ""),
        (("saved", "--passphrase-file", "passphrase"), ""),
        (("saved", "--unencrypted", "--passphrase-file", "passphrase"), "are mutually exclusive"),
        (("saved",), ""),
    ):
        result = servers.caphv("restore", *words)
        assert (result.exit_code, problem in result.stderr) == (2, True)
    assert servers.management.requests == []


# What `caphv backup` says


@pytest.fixture
def full(servers: Servers) -> Servers:
    spaces = [namespace("team"), namespace("classes")]
    servers.management = MemoryServer(*whole_cluster(), *spaces, namespace("kube-system", "old"))
    return servers


def test_a_dry_run_writes_nothing_and_needs_no_passphrase(full: Servers) -> None:
    result = full.caphv("backup", "-A", "other", "--dry-run")
    assert (result.exit_code, Path("other").exists()) == (0, False)
    assert "Clusters: team/shop" in result.stdout


def test_what_may_not_be_read_makes_a_backup_incomplete(full: Servers) -> None:
    full.management.errors["list MachineHealthCheck"] = Forbidden(403, "Forbidden", "cannot list")
    result = full.caphv("backup", "-A", "other", "--unencrypted")
    assert (result.exit_code, "The backup is incomplete" in result.stderr) == (1, True)
    assert Path("other", "index.json").exists()
    shown = full.caphv("restore", "other", "--unencrypted", "--dry-run")
    assert "was not saved: " in shown.stderr


def test_a_backup_of_nothing_is_none(full: Servers) -> None:
    for words in (("-n", "empty"), ("team/gone",)):
        assert full.caphv("backup", *words, "other", "--unencrypted").exit_code == 2
    full.management = MemoryServer()
    assert full.caphv("backup", "-A", "other", "--unencrypted").exit_code == 2
    assert not Path("other").exists()


def test_a_cluster_that_rancher_provisions_is_not_saved_by_chance_and_never_restored(full: Servers) -> None:
    spec = {"controlPlaneRef": {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane", "name": "other"}}
    full.management.put(made("cluster.x-k8s.io/v1beta2", "Cluster", "other", spec=spec))
    result = full.caphv("backup", "-A", "all", "--unencrypted")
    assert (result.exit_code, "not saved: team/other: Rancher provisions it" in result.stderr) == (0, True)
    assert "Clusters: team/shop\n" in result.stdout

    result = full.caphv("backup", "team/other", "named", "--unencrypted")
    assert (result.exit_code, "a restore refuses this backup" in result.stderr) == (0, True)
    for options, status in ((("--dry-run",), 1), (("--yes", "--incomplete"), 2)):
        result = full.caphv("restore", "named", "--unencrypted", *options)
        assert (result.exit_code, "Rancher provisions team/other" in result.stderr) == (status, True), result.output


def test_a_directory_with_files_is_not_overwritten(full: Servers) -> None:
    Path("notes").mkdir()
    Path("notes", "mine").write_text("text")
    full.management.errors["list Cluster"] = Forbidden(403, "Forbidden", "asked")
    for words in (("notes", "--unencrypted"), ("new", "--unencrypted", "--passphrase-file", "notes/mine")):
        result = full.caphv("backup", "-A", *words)
        assert (result.exit_code, "asked" in result.output) == (2, False)


def test_data_says_what_is_created_and_whether_it_stays_paused(servers: Servers) -> None:
    dry = json.loads(restore(servers, "--dry-run", "-o", "json").stdout)
    assert {(item["object"].split()[0], item["action"]) for item in dry["items"]} >= {("Cluster", "create")}
    assert not any(item["applied"] for item in dry["items"])

    first = restore(servers, "--yes", "-o", "json")
    content = json.loads(first.stdout)
    assert (first.exit_code, content["paused"], STAYS in first.stderr) == (1, True, True)
    assert {item["applied"] for item in content["items"] if item["action"] == "create"} == {True}

    second = restore(servers, "--old-management-cluster-stopped", "-o", "json")
    assert (second.exit_code, json.loads(second.stdout)["paused"]) == (0, False)
    third = json.loads(restore(servers, "-o", "json").stdout)
    assert not any(item["applied"] for item in third["items"])

    secret = servers.management.stored(SECRETS)[0]
    servers.management.remove(SECRETS, *reversed(key_of(secret)))
    last = json.loads(restore(servers, "--yes", "-o", "json").stdout)
    assert [item["object"] for item in last["items"] if item["applied"]] == [f"Secret {key_of(secret)}"]


def test_manifests_of_pools_have_one_form(servers: Servers) -> None:
    assert restore(servers, "--show-ip-pools", "-o", "json").exit_code == 2
