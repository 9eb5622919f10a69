"""Garbage collection and namespace deletion, for API servers without kube-controller-manager.

The Cluster API core deletes Machines itself and relies on owner references for the rest:
MachineHealthChecks, ClusterResourceSetBindings, cloned templates, kubeconfig Secrets. Without a
collector they would stay forever, and so would a deleted namespace.

It watches the metadata of the core kinds below and of all custom resources. It does not orphan
dependents. Owners of kinds that it does not watch count as existing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import NamedTuple

from caphv.api.object import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Key,
    Obj,
    Resource,
    being_deleted,
    key_of,
    uid_of,
)
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import Invalid, NotFound

log = logging.getLogger(__name__)

CORE = (
    NAMESPACES,
    SECRETS,
    SERVICES,
    PERSISTENT_VOLUME_CLAIMS,
    CONFIG_MAPS,
    SERVICE_ACCOUNTS,
)
FOREGROUND = "foregroundDeletion"
_RETRY_SECONDS = 1.0


class _Object(NamedTuple):
    """The metadata of an object, with its kind."""

    resource: Resource
    obj: Obj


class GarbageCollector:
    """The garbage collector of one API server. It finds objects by uid, as owner references do."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._crds = Informer(
            client, CUSTOM_RESOURCE_DEFINITIONS, transform=_without_schema, max_backoff=5
        )
        self._informers: dict[str, Informer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._objects: dict[str, _Object] = {}
        self._dependents: dict[str, set[str]] = {}
        self._controller = Controller("garbage", self._reconcile, concurrency=8)

    async def run(self) -> None:
        """Run until cancelled."""
        self._tasks["crds"] = asyncio.create_task(self._crds.run())
        try:
            await self._crds.wait_synced()
            for resource in CORE:
                self._watch(resource)
            self._crds.add_handler(self._on_crd_change)

            # An owner that has not been read yet would seem to be deleted.
            await asyncio.gather(*(informer.wait_synced() for informer in self._informers.values()))
            await self._controller.run()
        finally:
            for task in self._tasks.values():
                task.cancel()

    # The graph

    def _on_crd_change(self, change: Change) -> None:
        spec = change.obj["spec"]
        version = next(entry["name"] for entry in spec["versions"] if entry["storage"])
        names = spec["names"]
        resource = Resource(
            group=spec["group"],
            version=version,
            plural=names["plural"],
            kind=names["kind"],
            namespaced=spec["scope"] == "Namespaced",
        )

        if change.new is not None:
            self._watch(resource)
        elif str(resource) in self._tasks:
            self._tasks.pop(str(resource)).cancel()
            for obj in self._informers.pop(str(resource)).store:
                self._forget(obj)

    def _watch(self, resource: Resource) -> None:
        if str(resource) in self._informers:
            return
        informer = Informer(self._client, resource, metadata_only=True, max_backoff=5)
        informer.add_handler(self._on_change)
        self._informers[str(resource)] = informer
        self._tasks[str(resource)] = asyncio.create_task(informer.run())

    def _on_change(self, change: Change) -> None:
        # An informer that missed a deletion reports the new object of the same name as a change.
        if change.old is not None and (
            change.new is None or uid_of(change.old) != uid_of(change.new)
        ):
            self._forget(change.old)
        if change.new is None:
            return

        uid = uid_of(change.new)
        self._objects[uid] = _Object(change.resource, change.new)
        owners = _owners(change.new)
        for owner in owners:
            self._dependents.setdefault(owner["uid"], set()).add(uid)
        if owners or being_deleted(change.new):
            self._controller.enqueue(Key("", uid))

    def _forget(self, obj: Obj) -> None:
        uid = uid_of(obj)
        self._objects.pop(uid, None)
        for owner in _owners(obj):
            self._dependents.get(owner["uid"], set()).discard(uid)
            # The foreground deletion of the owner may wait for this object.
            self._controller.enqueue(Key("", owner["uid"]))
        for dependent in self._dependents.pop(uid, ()):
            self._controller.enqueue(Key("", dependent))

        # The deletion of the namespace may wait for this object.
        namespace = self._informers[str(NAMESPACES)].get("", key_of(obj).namespace)
        if namespace:
            self._controller.enqueue(Key("", uid_of(namespace)))

    # Deletion

    async def _reconcile(self, key: Key) -> Result | None:
        """Reconcile the object whose uid is the name of the key."""
        if key.name not in self._objects:
            return None

        resource, obj = self._objects[key.name]
        if not being_deleted(obj):
            await self._collect(resource, obj)
        elif resource is NAMESPACES:
            return await self._finish_namespace(obj)
        elif FOREGROUND in (obj["metadata"].get("finalizers") or ()):
            await self._finish_foreground(resource, obj)
        return None

    async def _collect(self, resource: Resource, obj: Obj) -> None:
        """Delete an object whose owners were all deleted, or remove references to deleted ones."""
        owners = _owners(obj)
        existing = [owner for owner in owners if not await self._is_deleted(owner, obj)]
        if owners and not existing:
            log.info("deleting %s %s with its owner", resource.kind, key_of(obj))
            await self._delete(resource, obj)
        elif len(existing) < len(owners):
            # As kube-controller-manager does; `clusterctl move` follows the references.
            await self._patch_metadata(resource, obj, {"ownerReferences": existing})

    async def _is_deleted(self, owner: Obj, dependent: Obj) -> bool:
        """Return whether the owner in a reference no longer exists. Unwatched kinds exist."""
        group = owner["apiVersion"].rpartition("/")[0]
        resources = [
            informer.resource
            for informer in self._informers.values()
            if (informer.resource.group, informer.resource.kind) == (group, owner["kind"])
        ]
        if owner["uid"] in self._objects or not resources:
            return False

        # Ask the server, because the informer of the kind may be out of date.
        resource = resources[0]
        namespace = dependent["metadata"].get("namespace", "") if resource.namespaced else ""
        try:
            live = await self._client.get(resource, owner["name"], namespace)
        except NotFound:
            return True
        return uid_of(live) != owner["uid"]

    async def _finish_namespace(self, namespace: Obj) -> Result | None:
        """Delete what a deleted namespace contains, and end its deletion once it is empty."""
        name = namespace["metadata"]["name"]
        contents = [
            member for member in self._objects.values() if key_of(member.obj).namespace == name
        ]
        if not contents:
            # Ask the server, because an informer may be out of date, and an object that outlives
            # its namespace could never be deleted.
            contents = await self._list_contents(name)
        if contents:
            await self._delete_contents(contents)
            # No event follows if the informer of an object misses both its creation and deletion.
            return Result(requeue_after=_RETRY_SECONDS)

        # The finalizer of a namespace is in its spec, which only this subresource changes.
        body = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name},
            "spec": {"finalizers": []},
        }
        with contextlib.suppress(NotFound):
            await self._client.request(
                "PUT", NAMESPACES.path("", name, "finalize"), resource=NAMESPACES, body=body
            )
        return None

    async def _list_contents(self, namespace: str) -> list[_Object]:
        """Return the objects of a namespace, as the server has them now."""
        contents = []
        for informer in tuple(self._informers.values()):
            resource = informer.resource
            if not resource.namespaced:
                continue
            # A kind whose CRD was deleted meanwhile has no objects.
            with contextlib.suppress(NotFound):
                answer = await self._client.list(resource, namespace, metadata_only=True)
                contents += [_Object(resource, obj) for obj in answer["items"]]
        return contents

    async def _delete_contents(self, contents: Iterable[_Object]) -> None:
        """Delete objects, also after a refusal. Raises the last refusal, for another attempt."""
        refusal = None
        for resource, obj in contents:
            if not being_deleted(obj):
                try:
                    await self._delete(resource, obj)
                except Invalid as error:
                    # Another object may use this one, like a VM its claim.
                    refusal = error
        if refusal:
            raise refusal

    async def _finish_foreground(self, resource: Resource, obj: Obj) -> None:
        """Delete the dependents of an object, and remove its finalizer once there are none."""
        dependents = [
            self._objects[uid]
            for uid in self._dependents.get(uid_of(obj), ())
            if uid in self._objects
        ]
        for dependent in dependents:
            if not being_deleted(dependent.obj):
                await self._delete(dependent.resource, dependent.obj)

        if not dependents:
            finalizers = [name for name in obj["metadata"]["finalizers"] if name != FOREGROUND]
            await self._patch_metadata(resource, obj, {"finalizers": finalizers})

    async def _patch_metadata(self, resource: Resource, obj: Obj, metadata: Obj) -> None:
        # Name the version, because a list in a merge patch replaces entries that were added
        # meanwhile.
        version = obj["metadata"]["resourceVersion"]
        patch = {"metadata": {**metadata, "resourceVersion": version}}
        key = key_of(obj)
        with contextlib.suppress(NotFound):
            await self._client.patch(resource, key.name, key.namespace, patch)

    async def _delete(self, resource: Resource, obj: Obj) -> None:
        key = key_of(obj)
        with contextlib.suppress(NotFound):
            await self._client.delete(resource, key.name, key.namespace, uid=uid_of(obj))


def _owners(obj: Obj) -> list[Obj]:
    return obj["metadata"].get("ownerReferences") or []


def _without_schema(crd: Obj) -> Obj:
    versions = [
        {"name": version["name"], "storage": version["storage"]}
        for version in crd["spec"]["versions"]
    ]
    return {"metadata": crd["metadata"], "spec": {**crd["spec"], "versions": versions}}
