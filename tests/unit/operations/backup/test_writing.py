"""What a restore creates, repeats and reads back, on a server in memory."""

from __future__ import annotations

from typing import Any, cast

import pytest

from caphv.api import parking
from caphv.api.names import RESTORED_FROM_ANNOTATION
from caphv.api.object import Obj, Resource
from caphv.api.objectid import id_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, Forbidden
from operations.backup.files import Backup, Origin
from operations.backup.writing import Restore, create, is_paused_by_us, prepare, unpause, verify
from tests.support.backup import CORE, made, whole_cluster
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit

APPLIED = {"manager": "capi-topology", "operation": "Apply", "fieldsV1": {"f:spec": {}}}
OWN = {"manager": "caphv-cli", "operation": "Update", "fieldsV1": {"f:spec": {}}}
STATUS = {"manager": "core", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}}


def client(server: MemoryServer) -> ApiClient:
    return cast("ApiClient", server)


async def restore_of(server: MemoryServer, *objs: Obj) -> Restore:
    backup = Backup(Origin("b", "", "https://old", "old"), ("team/shop",), {id_of(obj): obj for obj in objs})
    return await prepare(client(server), backup)


def empty(*objs: Obj) -> MemoryServer:
    """A server with the kinds of a whole cluster."""
    return MemoryServer(*objs, served=[(obj["apiVersion"], obj["kind"]) for obj in whole_cluster()])


def applied(name: str = "x", **fields: Any) -> Obj:
    obj = made(CORE, "Cluster", name, spec={"paused": False}, **fields)
    obj["metadata"]["managedFields"] = [APPLIED, STATUS]
    return obj


def managers(server: MemoryServer, name: str = "x") -> list[str]:
    obj = server.find("Cluster", name, "team")
    assert obj is not None
    return [entry["manager"] for entry in obj["metadata"].get("managedFields") or ()]


class Managing(MemoryServer):
    """Notes, like an API server, who created an object; `conflicts` patches meet another writer."""

    conflicts = 0

    async def create(self, resource: Resource, obj: Obj, *, dry_run: bool = False) -> Obj:
        other = {"manager": "controller", "operation": "Update"}
        return await super().create(resource, {**obj, "metadata": {**obj["metadata"], "managedFields": [OWN, other]}})

    async def patch(self, resource: Resource, name: str, namespace: str, patch: Any, **options: Any) -> Obj:
        if self.conflicts and "managedFields" in patch["metadata"]:
            self.conflicts -= 1
            raise Conflict(409, "Conflict", "modified")
        return await super().patch(resource, name, namespace, patch, **options)


def managing() -> Managing:
    return Managing(served=[(CORE, "Cluster"), (CORE, "Machine")])


async def test_managers_of_fields_are_restored_in_place_of_the_command() -> None:
    server = managing()
    assert await create(client(server), await restore_of(server, applied())) == []
    assert managers(server) == ["capi-topology", "controller"]


async def test_an_object_that_nothing_applies_keeps_its_managers() -> None:
    server = managing()
    assert await create(client(server), await restore_of(server, made(CORE, "Cluster", "x", spec={}))) == []
    assert managers(server) == ["caphv-cli", "controller"]
    assert server.requests == ["create Cluster x"]


@pytest.mark.parametrize(("conflicts", "fails"), [(1, False), (19, False), (20, True)])
async def test_a_conflict_with_a_controller_is_tried_again(conflicts: int, fails: bool) -> None:
    server = managing()
    server.conflicts = conflicts
    failed = await create(client(server), await restore_of(server, applied()))
    assert failed == (["Cluster team/x: modified"] if fails else [])
    assert managers(server)[0] == ("caphv-cli" if fails else "capi-topology")


async def test_only_what_an_interrupted_restore_did_not_complete_is_done_again() -> None:
    server = managing()
    objs = applied(), made(CORE, "Machine", "m")
    assert await create(client(server), await restore_of(server, *objs)) == []
    server.requests.clear()
    assert await create(client(server), await restore_of(server, *objs)) == []
    assert server.requests == []
    there = server.find("Cluster", "x", "team")
    assert there is not None
    server.put({**there, "metadata": {**there["metadata"], "managedFields": [OWN]}})
    assert await create(client(server), await restore_of(server, *objs)) == []
    assert server.requests == ["patch Cluster x"]
    assert managers(server) == ["capi-topology"]


async def test_what_exists_and_is_the_same_is_not_touched() -> None:
    obj = made(CORE, "Cluster", "x", spec={"a": 1})
    server = empty(obj)
    assert await create(client(server), await restore_of(server, obj)) == []
    assert server.requests == []


