"""Machines whose deletion meets a Harvester in memory."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner, record
from caphv.runtime.errors import Invalid, NotFound
from caphv.runtime.queue import WorkQueue
from reconciler.context import Context
from reconciler.machine.scope import MachineScope
from reconciler.memory.store import Memory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics

OWN = Owner("HarvesterMachine", "team", "one", "uid-one", "management-cluster")


def machine(**annotations: str) -> Obj:
    metadata = {"namespace": "team", "name": "one", "uid": OWN.uid, "annotations": annotations}
    return {"metadata": {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"providerID": "x"}}


class Allocator:
    """Records what is released. `late` is a pool of which the cache hears only when all writes are settled."""

    def __init__(self, store: list[Obj]) -> None:
        self.released: list[str] = []
        self.store = store
        self.late: list[Obj] = []

    async def settle(self, ids: Collection[str]) -> None:
        assert ids == {"team/one"}
        self.store.extend(self.late)

    async def mark(self, pool: str, address: str, cluster: str) -> None:
        for obj in self.store:
            if obj["metadata"]["name"] == pool:
                obj["metadata"]["annotations"][f"addresses.caphv.io/{address}"] = cluster

    async def release(self, _pool: str, address: str, *_holder: str) -> bool:
        self.released.append(address)
        return True


def scope_of(
    *, current: bool = True, session: bool = True, refusal: str = "", annotations: Obj | None = None, **pools: Obj
) -> Any:
    """A scope whose Harvester has these pools and no VM."""

    async def read(*_: str) -> None:
        pass

    empty = SimpleNamespace(get=lambda *_: None, read=read, store=())
    namespace = SimpleNamespace(
        synced=True, current=current, sync_error="", vms=empty, instances=empty, claims=empty, load_balancers=empty
    )
    store = list(pools.values())
    harvester = SimpleNamespace(
        error=None,
        synced=True,
        sync_error="",
        server="https://harvester",
        fingerprint="harvester",
        pools=SimpleNamespace(current=True, store=store),
        watch_namespace=lambda _: namespace,
        refusal=lambda *_: refusal,
        allocator=Allocator(store),
    )
    sessions = SimpleNamespace(of=lambda _: harvester if session else None)
    queues = SimpleNamespace(machines=WorkQueue[Key]("test"))
    context = SimpleNamespace(
        belongs_to_another_tenant=lambda *_: False,
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


class Client:
    """Records requests; refuses updates of a VM as Harvester's webhook does.

    :param refuses: all updates, because of a shared volume
    :param has_backup: to halt the VM, because a backup of it is not ready
    """

    def __init__(
        self, *, refuses: bool, vm: Obj | None = None, secret: Obj | None = None, has_backup: bool = False
    ) -> None:
        self.refuses, self.has_backup = refuses, has_backup
        self._objects = {"VirtualMachine": vm, "Secret": secret}
        self.patches: list[Obj] = []
        self.deleted: list[str] = []
        self.reads: list[str] = []

    async def get(self, resource: Any, *_: str) -> Obj:
        self.reads.append(resource.kind)
        if (obj := self._objects[resource.kind]) is None:
            raise NotFound(404, "NotFound", "")
        return obj

    async def patch(self, _resource: Any, _name: str, _namespace: str, patch: Obj) -> Obj:
        if self.refuses:
            raise Invalid(422, "Invalid", "the volume shared is already used by VM vms/two")
        if self.has_backup and "runStrategy" in patch.get("spec", {}):
            raise Invalid(400, "BadRequest", "there is vmbackup in progress for vm vms/one")
        self.patches.append(patch)
        return patch

    async def delete(self, resource: Any, name: str, _namespace: str, *, uid: str) -> Obj:
        obj = self._objects[resource.kind] if resource.kind == "Secret" else None
        assert uid == (obj["metadata"]["uid"] if obj else f"uid-{name}")
        self.deleted.append(name)
        return {}


def vm_of(name: str, *claims: str, deleted: bool = False, listed: str = "") -> Obj:
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    devices = {"disks": [{"name": each} for each in claims]}
    annotations = {**record(OWN), "harvesterhci.io/removedPersistentVolumeClaims": listed}
    metadata = {
        "namespace": "vms",
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        "annotations": annotations,
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": metadata,
        "spec": {"template": {"spec": {"volumes": volumes, "domain": {"devices": devices}}}},
    }
