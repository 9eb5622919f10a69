"""Applies objects to the management cluster by server-side apply, and reads existing ones.

Plurals of kinds are discovered, so that nothing needs to be known about bootstrap providers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caphv.api.object import Obj, Resource, at, key_of
from caphv.api.resources import CLUSTER_API_GROUP, CLUSTER_API_VERSIONS
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery, find_resource
from caphv.runtime.errors import ApiError, NotFound

MANAGER = "caphv-generate"
_WRONG_SERVER = "check --kubeconfig and --context: the management cluster must serve Cluster API"


@dataclass(frozen=True)
class ApplyFailure:
    """An object that the API server rejected, with its answer in `why`."""

    obj: Obj
    why: str

    def __str__(self) -> str:
        return f"{describe(self.obj)}: {self.why}"


def describe(obj: Obj) -> str:
    """Return kind and name of an object for messages."""
    return f"{obj['kind']} {key_of(obj)}"


class Applier:
    """Applies to one management cluster. Methods raise `Unreachable` when it does not answer."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._discovery = Discovery(client)

    async def apply(self, objects: Iterable[Obj], namespace: str = "") -> list[ApplyFailure]:
        """Create objects or take over the fields that they name; return the refused objects.

        A rejected object does not stop the others, and all errors are returned together.
        `namespace` is for objects that name none.
        """
        refused = []
        for obj in objects:
            try:
                resource = await self._resource(obj)
                await self._client.apply(
                    resource, _set_namespace(namespace, resource, obj), manager=MANAGER
                )
            except ApiError as error:
                refused.append(ApplyFailure(obj, str(error)))
        return refused

    async def delete_cluster(self, name: str, *, dry_run: bool = False) -> list[ApplyFailure]:
        """Delete a Cluster, `<namespace>/<name>`, if it exists; `dry_run` only tries it.

        Like `delete`, it keeps a Cluster that another client created.
        """
        namespace, _, plain = name.partition("/")
        cluster = {
            "apiVersion": f"{CLUSTER_API_GROUP}/{CLUSTER_API_VERSIONS[0]}",
            "kind": "Cluster",
            "metadata": {"name": plain, "namespace": namespace},
        }
        reason = await self._delete(cluster, namespace, dry_run=dry_run)
        return [ApplyFailure(cluster, reason)] if reason else []

    async def delete(self, objects: Iterable[Obj], namespace: str = "") -> list[ApplyFailure]:
        """Delete objects that this client applied; return the objects that were not deleted.

        An object stays if the server refuses, or if another client created it. A MachineDeployment
        is deleted only while it has no replicas. `namespace` is for objects that name none.
        """
        return [
            ApplyFailure(obj, reason)
            for obj in objects
            if (reason := await self._delete(obj, namespace))
        ]

    async def _delete(self, obj: Obj, namespace: str, *, dry_run: bool = False) -> str:
        """Delete an object if it exists; return why that failed."""
        try:
            # A server that does not serve the kind cannot tell whether the object exists.
            resource = await self._served_resource(obj)
        except ApiError as error:
            return f"{error}; {_WRONG_SERVER}"

        key = key_of(_set_namespace(namespace, resource, obj))
        try:
            live = await self._client.get(resource, key.name, key.namespace)
            if reason := _obstacle(live):
                return reason
            # With the uid, a new object of the same name is not deleted.
            uid = live["metadata"]["uid"]
            await self._client.delete(resource, key.name, key.namespace, uid=uid, dry_run=dry_run)
        except NotFound:
            return ""
        except ApiError as error:
            return str(error)
        return ""

    async def _served_resource(self, obj: Obj) -> Resource:
        """Return the resource of a kind in a served version, which may differ from the object's."""
        group, slash, _ = str(obj["apiVersion"]).partition("/")
        if not slash:
            return await self._resource(obj)
        return await find_resource(self._client, group, obj["kind"])

    async def read(self, obj: Obj) -> Obj | None:
        """Return the existing object of this kind and name; None when there is none."""
        try:
            key = key_of(obj)
            return await self._client.get(await self._resource(obj), key.name, key.namespace)
        except NotFound:
            return None

    async def missing(self, groups: Iterable[Sequence[Obj]]) -> list[Obj]:
        """Return the objects of groups whose last object does not exist.

        Clusters share groups. An existing group may be older or user-defined, and stays unchanged.
        """
        return [obj for group in groups if await self.read(group[-1]) is None for obj in group]

    async def _resource(self, obj: Obj) -> Resource:
        try:
            return await self._discovery.resource(obj)
        except LookupError as error:
            raise NotFound(404, "NotFound", str(error)) from None


def _obstacle(live: Obj) -> str:
    """Return why an object that is no longer defined must not be deleted; empty if it may be."""
    rows = live["metadata"].get("managedFields") or ()
    if not any(row.get("manager") == MANAGER and row.get("operation") == "Apply" for row in rows):
        return (
            "it is no longer defined, but another client made it: delete it if nothing else "
            "needs it"
        )
    if live.get("kind") == "MachineDeployment" and at(live, "spec", "replicas") != 0:
        return "it is no longer defined, but was scaled up and has machines: scale it to 0 replicas"
    return ""


def _set_namespace(namespace: str, resource: Resource, obj: Obj) -> Obj:
    if not resource.namespaced or obj["metadata"].get("namespace") or not namespace:
        return obj
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
