"""Backups of real API servers: saved with a person's rights, and created on another server in the right order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import Obj, Resource, annotations_of, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Unreachable
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests.support.authorization import until_allowed
from tests.support.backup import whole_cluster
from tests.support.backupserver import definitions, everything, interrupted_while_the_pause_ends, load
from tests.support.overview import Management

SECRET = "correct horse battery"


@pytest.fixture(scope="module")
def sides(etcd_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Management, Management]]:
    """An old management cluster with cluster `team/shop`, and a new one that is empty."""
    servers = [ApiServer(etcd_folder, name) for name in ("old-management", "new-management")]

    async def start() -> None:
        await asyncio.gather(*(server.start() for server in servers))
        for server in servers:
            async with server.client() as client:
                await manifests.apply(client, definitions())
        async with servers[0].client() as client:
            await load(client, whole_cluster())

    asyncio.run(start())
    old, new = (Management(server, tmp_path_factory.mktemp(server.name)) for server in servers)
    yield old, new
    for server in servers:
        asyncio.run(server.stop())


def owners(objs: dict[str, Obj]) -> dict[str, list[str]]:
    """Owners of objects, found by uid as Kubernetes does."""
    by_uid = {uid_of(obj): name for name, obj in objs.items()}
    return {
        name: [by_uid.get(owner["uid"], "nothing") for owner in obj["metadata"].get("ownerReferences") or ()]
        for name, obj in objs.items()
    }


def save_another(side: Management, name: str, parent: Path) -> str:
    """Create cluster `team/NAME` next to those that are there, and save it; return the folder of the backup."""

    async def create() -> None:
        async with side.server.client() as client:
            await load(client, whole_cluster(name, identity=f"{name}-identity"))

    asyncio.run(create())
    folder = str(parent / name)
    assert side.caphv("backup", f"team/{name}", folder).exit_code == 0
    return folder


def test_a_cluster_is_saved_and_created_again_with_its_owners(
    sides: tuple[Management, Management], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = sides
    monkeypatch.setenv("CAPHV_BACKUP_PASSPHRASE", SECRET)
    folder = str(tmp_path / "b")
    saved = old.caphv("backup", "-A", folder)
    assert saved.exit_code == 0, saved.output
    before = asyncio.run(everything(old.server))

    shown = new.caphv("restore", folder, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert asyncio.run(everything(new.server)) == {}

    paused = new.caphv("restore", folder, "--yes")
    assert paused.exit_code == 1
    assert "All clusters stay paused" in paused.output
    after = asyncio.run(everything(new.server))
    assert after.keys() == before.keys()
    assert owners(after) == owners(before)
    assert "nothing" not in {owner for found in owners(after).values() for owner in found}
    assert after["Cluster team/shop"]["spec"]["paused"] is True
    assert "cluster.x-k8s.io/paused" in annotations_of(after["ClusterClass classes/shop-class"])
    for name, obj in before.items():
        assert set(_managers(after[name])) >= set(_managers(obj)) == {"capi-topology"}

    done = new.caphv("restore", folder, "--yes", "--old-management-cluster-stopped")
    assert done.exit_code == 0, done.output
    final = asyncio.run(everything(new.server))
    assert "paused" not in final["Cluster team/shop"]["spec"]
    assert "cluster.x-k8s.io/paused" not in annotations_of(final["ClusterClass classes/shop-class"])
    assert {uid_of(obj) for obj in final.values()} == {uid_of(obj) for obj in after.values()}
    assert {name: obj.get("spec") for name, obj in final.items()} == {
        name: obj.get("spec") for name, obj in before.items()
    }
    again = new.caphv("restore", folder, "--yes")
    assert (again.exit_code, "Nothing to do" in again.output) == (0, True), again.output


def test_a_restore_that_was_interrupted_while_the_pause_ended_is_completed(
    sides: tuple[Management, Management], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = sides
    monkeypatch.setenv("CAPHV_BACKUP_PASSPHRASE", SECRET)
    folder = save_another(old, "half", tmp_path)
    flags = ("--yes", "--old-management-cluster-stopped")
    with interrupted_while_the_pause_ends():
        first = new.caphv("restore", folder, *flags)
    assert (first.exit_code, "still paused. Run the command again" in first.output) == (1, True), first.output
    second = new.caphv("restore", folder, *flags)
    assert (second.exit_code, "differences: 0" in second.output) == (0, True), second.output
    assert "paused" not in asyncio.run(everything(new.server))["Cluster team/half"]["spec"]


def _managers(obj: Obj) -> list[str]:
    return [entry["manager"] for entry in obj["metadata"]["managedFields"] if entry["operation"] == "Apply"]


def test_managers_of_fields_are_restored_also_after_others_wrote_and_after_an_interruption(
    sides: tuple[Management, Management], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = sides
    monkeypatch.setenv("CAPHV_BACKUP_PASSPHRASE", SECRET)
    folder = save_another(old, "late", tmp_path)
    create, patch = ApiClient.create, ApiClient.patch

    async def core_is_fast(client: ApiClient, resource: Resource, obj: Obj, **options: bool) -> Obj:
        created = await create(client, resource, obj, **options)
        if resource.kind == "Cluster":
            labels = {"metadata": {"labels": {"written": "by-the-core"}}}
            await patch(client, resource, obj["metadata"]["name"], obj["metadata"]["namespace"], labels)
        return created

    async def interrupted(client: ApiClient, resource: Resource, *what: Any, **options: Any) -> Obj:
        if resource.kind == "Machine":
            raise Unreachable("interrupted")
        return await patch(client, resource, *what, **options)

    monkeypatch.setattr(ApiClient, "create", core_is_fast)
    monkeypatch.setattr(ApiClient, "patch", interrupted)
    first = new.caphv("restore", folder, "--yes")
    assert (first.exit_code, "interrupted" in first.output, "modified" in first.output) == (1, True, False), (
        first.output
    )
    monkeypatch.setattr(ApiClient, "patch", patch)
    second = new.caphv("restore", folder, "--yes", "--old-management-cluster-stopped")
    assert second.exit_code == 0, second.output
    found = {name: obj for name, obj in asyncio.run(everything(new.server)).items() if "/late" in name}
    assert found["Cluster team/late"]["metadata"]["labels"]["written"] == "by-the-core"
    assert {name for name, obj in found.items() if _managers(obj) != ["capi-topology"]} == set()
    creators = [entry for obj in found.values() for entry in _updates(obj) if "f:spec" in entry["fieldsV1"]]
    assert creators == []


def _updates(obj: Obj) -> list[Obj]:
    return [entry for entry in obj["metadata"]["managedFields"] if entry["operation"] == "Update"]


def test_an_object_that_is_different_stops_it_before_anything_is_created(
    sides: tuple[Management, Management], tmp_path: Path, new_api_server: Callable[..., Awaitable[ApiServer]]
) -> None:
    old, _ = sides
    folder = str(tmp_path / "b")
    assert old.caphv("backup", "team/shop", folder, "--unencrypted").exit_code == 0
    different = whole_cluster()
    identity = [obj for obj in different if obj["metadata"]["name"] == "identity"]
    identity[0]["data"] = {"kubeconfig": "b3RoZXI="}

    async def start() -> ApiServer:
        server = await new_api_server()
        async with server.client() as client:
            await manifests.apply(client, definitions(without="MachineHealthCheck"))
            await load(client, identity)
        return server

    other = Management(asyncio.run(start()), tmp_path)
    lacking = other.caphv("restore", folder, "--unencrypted", "--yes")
    assert lacking.exit_code == 2
    assert "MachineHealthCheck of cluster.x-k8s.io is not installed there" in lacking.output

    async def install() -> None:
        async with other.server.client() as client:
            await manifests.apply(client, definitions())

    asyncio.run(install())
    refused = other.caphv("restore", folder, "--unencrypted", "--yes")
    assert refused.exit_code == 2
    assert "Secret team/identity exists and is different" in refused.output
    assert list(asyncio.run(everything(other.server))) == ["Secret team/identity"]
    shown = other.caphv("restore", folder, "--unencrypted", "--dry-run")
    assert (shown.exit_code, "--keep-existing" in shown.output) == (1, True), shown.output
    shown = other.caphv("restore", folder, "--unencrypted", "--dry-run", "--keep-existing")
    assert shown.exit_code == 0, shown.output
    kept = other.caphv(
        "restore", folder, "--unencrypted", "--yes", "--keep-existing", "--old-management-cluster-stopped"
    )
    assert kept.exit_code == 0, kept.output
    secret = asyncio.run(everything(other.server))["Secret team/identity"]
    assert secret["data"] == {"kubeconfig": "b3RoZXI="}


def test_half_a_backup_is_refused_with_a_list(sides: tuple[Management, Management], tmp_path: Path) -> None:
    old, new = sides
    folder = tmp_path / "b"
    assert old.caphv("backup", "team/shop", str(folder), "--unencrypted").exit_code == 0
    (folder / "team" / "secret" / "identity.json").unlink()
    result = new.caphv("restore", str(folder), "--unencrypted", "--yes")
    assert result.exit_code == 2
    assert "missing: Secret team/identity (the file does not exist)" in result.output
    shown = new.caphv("restore", str(folder), "--unencrypted", "--dry-run", "--keep-existing")
    assert shown.exit_code == 1, shown.output
    assert " objects: " in shown.output
    shown = new.caphv("restore", str(folder), "--unencrypted", "--dry-run", "--keep-existing", "--incomplete")
    assert shown.exit_code == 0, shown.output


def test_what_may_not_be_read_is_named(
    sides: tuple[Management, Management], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _ = sides

    async def grant() -> None:
        group = "rbac.authorization.k8s.io"
        rule = {"apiGroups": ["*"], "verbs": ["get", "list"], "resources": ["clusters", "machines", "clusterclasses"]}
        async with old.server.client() as client:
            for kind, obj in (
                ("ClusterRole", {"rules": [rule]}),
                (
                    "ClusterRoleBinding",
                    {
                        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "reader"},
                        "subjects": [{"apiGroup": group, "kind": "User", "name": "reader"}],
                    },
                ),
            ):
                resource = Resource(group, "v1", f"{kind.lower()}s", kind, namespaced=False)
                await client.create(resource, {"metadata": {"name": "reader"}, **obj})
            await until_allowed(client, "reader", rule)

    asyncio.run(grant())
    result = old.caphv("backup", "team/shop", str(tmp_path / "b"), "--unencrypted", user="reader")
    assert result.exit_code == 1
    assert "not saved: secrets of namespace team" in result.output
    assert "The backup is incomplete" in result.output
