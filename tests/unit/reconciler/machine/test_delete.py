"""A deletion concludes nothing from an old state, and leaves what belongs to others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.object import Key, Obj
from caphv.runtime.queue import WorkQueue
from reconciler.context import Context
from reconciler.harvester.ownership import Owner
from reconciler.machine import delete
from reconciler.machine.ipaddress import release_address
from reconciler.machine.scope import MachineScope
from reconciler.memory import Memory
from reconciler.status import Blocked, StatusDraft
from reconciler.triggers import Subscription, Topics

pytestmark = pytest.mark.unit

OWN = Owner("HarvesterMachine", "team", "one", "uid-one", "management-cluster")


def machine(**annotations: str) -> Obj:
    metadata = {"namespace": "team", "name": "one", "uid": OWN.uid, "annotations": annotations}
    return {"metadata": {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"providerID": "x"}}


class Allocator:
    """Records what is released."""

    def __init__(self) -> None:
        self.released: list[str] = []

    async def release(self, _pool: str, address: str, *_holder: str) -> bool:
        self.released.append(address)
        return True


def scope_of(*, current: bool = True, session: bool = True, annotations: Obj | None = None, **pools: Obj) -> Any:
    """A scope whose Harvester has these pools and no VM."""
    empty = SimpleNamespace(get=lambda *_: None, store=())
    namespace = SimpleNamespace(
        synced=True, current=current, sync_error="", vms=empty, instances=empty, claims=empty, load_balancers=empty
    )
    harvester = SimpleNamespace(
        error=None,
        synced=True,
        sync_error="",
        server="https://harvester",
        fingerprint="harvester",
        pools=SimpleNamespace(current=True, store=list(pools.values())),
        watch_namespace=lambda _: namespace,
        allocator=Allocator(),
    )
    sessions = SimpleNamespace(of=lambda _: harvester if session else None)
    queues = SimpleNamespace(machines=WorkQueue[Key]("test"))
    context = SimpleNamespace(
        sessions=sessions,
        topics=Topics(),
        memory=Memory(),
        queues=queues,
        event=lambda *_: None,
        owner=lambda *_: OWN,
    )
    obj = machine(**(annotations or {}))
    cluster = {"metadata": {"namespace": "team", "name": "cluster", "uid": "c"}, "spec": {"targetNamespace": "vms"}}
    scope = MachineScope(cast(Context, context), obj, None, cluster, cluster, StatusDraft(obj))
    return scope, harvester


def pool(address: str, cluster: str) -> Obj:
    annotations = {f"addresses.caphv.io/{address}": cluster} if cluster else {}
    return {"metadata": {"name": "pool", "annotations": annotations}, "status": {"allocated": {address: "team/one"}}}


async def test_absence_in_a_cache_that_is_not_connected_releases_nothing() -> None:
    scope, harvester = scope_of(current=False, pool=pool("10.0.0.1", "manageme"))
    with pytest.raises(Blocked) as blocked:
        await delete.delete_machine(scope)
    assert blocked.value.unknown
    assert isinstance(blocked.value.triggers[0], Subscription)
    assert harvester.allocator.released == []


async def test_machine_waits_for_its_caches_without_a_timer() -> None:
    scope, _ = scope_of(current=False)
    with pytest.raises(Blocked) as blocked:
        await delete.delete_machine(scope)
    assert blocked.value.requeue_after is None
    scope.context.topics.notify(("caches", "harvester"))
    assert len(scope.context.queues.machines) == 1


async def test_address_of_a_foreign_vm_is_released_only_with_our_mark() -> None:
    for mark, released in (("", []), ("another-", []), ("manageme", ["10.0.0.1"])):
        scope, harvester = scope_of(pool=pool("10.0.0.1", mark))
        scope.draft.fields["allocatedIPAddress"] = "10.0.0.1"
        await release_address(scope, foreign_vm=True)
        assert harvester.allocator.released == released


async def test_force_delete_works_without_a_session() -> None:
    scope, _ = scope_of(session=False, annotations={"caphv.io/force-delete": "true"})
    with pytest.raises(Blocked, match="waiting for the HarvesterCluster to connect"):
        await delete.delete_machine(scope)
    scope.context.memory.cluster(scope.harvester_cluster).connection_error = "another Harvester"
    await delete.delete_machine(scope)


async def test_blocked_deletion_names_the_annotation_that_ends_it() -> None:
    scope, _ = scope_of(session=False)
    scope.context.memory.cluster(scope.harvester_cluster).connection_error = "another Harvester"
    with pytest.raises(Blocked, match=r'caphv\.io/force-delete: "true"'):
        await delete.delete_machine(scope)
