"""IPPools in a backup: which are saved, how, and as what they are shown."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.api.identities import cluster_identity, describe
from caphv.api.object import Key, Obj
from caphv.api.objectid import ObjectId, id_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, Unreachable
from commands.main import cli
from operations.backup import files, pools
from operations.backup.files import Backup, BackupError, Origin
from operations.backup.reading import read_backup
from operations.backup.sealing import Sealer
from operations.capacity.addresspools import used_pools
from operations.read.objects import Unseen
from operations.status.query import Query
from sandbox.processes import pki
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
    assert used_pools([cluster(**spec)], []) == used


def test_a_machine_keeps_its_pool_when_its_cluster_names_another() -> None:
    machine = {"spec": {"vmNetworkConfig": {"ipPoolRef": "b"}}, "status": {"allocatedPoolRef": "default/old"}}
    assert used_pools([cluster(vmNetworkConfig={"ipPoolRef": "a"})], [machine]) == {"a", "b", "old"}


# Reading


def kubeconfig(server: str = SERVER, ca: bytes = b"") -> str:
    authority = {"certificate-authority-data": base64.b64encode(ca).decode()} if ca else {}
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server, **authority}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    return yaml.safe_dump(config)


def saved_objects(
    name: str = "shop", *, identity: str = "identity", server: str = SERVER, ca: bytes = b""
) -> list[Obj]:
    objs = whole_cluster(name, identity=identity)
    for obj in objs:
        if obj["kind"] == "HarvesterCluster":
            obj["spec"]["vmNetworkConfig"] = {"ipPoolRef": "machines"}
        if obj["kind"] == "Secret" and obj["metadata"]["name"] == identity:
            obj["data"], obj["stringData"] = {}, {"kubeconfig": kubeconfig(server, ca)}
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
    assert backup.pools
    assert {server: [obj["metadata"]["name"] for obj in objs] for server, objs in backup.pools.items()} == {
        SERVER: ["machines"]
    }
    assert backup.pools[SERVER][0]["status"] == {"allocated": {"10.0.0.9": "team/shop-0"}}
    assert backup.unseen == ()


async def test_without_the_option_no_harvester_is_asked(harvester: Harvester) -> None:
    harvester.errors["list IPPool"] = Unreachable("no route")
    backup = await read()
    assert (backup.pools, backup.unseen) == (None, ())


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


async def test_two_bundles_of_cas_lead_to_one_harvester(harvester: Harvester, tmp_path: Path) -> None:
    certificate = pki.CA.create("harvester").certificate
    objs = [
        *saved_objects("a", identity="former", ca=certificate),
        *saved_objects("b", identity="renewed", ca=certificate + b"\n"),
    ]
    backup = await read_backup(cast("ApiClient", MemoryServer(*objs)), Query("team"), with_pools=True)
    assert backup.pools
    assert [obj["metadata"]["name"] for obj in backup.pools[SERVER]] == ["machines"]
    files.write(tmp_path / "b", backup, None)
    assert files.read(tmp_path / "b", None).pools == backup.pools


async def test_a_name_that_is_listed_twice_is_saved_once(
    harvester: Harvester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "list_all", lambda *_: answer([pool("machines"), pool("machines")]))
    backup = await read(with_pools=True)
    assert backup.pools
    assert len(backup.pools[SERVER]) == 1
    files.write(tmp_path / "b", backup, None)


async def answer(objs: list[Obj]) -> list[Obj]:
    return objs


@pytest.mark.parametrize("depth", [120, 300])
async def test_a_pool_that_could_not_be_read_back_is_not_saved(
    harvester: Harvester, depth: int, tmp_path: Path
) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = [deep]
    odd = pool("machines")
    odd["spec"]["ranges"] = deep
    harvester.put(odd)
    backup = await read(with_pools=True)
    assert backup.pools == {}
    (hidden,) = backup.unseen
    assert hidden.startswith(f"IPPool machines of Harvester {SERVER}: ")
    files.write(tmp_path / "b", backup, None)
    assert files.read(tmp_path / "b", None).objects == backup.objects


async def test_what_belongs_to_no_pool_is_not_saved(harvester: Harvester) -> None:
    harvester.put(pool("machines") | {"status": {"allocated": {}}, "other": "x"})
    backup = await read(with_pools=True)
    assert backup.pools
    (saved,) = backup.pools[SERVER]
    assert saved.keys() == {"apiVersion", "kind", "metadata", "spec", "status"}
    assert saved["metadata"] == {"name": "machines", "labels": {"a": "b"}}


async def test_harvesters_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not answer delays no other."""
    waiting, all_ask = 0, asyncio.Event()

    async def list_slowly(*_: Any) -> list[Obj]:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            all_ask.set()
        async with asyncio.timeout(5):
            await all_ask.wait()
        return [pool("machines")]

    monkeypatch.setattr(pools, "answering_client", Harvester().client)
    monkeypatch.setattr(pools, "list_all", list_slowly)
    objs = [
        obj
        for name in "ab"
        for obj in saved_objects(name, identity=f"identity-{name}", server=f"https://harvester-{name}")
    ]
    backup = await read_backup(cast("ApiClient", MemoryServer(*objs)), Query("team"), with_pools=True)
    assert backup.pools
    assert (sorted(backup.pools), backup.unseen) == (["https://harvester-a", "https://harvester-b"], ())


