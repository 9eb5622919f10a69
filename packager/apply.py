"""Puts objects on the management cluster by server side apply, and looks up what is there.

Kinds are those of the API server: it says their plurals, so that nothing has to be known of bootstrap providers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caphv.api.object import Resource, key_of
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import ApiError, NotFound
from packager.addons.merge import Obj

MANAGER = "caphv-generate"
_CLUSTERS = "cluster.x-k8s.io/v1beta2"


@dataclass(frozen=True)
class Refused:
    """An object that the API server did not take; `why` is its answer."""

    obj: Obj
    why: str

    def __str__(self) -> str:
        return f"{described(self.obj)}: {self.why}"


def described(obj: Obj) -> str:
    """Return kind and name of an object, for people."""
    return f"{obj['kind']} {key_of(obj)}"


class Applier:
    """Applies to one management cluster. Methods raise Unreachable when it does not answer."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._discovery = Discovery(client)

    async def apply(self, objects: Iterable[Obj], namespace: str = "") -> list[Refused]:
        """Create objects, or make the fields that they name ours; return those that were refused.

        An object that is refused does not stop the others: what can be applied is, and all errors are told at once.
        `namespace` is that of objects that name none.
        """
        refused = []
        for obj in objects:
            try:
                resource = await self._resource(obj)
                await self._client.apply(resource, _in(namespace, resource, obj), manager=MANAGER)
            except ApiError as error:
                refused.append(Refused(obj, str(error)))
        return refused

    async def delete_cluster(self, name: str) -> list[Refused]:
        """Ask for the deletion of a Cluster, `<namespace>/<name>`; one that is gone already is fine."""
        namespace, _, plain = name.partition("/")
        cluster = {"apiVersion": _CLUSTERS, "kind": "Cluster", "metadata": {"name": plain, "namespace": namespace}}
        try:
            await self._client.delete(await self._resource(cluster), plain, namespace)
        except NotFound:
            return []
        except ApiError as error:
            return [Refused(cluster, str(error))]
        return []

    async def read(self, obj: Obj) -> Obj | None:
        """Return an object of this kind and name as it is on the cluster; None when there is none."""
        try:
            key = key_of(obj)
            return await self._client.get(await self._resource(obj), key.name, key.namespace)
        except NotFound:
            return None

    async def missing(self, groups: Iterable[Sequence[Obj]]) -> list[Obj]:
        """Return the objects of those groups whose last one is not there.

        Groups are shared by clusters: one that is there may be older or somebody's own, and stays as it is.
        """
        return [obj for group in groups if await self.read(group[-1]) is None for obj in group]

    async def _resource(self, obj: Obj) -> Resource:
        try:
            return await self._discovery.resource(obj)
        except LookupError as error:
            raise NotFound(404, "NotFound", str(error)) from None


def _in(namespace: str, resource: Resource, obj: Obj) -> Obj:
    if not resource.namespaced or obj["metadata"].get("namespace") or not namespace:
        return obj
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
