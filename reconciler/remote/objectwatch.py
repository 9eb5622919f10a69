"""Watches of single objects on which a cluster depends, for example a Secret in its workload API.

A watch of one object reports each change at once, whereas polling would cost requests forever. The
watch delivers only metadata. The content of the object is read when its version has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from caphv.api.object import Key, Obj, Resource, labels_of
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from reconciler.remote.firstcontact import FirstContact

_BACKOFF_SECONDS = 10.0
_CACHED_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "annotations",
    "deletionTimestamp",
)


@dataclass(slots=True)
class _Watch:
    """The watch of one object, and the task that follows it."""

    client: ApiClient
    target: Key
    informer: Informer
    task: asyncio.Task[None]


class ObjectWatches:
    """Watches by HarvesterCluster and kind."""

    def __init__(self) -> None:
        self._changed: Callable[[Key], None] = lambda _cluster: None
        self._watches: dict[tuple[Key, Resource], _Watch] = {}

    def connect(self, changed: Callable[[Key], None]) -> None:
        """Call `changed` with the key of a cluster when one of its watches is filled or changes."""
        self._changed = changed

    async def ensure(
        self, cluster: Key, client: ApiClient, resource: Resource, target: Key
    ) -> Informer | None:
        """Return the watch of an object for a cluster, None until it is filled.

        A cluster watches at most one object of each kind.

        :param cluster: key of the HarvesterCluster
        :param client: client of the API server that has the object
        :param resource: kind of the object
        :param target: key of the object
        """
        watch = self._watches.get((cluster, resource))
        if watch and (watch.client is not client or watch.target != target):
            await self.forget(cluster, resource)
            watch = None
        if watch is None:
            watch = self._start(cluster, client, resource, target)
        return watch.informer if watch.informer.synced else None

    def known(self, cluster: Key, resource: Resource, target: Key) -> Obj | None:
        """Return the metadata of a watched object.

        Returns None if it is not watched, not read yet, or absent.
        """
        watch = self._watches.get((cluster, resource))
        return watch.informer.get(*target) if watch and watch.target == target else None

    async def forget(self, cluster: Key, resource: Resource | None = None) -> None:
        """Stop the watch of a kind, or all watches of a cluster."""
        for key in list(self._watches):
            if key[0] != cluster or resource not in (None, key[1]):
                continue
            task = self._watches.pop(key).task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Stop all watches."""
        for cluster in {cluster for cluster, _ in self._watches}:
            await self.forget(cluster)

    def _start(self, cluster: Key, client: ApiClient, resource: Resource, target: Key) -> _Watch:
        """Start the watch of an object for a cluster. Parameters are those of `ensure`."""
        informer = Informer(
            client,
            resource,
            namespace=target.namespace,
            field_selector=f"metadata.name={target.name}",
            metadata_only=True,
            transform=_slim,
            on_contact=FirstContact(lambda: self._changed(cluster)),
            max_backoff=_BACKOFF_SECONDS,
        )
        informer.add_handler(lambda _change: self._changed(cluster))
        watch = _Watch(client, target, informer, informer.start(cluster=str(cluster)))
        self._watches[cluster, resource] = watch
        return watch


def _slim(obj: Obj) -> Obj:
    """Return the metadata of an object to cache."""
    # Responses to our own writes are complete objects, whose content must not stay in memory.
    metadata = {name: obj["metadata"][name] for name in _CACHED_METADATA if name in obj["metadata"]}
    return {"metadata": {**metadata, "labels": labels_of(obj)}}