# Files


def a_backup(*saved: Obj) -> Backup:
    objects: dict[ObjectId, Obj] = {id_of(obj): obj for obj in whole_cluster()}
    origin = Origin("abc", "2026-11-22T12:00:00Z", "https://old:6443", "uid-old")
    return Backup(origin, ("team/shop",), objects, pools={SERVER: list(saved)} if saved else None)


@pytest.mark.parametrize("encrypted", [True, False])
def test_pools_are_read_back_as_they_were_written(tmp_path: Path, encrypted: bool) -> None:
    backup = a_backup(pool("a"), pool("b"))
    backup.pools = {**(backup.pools or {}), "https://other:6443": [pool("a")]}
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
    assert "changed or damaged" in found.missing_pools[SERVER]["a"]
    assert found.missing == {}, "a restore creates no pools, and needs no --incomplete for them"


def test_another_kind_is_no_pool(tmp_path: Path) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "a"}}
    files.write(tmp_path / "b", a_backup(role), None)
    found = files.read(tmp_path / "b", None)
    assert (found.pools, list(found.missing_pools[SERVER])) == ({}, ["a"])


@pytest.mark.parametrize("entries", ["x", [{"file": "../a", "sha256": "0"}], [1]])
def test_a_list_of_pools_in_another_form_is_no_index(tmp_path: Path, entries: Any) -> None:
    files.write(tmp_path / "b", a_backup(), None)
    index = tmp_path / "b" / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"pools": entries}))
    with pytest.raises(BackupError, match="not the index of a backup"):
        files.read(tmp_path / "b", None)


# Manifests


def test_manifests_have_what_another_server_needs() -> None:
    text = pools.manifests_of(SERVER, [pool("a", allocated={"10.0.0.9": "team/m"}, available=253)])
    assert text.startswith(f'# IPPools of Harvester "{SERVER}"\n---\n')
    (manifest,) = yaml.safe_load_all(text)
    assert manifest["metadata"] == {"name": "a", "labels": {"a": "b"}}
    assert manifest["status"] == {"allocated": {"10.0.0.9": "team/m"}, "available": 253}
    assert (manifest["apiVersion"], manifest["kind"]) == ("loadbalancer.harvesterhci.io/v1beta1", "IPPool")


def test_a_name_of_a_harvester_cannot_leave_its_comment() -> None:
    text = pools.manifests_of("x\n---\nkind: ClusterRoleBinding", [pool("a")])
    assert [manifest["kind"] for manifest in yaml.safe_load_all(text)] == ["IPPool"]


