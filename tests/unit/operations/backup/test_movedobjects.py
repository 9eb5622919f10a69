"""A move: what it pauses and deletes on the source, and what it finds on the target."""

from __future__ import annotations

from typing import Any, cast

import pytest

from caphv.api.names import MOVING_ANNOTATION, RESTORED_FROM_ANNOTATION
from caphv.api.object import Key, Obj, Resource
from caphv.api.objectid import id_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Forbidden, Unreachable
from operations.backup.files import Backup
from operations.backup.movedobjects import (
    CLUSTER,
    delete_source,
    find_moved,
    objects_to_delete,
    pause,
    shared_objects,
    uncopied_objects,
    unpaused_objects,
)
from operations.backup.order import missing_of, plan
from operations.backup.writing import Restore
from operations.read.graph import belongings
from tests.support.backup import CORE, INFRASTRUCTURE, made, pool_with_claims, shared_template, whole_cluster
from tests.support.memoryserver import MemoryServer, plural_of

pytestmark = pytest.mark.unit


def backup_of(objs: list[Obj], *names: str) -> Backup:
    chosen = [Key("team", name) for name in names]
    return Backup(clusters=tuple(map(str, chosen)), objects=belongings(chosen, objs).objects)


def two_clusters_with_one_template() -> list[Obj]:
    """Clusters `team/a` and `team/b` that share a template, which owns a further one."""
    a, b = whole_cluster("a"), whole_cluster("b")
    template = shared_template("workers", *a, *b)
    return [*a, *b, template, made(INFRASTRUCTURE, "HarvesterMachineTemplate", "derived", template)]


def test_a_template_that_another_cluster_owns_stays_on_the_source() -> None:
    backup = backup_of(two_clusters_with_one_template(), "a")
    deleted = sorted(str(identity) for identity in objects_to_delete(backup))
    assert deleted == [
        "Cluster team/a",
        "HarvesterCluster team/a-x7k2p",
        "HarvesterMachine team/a-0",
        "HarvesterMachine team/a-1",
        "Machine team/a-0",
        "Machine team/a-1",
        "MachineHealthCheck team/a-check",
        "RKE2Config team/a-0",
        "RKE2Config team/a-1",
        "RKE2ControlPlane team/a-cp",
        "Secret team/a-0",
        "Secret team/a-1",
        "Secret team/a-kubeconfig",
    ]
    assert [str(identity) for identity in shared_objects(backup)] == ["HarvesterMachineTemplate team/workers"]


def test_a_template_is_deleted_when_all_its_owners_are_moved() -> None:
    backup = backup_of(two_clusters_with_one_template(), "a", "b")
    deleted = {str(identity) for identity in objects_to_delete(backup)}
    assert {"HarvesterMachineTemplate team/workers", "HarvesterMachineTemplate team/derived"} <= deleted
    assert shared_objects(backup) == []


def test_a_pool_stays_with_the_addresses_of_others_and_the_addresses_of_the_cluster_are_moved() -> None:
    a, b = whole_cluster("a", machines=1), whole_cluster("b", machines=1)
    machines = [obj for obj in (*a, *b) if obj["kind"] == "HarvesterMachine"]
    backup = backup_of([*a, *b, *pool_with_claims(*machines)], "a")
    ipam = {str(identity) for identity in backup.objects if identity.group == "ipam.cluster.x-k8s.io"}
    assert ipam == {"IPAddressClaim team/a-0-0-0", "IPAddress team/a-0-0-0"}
    assert ipam <= {str(identity) for identity in objects_to_delete(backup)}
    assert shared_objects(backup) == []
    # Both clusters are moved: the pool must exist on the target before, with what it has given out there.
    both = backup_of([*a, *b, *pool_with_claims(*machines)], "a", "b")
    assert not any(identity.kind == "InClusterIPPool" for identity in both.objects)
    assert missing_of(backup) == missing_of(both) == {}


# On servers in memory


KINDS = {
    id_of(obj)[:2]: Resource(
        id_of(obj).group, obj["apiVersion"].rpartition("/")[2], plural_of(obj["kind"]), obj["kind"]
    )
    for obj in whole_cluster()
}


async def deleted(server: MemoryServer, backup: Backup) -> list[str]:
    steps = plan(backup, {}, "move")
    return await delete_source(cast("ApiClient", server), KINDS, steps, objects_to_delete(backup))


