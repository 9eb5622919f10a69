"""`caphv move` between API servers without controllers: what stops it, what it continues, and what it deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Unreachable
from sandbox import manifests
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer, private_file
from tests.support.backup import shared_template, whole_cluster
from tests.support.backupserver import definitions, everything, load
from tests.support.overview import Management

PAUSED = {"conditions": [{"type": "Paused", "status": "True"}]}


class Sides:
    """A source and a target, and the command between them."""

    def __init__(self, old: Management, new: Management) -> None:
        self.old, self.new = old, new

    def move(self, *arguments: str, to: Management | None = None) -> Result:
        """Run `caphv move` of clusters, without a question."""
        target = (to or self.new).folder / "target.kubeconfig"
        private_file(target, pki.to_yaml((to or self.new).server.kubeconfig()))
        return self.old.caphv("move", *arguments, "--yes", "--timeout", "3s", "--to-kubeconfig", str(target))

    def load(self, *objs: Obj) -> None:
        """Create objects on the source."""

        async def create() -> None:
            async with self.old.server.client() as client:
                await load(client, list(objs))

        asyncio.run(create())

    def there(self) -> dict[str, Obj]:
        """Objects of the target."""
        return asyncio.run(everything(self.new.server))

    def here(self) -> dict[str, Obj]:
        """Objects of the source."""
        return asyncio.run(everything(self.old.server))


@pytest.fixture(scope="module")
def sides(etcd_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    """Two management clusters; clusters of the source are made by the tests."""
    servers = [ApiServer(etcd_folder, name) for name in ("move-source", "move-target")]

    async def start() -> None:
        await asyncio.gather(*(server.start() for server in servers))
        for server in servers:
            async with server.client() as client:
                await manifests.apply(client, definitions())

    asyncio.run(start())
    old, new = (Management(server, tmp_path_factory.mktemp(server.name)) for server in servers)
    yield Sides(old, new)
    for server in servers:
        asyncio.run(server.stop())


def movable(name: str) -> list[Obj]:
    """A cluster whose pause the provider confirms at once, and whose machines have no VMs yet."""
    objs = whole_cluster(name, identity=f"{name}-identity", machines=1)
    for obj in objs:
        if obj["kind"] == "HarvesterMachine":
            obj["spec"] = {}
        if obj["kind"] in ("HarvesterCluster", "HarvesterMachine"):
            obj["status"] = PAUSED
    return objs


def of(name: str, objs: dict[str, Obj]) -> list[str]:
    """Objects of a cluster that are deleted on the source: the class, the identity and what has no owner stay."""
    stays = (f"{name}-class", f"{name}-workers", f"{name}-identity", f"{name}-addons", f"{name}-etcd", f"{name}-cni")
    found = [key for key in objs if f"/{name}" in key and not key.endswith(stays)]
    return sorted(key.replace(f"/{name}", "/*") for key in found)


def test_a_move_that_was_interrupted_while_the_pause_ended_is_completed(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.load(*movable("half"))
    patch = ApiClient.patch

    async def interrupted(client: ApiClient, resource: Resource, name: str, *what: Any, **options: Any) -> Obj:
        if what[-1] == {"spec": {"paused": None}}:
            raise Unreachable("interrupted")
        return await patch(client, resource, name, *what, **options)

    monkeypatch.setattr(ApiClient, "patch", interrupted)
    first = sides.move("team/half")
    assert (first.exit_code, "interrupted" in first.output) == (1, True), first.output
    between = sides.there()
    assert "cluster.x-k8s.io/paused" not in between["ClusterClass classes/half-class"]["metadata"]["annotations"]
    assert between["Cluster team/half"]["spec"]["paused"]
    monkeypatch.setattr(ApiClient, "patch", patch)
    second = sides.move("team/half")
    assert second.exit_code == 0, second.output
    assert "paused" not in sides.there()["Cluster team/half"]["spec"]
    assert of("half", sides.here()) == []


def test_what_the_target_deleted_after_the_pause_is_not_created_again(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = [movable("one"), movable("two")]
    sides.load(*pair[0], *pair[1])
    patch, gone = ApiClient.patch, Resource("cluster.x-k8s.io", "v1beta2", "machines", "Machine")

    async def interrupted(client: ApiClient, resource: Resource, name: str, *what: Any, **options: Any) -> Obj:
        if what[-1] == {"spec": {"paused": None}} and name == "two":
            await client.delete(gone, "one-0", "team")
            raise Unreachable("interrupted")
        return await patch(client, resource, name, *what, **options)

    monkeypatch.setattr(ApiClient, "patch", interrupted)
    assert sides.move("team/one", "team/two").exit_code == 1
    monkeypatch.setattr(ApiClient, "patch", patch)
    second = sides.move("team/one", "team/two")
    assert "an interrupted move is completed" in second.output
    there = sides.there()
    assert "Machine team/one-0" not in there
    assert "paused" not in there["Cluster team/two"]["spec"]


def test_a_template_that_two_clusters_share_stays_until_both_are_moved(sides: Sides) -> None:
    a, b = movable("left"), movable("right")
    sides.load(*a, *b, shared_template("shared", *a, *b))
    result = sides.move("team/left")
    assert result.exit_code == 0, result.output
    assert "shared, stays on the source: HarvesterMachineTemplate team/shared" in result.output
    assert of("left", sides.here()) == []
    assert "HarvesterMachineTemplate team/shared" in sides.here()
    moved = sides.there()["HarvesterMachineTemplate team/shared"]
    assert [each["name"] for each in moved["metadata"]["ownerReferences"]] == ["left"]
