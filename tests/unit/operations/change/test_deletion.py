"""The writes of a deletion in their order, and the list of what may remain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api import resources
from caphv.api.object import Key, Resource
from operations.change.changes import ChangeError
from operations.change.deletion import delete_cluster, read_remains, save_leftovers
from operations.read.objects import ManagementObjects
from operations.status.assembly import parts_of
from operations.status.diagnosis import Parts
from tests.support.clusters import Builder, ago
from tests.support.deletionserver import Server

pytestmark = pytest.mark.unit

ANNOTATED = ["annotate HarvesterMachine cp-1", "annotate HarvesterMachine worker-1", "annotate HarvesterCluster shop-x"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    async def kinds(_client: object) -> dict[str, Resource]:
        return {"clusters": resources.clusters("v1beta1")}

    monkeypatch.setattr("operations.read.management.kinds_of", kinds)
    return Server(Builder(workers=1))


def parts_on(server: Server) -> Parts:
    (parts,) = parts_of(server.builder.objects())
    return parts


async def delete(server: Server, *, force: bool) -> list[str]:
    client: Any = server
    await delete_cluster(client, parts_on(server), force=force)
    return server.writes


async def test_without_force_only_the_cluster_is_deleted(server: Server) -> None:
    assert await delete(server, force=False) == ["delete Cluster shop"]


async def test_the_cluster_is_deleted_before_anything_is_forced(server: Server) -> None:
    assert await delete(server, force=True) == ["delete Cluster shop", *ANNOTATED]


async def test_a_deletion_that_was_requested_before_is_forced(server: Server) -> None:
    server.builder.cluster["metadata"]["deletionTimestamp"] = ago(hours=1)
    server.absent = "cp-1"
    assert await delete(server, force=True) == ANNOTATED[1:]


async def test_a_cluster_that_rancher_provisions_is_deleted_there(server: Server) -> None:
    """Rancher makes the Cluster again while its own exists. Once the deletion has begun, it may be forced."""
    reference = {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane"}
    server.builder.cluster["spec"]["controlPlaneRef"] |= reference
    for force in (False, True):
        with pytest.raises(ChangeError, match=r"kubectl delete clusters\.provisioning\.cattle\.io shop -n team"):
            await delete(server, force=force)
    assert server.writes == []

    server.builder.cluster["metadata"]["deletionTimestamp"] = ago(hours=1)
    assert await delete(server, force=True) == ANNOTATED


async def test_remains_are_those_of_a_cluster_that_does_not_exist(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = server.builder.objects()

    async def read(*_: object) -> ManagementObjects:
        return objects

    monkeypatch.setattr("operations.read.management.read_management", read)
    client: Any = server
    assert await read_remains(client, Key("team", "shop")) is None
    objects.clusters.clear()
    remains = await read_remains(client, Key("team", "shop"))
    assert remains is not None
    assert remains.parts is not None
    assert sorted(remains.parts.harvester_machines) == [Key("team", "cp-1"), Key("team", "worker-1")]


def test_a_second_run_keeps_the_list_of_the_first(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "leftovers.yaml"
    save_leftovers(parts_on(server), file)
    assert file.read_text().startswith("---\n")
    server.builder.machines.pop("worker-1")
    server.builder.harvester_machines.pop("worker-1")
    save_leftovers(parts_on(server), file)
    first, second = yaml.safe_load_all(file.read_text())
    vm = {"kind": "VirtualMachine", "name": "worker-1", "namespace": "vms"}
    assert (vm in first["objects"], vm in second["objects"]) == (True, False)
    assert file.stat().st_mode & 0o777 == 0o600


def test_other_content_of_the_file_stays(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "notes.yaml"
    file.write_text("mine: true")
    save_leftovers(parts_on(server), file)
    first, second = yaml.safe_load_all(file.read_text())
    assert (first, second["cluster"]) == ({"mine": True}, "team/shop")
