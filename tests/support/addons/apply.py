"""Applies and deletes objects of any kind that an API server serves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from caphv.api.object import Obj, Resource, key_of
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import NotFound
from sandbox import manifests


def documents(content: bytes) -> list[Obj]:
    """Return the objects of a YAML file."""
    return manifests.parse(content)


class Objects:
    """Objects of one API server; `manager` owns the applied fields. Missing kinds are not cached: they may come."""

    def __init__(self, client: ApiClient, manager: str) -> None:
        self._client, self._manager = client, manager
        self._kinds: dict[tuple[str, str], Resource] = {}

    async def resource(self, obj: Obj) -> Resource:
        """Return the kind of an object. Raises LookupError and NotFound where it is not served."""
        kind = str(obj["apiVersion"]), str(obj["kind"])
        if kind not in self._kinds:
            self._kinds[kind] = await Discovery(self._client).resource(obj)
        return self._kinds[kind]

    async def apply(self, objects: Iterable[Obj], namespace: str) -> None:
        """Create or overwrite objects; `namespace` is for those that name none."""
        for obj in objects:
            resource = await self.resource(obj)
            await self._client.apply(resource, _placed(obj, namespace, resource.namespaced), manager=self._manager)

    async def read(self, obj: Obj, namespace: str) -> Obj | None:
        """Return the live object, None without one."""
        try:
            resource = await self.resource(obj)
            key = key_of(_placed(obj, namespace, resource.namespaced))
            return await self._client.get(resource, key.name, key.namespace)
        except (NotFound, LookupError):
            return None

    async def delete(self, objects: Iterable[Obj], namespace: str) -> None:
        """Delete objects that exist."""
        for obj in objects:
            try:
                resource = await self.resource(obj)
                key = key_of(_placed(obj, namespace, resource.namespaced))
                await self._client.delete(resource, key.name, key.namespace)
            except (NotFound, LookupError):
                continue


def differs(wanted: Any, live: Any) -> bool:
    """Whether a live object lacks or contradicts a wanted field; more keys, also in items of a list, are allowed."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        return any(key not in live or differs(value, live[key]) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(live, list):
        return len(wanted) != len(live) or any(map(differs, wanted, live))
    return bool(wanted != live)


def names(objects: Iterable[Obj]) -> Iterator[tuple[str, str]]:
    """Kind and name of each object."""
    for obj in objects:
        yield str(obj["kind"]), str(obj["metadata"]["name"])


def _placed(obj: Obj, namespace: str, namespaced: bool) -> Obj:
    metadata = {name: value for name, value in obj["metadata"].items() if namespaced or name != "namespace"}
    if namespaced:
        metadata.setdefault("namespace", namespace)
    return {**obj, "metadata": metadata}