async def test_what_is_owned_is_deleted_before_its_owner_and_the_cluster_last() -> None:
    objs = whole_cluster("a")
    server, backup = MemoryServer(*objs), backup_of(objs, "a")
    assert await deleted(server, backup) == []
    order = [request.removeprefix("delete ") for request in server.requests if request.startswith("delete ")]
    assert set(order) == {str(identity).replace("team/", "") for identity in objects_to_delete(backup)}
    assert order[-1] == "Cluster a"
    for first, second in (("Secret a-0", "RKE2Config a-0"), ("HarvesterMachine a-0", "Machine a-0")):
        assert order.index(first) < order.index(second) < order.index("RKE2ControlPlane a-cp")
    # The finalizers are removed first, so that no controller acts on a deletion.
    assert server.requests.index("patch Cluster a") < server.requests.index("delete Cluster a")
    assert server.find("Cluster", "a", "team") is None
    assert server.find("Secret", "identity", "team") is not None


async def test_what_was_deleted_meanwhile_does_not_stop_the_deletion() -> None:
    objs = whole_cluster("a")
    backup = backup_of(objs, "a")
    server = MemoryServer(*(obj for obj in objs if obj["kind"] != "HarvesterMachine"))
    assert await deleted(server, backup) == []
    assert server.find("Cluster", "a", "team") is None


@pytest.mark.parametrize("error", [Forbidden(403, "Forbidden", "may not"), Unreachable("no answer")], ids=str)
async def test_the_first_object_that_cannot_be_deleted_ends_the_deletion(error: ApiError | Unreachable) -> None:
    objs = whole_cluster("a")
    server = MemoryServer(*objs)
    server.errors["delete Machine a-0"] = error
    assert await deleted(server, backup_of(objs, "a")) == [f"Machine team/a-0: {error}"]
    assert server.find("Cluster", "a", "team") is not None
    assert "delete RKE2ControlPlane a-cp" not in server.requests


async def test_a_finalizer_that_the_core_adds_again_is_removed_again() -> None:
    class Server(MemoryServer):
        async def delete(self, resource: Resource, name: str, namespace: str = "", **options: Any) -> Any:
            await self.patch(resource, name, namespace, {"metadata": {"finalizers": ["core"]}})
            await super().delete(resource, name, namespace, **options)
            return {"metadata": {}}

    objs = whole_cluster("a")
    server = Server(*objs)
    assert await deleted(server, backup_of(objs, "a")) == []
    assert server.find("Cluster", "a", "team") is None


async def test_each_cluster_is_paused_with_a_note() -> None:
    objs = two_clusters_with_one_template()
    server = MemoryServer(*objs)
    await pause(cast("ApiClient", server), KINDS[CLUSTER], backup_of(objs, "a"), "target-uid")
    cluster = server.find("Cluster", "a", "team")
    assert cluster is not None
    assert cluster["spec"]["paused"] is True
    assert cluster["metadata"]["annotations"] == {MOVING_ANNOTATION: "target-uid"}
    assert server.requests == ["patch Cluster a"]


async def test_a_cluster_was_moved_before_if_it_runs_on_the_target_and_a_move_created_it() -> None:
    notes: dict[str, Obj] = {
        "moved": {"annotations": {RESTORED_FROM_ANNOTATION: "move-1"}},
        "paused": {"annotations": {RESTORED_FROM_ANNOTATION: "move-1"}, "spec": {"paused": True}},
        "restored": {"annotations": {RESTORED_FROM_ANNOTATION: "backup"}},
        "other": {},
    }
    server = MemoryServer(*(made(CORE, "Cluster", name, **fields) for name, fields in notes.items()))
    keys = [Key("team", name) for name in (*notes, "absent")]
    assert await find_moved(cast("ApiClient", server), KINDS[CLUSTER], keys) == {Key("team", "moved")}


def test_what_the_target_lacks_of_what_is_deleted_is_named() -> None:
    backup = backup_of(whole_cluster("a"), "a")
    existing = {
        identity: obj for identity, obj in backup.objects.items() if obj["kind"] not in ("Machine", "ConfigMap")
    }
    absent = uncopied_objects(Restore(backup, "https://target", "uid", {}, existing))
    assert [str(identity) for identity in absent] == ["Machine team/a-0", "Machine team/a-1"]


def test_a_pause_counts_when_the_provider_has_confirmed_it_where_it_writes() -> None:
    confirmed = {"conditions": [{"type": "Paused", "status": "True"}]}
    refuted = {"conditions": [{"type": "Paused", "status": "False"}]}
    external = {"cluster.x-k8s.io/managed-by": "another"}
    objs = [
        made(INFRASTRUCTURE, "HarvesterCluster", "a", status=confirmed),
        made(INFRASTRUCTURE, "HarvesterCluster", "b", status=refuted),
        made(INFRASTRUCTURE, "HarvesterCluster", "c", annotations=external),
        made(INFRASTRUCTURE, "HarvesterMachine", "d", annotations=external),
        made(INFRASTRUCTURE, "HarvesterMachine", "e", status=confirmed),
    ]
    assert unpaused_objects(objs) == ["HarvesterCluster team/b", "HarvesterMachine team/d"]
