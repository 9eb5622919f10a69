"""Watches of single objects that a cluster depends on, as metadata only: a ConfigMap, a Secret in its workload cluster.

A watch of one object costs a connection's stream and tells of each change at once, where reading it again and again
would cost requests for ever. What is in the object is read when its version is a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from caphv.api.object import Key, Obj, Resource, labels_of
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient

_BACKOFF = 10.0
_KEPT = ("name", "namespace", "uid", "resourceVersion", "labels", "annotations", "deletionTimestamp")


@dataclass(slots=True)
class _Watch:
    client: ApiClient
    target: Key
    informer: Informer
    task: asyncio.Task[None]


class SingleWatches:
    """Watches by their cluster and kind; `changed` hears the cluster's key when one is filled and at each change."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._watches: dict[tuple[Key, Resource], _Watch] = {}

    async def ensure(self, cluster: Key, client: ApiClient, resource: Resource, target: Key) -> Informer | None:
        """The watch of an object of that kind, for this cluster the only one; None until it has been filled."""
        watch = self._watches.get((cluster, resource))
        if watch and (watch.client is not client or watch.target != target):
            await self.forget(cluster, resource)
            watch = None
        if watch is None:
            watch = self._start(cluster, client, resource, target)
        return watch.informer if watch.informer.synced else None

    async def forget(self, cluster: Key, resource: Resource | None = None) -> None:
        """End the watch of a kind, or all of a cluster."""
        for key in [key for key in self._watches if key[0] == cluster and resource in (None, key[1])]:
            task = self._watches.pop(key).task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """End all watches."""
        for cluster in {cluster for cluster, _ in self._watches}:
            await self.forget(cluster)

    def _start(self, cluster: Key, client: ApiClient, resource: Resource, target: Key) -> _Watch:
        filled = False

        def on_contact() -> None:
            # An object that is not there is no change: that the watch has been filled must be told, too, but once.
            nonlocal filled
            if not filled:
                filled = True
                self._changed(cluster)

        informer = Informer(
            client,
            resource,
            namespace=target.namespace,
            field_selector=f"metadata.name={target.name}",
            metadata_only=True,
            transform=_slim,
            on_contact=on_contact,
            max_backoff=_BACKOFF,
        )
        informer.add_handler(lambda _change: self._changed(cluster))
        watch = _Watch(client, target, informer, informer.start())
        self._watches[cluster, resource] = watch
        return watch


def _slim(obj: Obj) -> Obj:
    # Own writes answer whole objects, and what is in them stays out of memory.
    metadata = obj["metadata"]
    slim = {name: metadata[name] for name in _KEPT if name in metadata}
    return {"metadata": {**slim, "labels": labels_of(obj)}}
