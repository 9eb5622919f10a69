"""IPPools in a backup: which are saved, how, and as what they are shown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from click.testing import CliRunner

from caphv.api.object import Obj
from caphv.api.objectid import ObjectId, id_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, Unreachable
from commands.main import cli
from operations.backup import files, pools
from operations.backup.files import Backup, BackupError, Origin
from operations.backup.reading import read_backup
from operations.backup.sealing import Sealer
from operations.status.query import Query
from tests.support.backup import whole_cluster
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit

SERVER = "https://harvester:6443"
PASSPHRASE = "correct horse battery"


def pool(name: str, **status: Any) -> Obj:
    metadata = {"name": name, "uid": f"{name}-uid", "resourceVersion": "7", "labels": {"a": "b"}, "finalizers": ["x"]}
    spec = {"ranges": [{"subnet": "10.0.0.0/24"}]}
    head = {"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool"}
    return {**head, "metadata": metadata, "spec": spec, "status": status}


def cluster(**spec: Any) -> Obj:
    return {"metadata": {"namespace": "team", "name": "shop"}, "spec": spec}


# Which pools are saved


@pytest.mark.parametrize(
    ("spec", "used"),
    [
        ({}, set()),
        ({"vmNetworkConfig": {"ipPoolRef": "default/a"}}, {"a"}),
        ({"vmNetworkConfig": {"ipPoolRefs": ["a", "x/b"]}, "loadBalancerConfig": {"ipPoolRef": "c"}}, {"a", "b", "c"}),
        (
            {"vmNetworkConfig": {"ipPool": {"subnet": "x"}}, "loadBalancerConfig": {"ipPool": {"subnet": "x"}}},
            {"team-shop-vm-ippool", "team-shop-ippool"},
        ),
    ],
)
def test_pools_that_a_cluster_names_or_creates(spec: Obj, used: set[str]) -> None:
    assert pools.used_pools([cluster(**spec)], []) == used


def test_a_machine_keeps_its_pool_when_its_cluster_names_another() -> None:
    machine = {"spec": {"vmNetworkConfig": {"ipPoolRef": "b"}}, "status": {"allocatedPoolRef": "default/old"}}
    assert pools.used_pools([cluster(vmNetworkConfig={"ipPoolRef": "a"})], [machine]) == {"a", "b", "old"}


# Reading


def kubeconfig(server: str = SERVER) -> str:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    return yaml.safe_dump(config)


def saved_objects() -> list[Obj]:
    objs = whole_cluster()
    for obj in objs:
        if obj["kind"] == "HarvesterCluster":
            obj["spec"]["vmNetworkConfig"] = {"ipPoolRef": "machines"}
        if obj["kind"] == "Secret" and obj["metadata"]["name"] == "identity":
            obj["data"], obj["stringData"] = {}, {"kubeconfig": kubeconfig()}
    return objs


class Harvester(MemoryServer):
    """A Harvester that lends itself as the client of each account."""

    @asynccontextmanager
    async def client(self, *_: Any, **__: Any) -> AsyncIterator[ApiClient]:
        yield cast("ApiClient", self)


@pytest.fixture
def harvester(monkeypatch: pytest.MonkeyPatch) -> Harvester:
    server = Harvester(pool("machines", allocated={"10.0.0.9": "team/shop-0"}), pool("of-others"))
    monkeypatch.setattr(pools, "answering_client", server.client)
    return server


async def read(**options: bool) -> Backup:
    return await read_backup(cast("ApiClient", MemoryServer(*saved_objects())), Query("team"), **options)


async def test_pools_that_clusters_use_are_saved_with_their_addresses(harvester: Harvester) -> None:
    backup = await read(with_pools=True)
    assert {server: [obj["metadata"]["name"] for obj in objs] for server, objs in backup.pools.items()} == {
        SERVER: ["machines"]
    }
    assert backup.pools[SERVER][0]["status"] == {"allocated": {"10.0.0.9": "team/shop-0"}}
    assert backup.unseen == ()


async def test_without_the_option_no_harvester_is_asked(harvester: Harvester) -> None:
    harvester.errors["list IPPool"] = Unreachable("no route")
    backup = await read()
    assert (backup.pools, backup.unseen) == ({}, ())


@pytest.mark.parametrize(
    "error", [Forbidden(403, "Forbidden", "cannot list"), Unreachable("no route to host")], ids=["right", "server"]
)
async def test_a_harvester_that_cannot_be_read_makes_the_backup_incomplete(harvester: Harvester, error: Any) -> None:
    harvester.errors["list IPPool"] = error
    backup = await read(with_pools=True)
    assert backup.pools == {}
    (hidden,) = backup.unseen
    assert hidden.startswith(f"IPPools of Harvester {SERVER}: ")
    assert "secret-token" not in hidden


# Files


def a_backup(*saved: Obj) -> Backup:
    objects: dict[ObjectId, Obj] = {id_of(obj): obj for obj in whole_cluster()}
    origin = Origin("abc", "2026-11-22T12:00:00Z", "https://old:6443", "uid-old")
    return Backup(origin, ("team/shop",), objects, pools={SERVER: list(saved)} if saved else {})


@pytest.mark.parametrize("encrypted", [True, False])
def test_pools_are_read_back_as_they_were_written(tmp_path: Path, encrypted: bool) -> None:
    backup = a_backup(pool("a"), pool("b"))
    backup.pools["https://other:6443"] = [pool("a")]
    written = files.write(tmp_path / "b", backup, Sealer(PASSPHRASE) if encrypted else None)
    assert written == len(backup.objects) + 4
    assert files.read(tmp_path / "b", (lambda: PASSPHRASE) if encrypted else None) == backup


def test_a_backup_without_pools_has_the_former_index(tmp_path: Path) -> None:
    files.write(tmp_path / "b", a_backup(), None)
    assert "pools" not in json.loads((tmp_path / "b" / "index.json").read_text())


def test_a_pool_that_was_changed_is_missing(tmp_path: Path) -> None:
    files.write(tmp_path / "b", a_backup(pool("a")), None)
    (file,) = (tmp_path / "b").glob("harvester-1/*/a.json")
    file.write_text(file.read_text().replace("10.0.0.0", "10.9.9.0"))
    found = files.read(tmp_path / "b", None)
    assert found.pools == {}
    assert "changed or damaged" in found.missing["IPPool a"]


def test_another_kind_is_no_pool(tmp_path: Path) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "a"}}
    files.write(tmp_path / "b", a_backup(role), None)
    found = files.read(tmp_path / "b", None)
    assert (found.pools, list(found.missing)) == ({}, ["ClusterRoleBinding a"])


@pytest.mark.parametrize("entries", ["x", [{"file": "../a", "sha256": "0"}], [1]])
def test_a_list_of_pools_in_another_form_is_no_index(tmp_path: Path, entries: Any) -> None:
    files.write(tmp_path / "b", a_backup(), None)
    index = tmp_path / "b" / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"pools": entries}))
    with pytest.raises(BackupError, match="not the index of a backup"):
        files.read(tmp_path / "b", None)


# Manifests


def test_manifests_have_what_another_server_needs() -> None:
    text = pools.manifests_of({SERVER: [pool("a", allocated={"10.0.0.9": "team/m"}, available=253)]})
    assert text.startswith(f'# IPPools of Harvester "{SERVER}"\n---\n')
    (manifest,) = yaml.safe_load_all(text)
    assert manifest["metadata"] == {"name": "a", "labels": {"a": "b"}}
    assert manifest["status"] == {"allocated": {"10.0.0.9": "team/m"}, "available": 253}
    assert (manifest["apiVersion"], manifest["kind"]) == ("loadbalancer.harvesterhci.io/v1beta1", "IPPool")


def test_a_name_of_a_harvester_cannot_leave_its_comment() -> None:
    text = pools.manifests_of({"x\n---\nkind: ClusterRoleBinding": [pool("a")]})
    assert [manifest["kind"] for manifest in yaml.safe_load_all(text)] == ["IPPool"]


def test_restore_shows_pools_and_asks_no_server(tmp_path: Path) -> None:
    files.write(tmp_path / "b", a_backup(pool("a")), None)
    arguments = ["restore", str(tmp_path / "b"), "--unencrypted", "--show-ip-pools", "--kubeconfig", "/nowhere"]
    shown = CliRunner().invoke(cli, arguments)
    assert shown.exit_code == 0, shown.output
    assert [manifest["metadata"]["name"] for manifest in yaml.safe_load_all(shown.stdout)] == ["a"]

    files.write(tmp_path / "without", a_backup(), None)
    arguments[1] = str(tmp_path / "without")
    refused = CliRunner().invoke(cli, arguments)
    assert (refused.exit_code, "made without --ip-pools" in refused.output) == (2, True)