async def test_an_object_that_a_controller_created_meanwhile_is_compared_later() -> None:
    server = empty()
    restore = await restore_of(server, made(CORE, "Cluster", "x", spec={"a": 1}))
    server.put(made(CORE, "Cluster", "x", spec={"a": 2}))
    assert await create(client(server), restore) == []


async def test_after_a_level_that_failed_nothing_is_created() -> None:
    server = empty()
    server.errors["create Cluster"] = Forbidden(403, "Forbidden", "may not")
    failed = await create(client(server), await restore_of(server, *whole_cluster()))
    assert failed == ["Cluster team/shop: may not"]
    assert server.find("ClusterClass", "shop-class", "classes") is not None
    assert not any("Machine" in request for request in server.requests if "Template" not in request)


async def test_what_is_absent_or_different_is_named_when_it_is_read_back() -> None:
    server = empty()
    restore = await restore_of(server, *whole_cluster())
    assert await create(client(server), restore) == []
    assert await verify(client(server), restore) == []
    changed = server.find("RKE2ControlPlane", "shop-cp", "team")
    assert changed is not None
    server.put({**changed, "spec": {"replicas": 9}})
    for obj in (server.find("Machine", "shop-0", "team"),):
        assert obj is not None
        await server.delete(restore.kinds["cluster.x-k8s.io", "Machine"], "shop-0", "team")
    assert await verify(client(server), restore) == [
        "Machine team/shop-0 does not exist",
        "RKE2ControlPlane team/shop-cp: spec.replicas differs from the backup",
    ]


async def test_the_pause_ends_where_the_restore_began_it() -> None:
    server = empty()
    paused = made(CORE, "Cluster", "paused", spec={"paused": True})
    restore = await restore_of(server, *whole_cluster(), paused)
    assert await create(client(server), restore) == []
    restore = await restore_of(server, *whole_cluster(), paused)
    assert is_paused_by_us(restore)
    server.requests.clear()
    assert await unpause(client(server), restore) == []
    assert "patch Cluster shop" in server.requests
    assert "patch Cluster paused" not in server.requests
    assert not is_paused_by_us(await restore_of(server, *whole_cluster(), paused))
    still = server.find("Cluster", "paused", "team")
    assert still is not None
    assert still["spec"]["paused"] is True


@pytest.mark.parametrize("lost", [False, True], ids=["as restored", "its record was removed"])
async def test_a_parked_cluster_is_released_to_the_provider_or_unpaused(lost: bool) -> None:
    server = empty()
    record = {"caphv.io/parked-since": "x", "caphv.io/paused-by-park": "true", "caphv.io/parked-by-schedule": "true"}
    cluster = made(CORE, "Cluster", "x", spec={"paused": True}, annotations=record)
    restore = await restore_of(server, cluster)
    assert await create(client(server), restore) == []
    if lost:
        live = server.find("Cluster", "x", "team")
        assert live is not None
        for name in ("caphv.io/parked-since", "caphv.io/parked-by-schedule"):
            del live["metadata"]["annotations"][name]
        server.put(live)
    assert await verify(client(server), restore) == []

    restore = await restore_of(server, cluster)
    assert is_paused_by_us(restore)
    assert await unpause(client(server), restore) == []
    live = server.find("Cluster", "x", "team")
    assert live is not None
    assert parking.owns_pause(live) is not lost
    assert bool(live["spec"].get("paused")) is not lost
    restore = await restore_of(server, cluster)
    assert (is_paused_by_us(restore), await verify(client(server), restore)) == (False, [])


async def test_a_pause_of_another_client_is_left() -> None:
    server = empty(made(CORE, "Cluster", "x", spec={"paused": True}, annotations={RESTORED_FROM_ANNOTATION: "other"}))
    restore = await restore_of(server, made(CORE, "Cluster", "x", spec={}))
    assert not is_paused_by_us(restore)
    assert (await unpause(client(server), restore), server.requests) == ([], [])


async def test_a_pause_that_does_not_end_is_named() -> None:
    server = empty()
    cluster = made(CORE, "Cluster", "x", spec={})
    assert await create(client(server), await restore_of(server, cluster)) == []
    server.errors["patch Cluster"] = Forbidden(403, "Forbidden", "may not")
    assert await unpause(client(server), await restore_of(server, cluster)) == ["Cluster team/x: may not"]


async def test_kinds_that_the_target_serves_otherwise_are_problems() -> None:
    server = MemoryServer(served=[("cluster.x-k8s.io/v1beta1", "Cluster")])
    restore = await restore_of(
        server, made(CORE, "Cluster", "x"), made(CORE, "Machine", "m"), made(CORE, "Machine", "n")
    )
    first, second = restore.problems
    assert first.startswith("Cluster is not served as cluster.x-k8s.io/v1beta2 there, only as cluster.x-k8s.io/v1beta1")
    assert second.startswith("Machine of cluster.x-k8s.io is not installed there")