def show(folder: Path, backup: Backup, *options: str) -> Result:
    """Write a backup, and run `caphv restore --show-ip-pools` with it."""
    if not folder.exists():
        files.write(folder, backup, None)
    arguments = ["restore", str(folder), "--unencrypted", "--show-ip-pools", "--kubeconfig", "/nowhere", *options]
    return CliRunner().invoke(cli, arguments)


def test_restore_shows_pools_and_asks_no_server(tmp_path: Path) -> None:
    shown = show(tmp_path / "b", a_backup(pool("a")))
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert [manifest["metadata"]["name"] for manifest in yaml.safe_load_all(shown.stdout)] == ["a"]


@pytest.mark.parametrize(
    ("saved", "reason"), [(None, "made without --ip-pools"), ({}, "the clusters of the backup use no IPPools")]
)
def test_a_backup_without_pools_says_why(tmp_path: Path, saved: Any, reason: str) -> None:
    backup = a_backup()
    backup.pools = saved
    refused = show(tmp_path / "b", backup)
    assert (refused.exit_code, reason in refused.output) == (2, True)


@pytest.mark.parametrize("damaged", [["a"], ["a", "b"]])
def test_damaged_pools_are_named(tmp_path: Path, damaged: list[str]) -> None:
    files.write(tmp_path / "b", a_backup(pool("a"), pool("b")), None)
    for name in damaged:
        (file,) = (tmp_path / "b").glob(f"harvester-1/*/{name}.json")
        file.unlink()
    shown = show(tmp_path / "b", a_backup())
    assert shown.exit_code == 1
    assert [line.partition(" (")[0] for line in shown.stderr.splitlines()] == [
        f"missing: IPPool {name}" for name in damaged
    ]
    names = [manifest["metadata"]["name"] for manifest in yaml.safe_load_all(shown.stdout)]
    assert names == [name for name in "ab" if name not in damaged]


@pytest.mark.parametrize(
    "unseen", [f"IPPools of Harvester {SERVER}: no route", f"IPPool x of Harvester {SERVER}: y", "identity Secret a: z"]
)
@pytest.mark.parametrize("saved", [(), (pool("a"),)])
def test_pools_that_were_not_saved_are_named(tmp_path: Path, unseen: str, saved: tuple[Obj, ...]) -> None:
    backup = a_backup(*saved)
    backup.pools, backup.unseen = backup.pools or {}, (unseen, "widgets: forbidden")
    shown = show(tmp_path / "b", backup)
    assert (shown.exit_code, shown.stderr) == (1, f"was not saved: {unseen}\n")


def test_pools_of_one_harvester_are_not_created_on_another(tmp_path: Path) -> None:
    backup = a_backup(pool("a"))
    other = "https://other:6443"
    backup.pools = {SERVER: [pool("a")], other: [pool("b")]}
    backup.unseen = (f"IPPools of Harvester {SERVER}: no route",)
    refused = show(tmp_path / "b", backup)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert SERVER in refused.stderr
    assert other in refused.stderr

    shown = show(tmp_path / "b", backup, "--harvester-server", other)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert [manifest["metadata"]["name"] for manifest in yaml.safe_load_all(shown.stdout)] == ["b"]
    unknown = show(tmp_path / "b", backup, "--harvester-server", "https://x")
    assert (unknown.exit_code, unknown.stdout) == (2, "")


@pytest.mark.parametrize("identity", [Key("team", "identity"), cluster_identity("shared")])
def test_pools_behind_an_identity_that_was_not_read_may_be_missing(identity: Key) -> None:
    text = str(Unseen(describe(identity), "forbidden"))
    assert pools.absence_of([text, "clusters: forbidden"]) == [text]
    assert pools.absence_of([text], SERVER) == [text], "where it leads is not known"


def test_unread_pools_matter_for_their_own_harvester() -> None:
    own, other = f"IPPools of Harvester {SERVER}: no answer", "IPPools of Harvester https://other: no answer"
    assert pools.absence_of([own, other]) == [own, other]
    assert pools.absence_of([own, other], SERVER) == [own]
