"""Informers of the providers on the management cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from caphv.api.names import CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL
from caphv.api.object import (
    SECRETS,
    Key,
    Obj,
    Resource,
    being_deleted,
    key_of,
    labels_of,
    owner_reference,
    uid_of,
)
from caphv.api.resources import HARVESTER_MACHINES, clusters, machines
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from sandbox.background import background
from sandbox.capi import v1beta1
from sandbox.capi.distribution import Distribution
from sandbox.capi.resources import CLUSTERS

_BY_CLUSTER = "cluster"


class Shared:
    """Informers shared by the providers of all distributions.

    :param core: the API version of the core
    """

    def __init__(self, client: ApiClient, core: str) -> None:
        self.clusters = core_informer(client, clusters(core), max_backoff=2)
        self.machines = core_informer(
            client, machines(core), max_backoff=2, indexes={_BY_CLUSTER: _cluster_index}
        )
        self.harvester_machines = Informer(
            client, HARVESTER_MACHINES, max_backoff=2, indexes={_BY_CLUSTER: _cluster_index}
        )
        self.secrets = Informer(client, SECRETS, max_backoff=2, label_selector=CLUSTER_NAME_LABEL)

    @contextlib.asynccontextmanager
    async def running(self, *caches: ProviderCaches) -> AsyncIterator[None]:
        """Run the informers inside the block, which starts once all have synced."""
        informers = [self.clusters, self.machines, self.harvester_machines, self.secrets]
        for provider_caches in caches:
            informers += [provider_caches.control_planes, provider_caches.configs]

        async with background(*(informer.run() for informer in informers)):
            await asyncio.gather(*(informer.wait_synced() for informer in informers))
            yield


class ProviderCaches:
    """Informers of two providers, for bootstrap objects and control planes."""

    def __init__(
        self, client: ApiClient, shared: Shared, configs: Resource, control_planes: Resource
    ) -> None:
        self._client = client
        self.clusters = shared.clusters
        self.machines = shared.machines
        self.harvester_machines = shared.harvester_machines
        self.secrets = shared.secrets
        self.control_planes = Informer(client, control_planes, max_backoff=2)
        self.configs = Informer(client, configs, max_backoff=2)

    def enqueue_control_planes(self, enqueue: Callable[[Key], None], *others: Informer) -> None:
        """Enqueue control planes on their changes, and on changes of their clusters' objects.

        :param others: the informers of these objects
        """

        def enqueue_of_cluster(change: Change) -> None:
            # A Cluster has no label with its own name, but its key is the key of the cluster.
            cluster = cluster_key(change.obj) or change.key
            for control_plane in self.control_planes.store:
                if cluster_of(control_plane) == cluster:
                    enqueue(key_of(control_plane))

        self.control_planes.add_handler(lambda change: enqueue(change.key))
        for informer in others:
            informer.add_handler(enqueue_of_cluster)

    def machines_of(self, cluster: Key, *, control_plane: bool) -> list[Obj]:
        """Return the Machines of a cluster, either of its control plane or all other Machines."""
        return [
            machine
            for machine in self.machines.store.by_index(_BY_CLUSTER, str(cluster))
            if (CONTROL_PLANE_LABEL in labels_of(machine)) is control_plane
        ]

    def harvester_machines_of(self, cluster: Key) -> list[Obj]:
        """Return the HarvesterMachines of a cluster."""
        return self.harvester_machines.store.by_index(_BY_CLUSTER, str(cluster))

    async def create(self, informer: Informer, obj: Obj) -> Obj:
        """Create an object, and return it."""
        # Cache the object at once, because the next reconcile must see it even before its event.
        answer = await self._client.create(informer.resource, obj)
        informer.observe(answer)
        return answer

    async def delete(self, informer: Informer, obj: Obj) -> None:
        """Delete an object, unless it no longer exists."""
        key = key_of(obj)
        with contextlib.suppress(NotFound):
            answer = await self._client.delete(
                informer.resource, key.name, key.namespace, uid=uid_of(obj)
            )
            informer.observe_deletion(key.namespace, key.name, answer)

    async def add_finalizer(self, obj: Obj, finalizer: str) -> None:
        """Add the finalizer of a provider to a control plane, unless it has it."""
        finalizers = obj["metadata"].get("finalizers") or []
        if finalizer not in finalizers:
            await self._write_finalizers(obj, [*finalizers, finalizer])

    async def remove_finalizer(self, obj: Obj, finalizer: str) -> None:
        """Remove the finalizer of a provider from a control plane."""
        finalizers = obj["metadata"].get("finalizers") or ()
        await self._write_finalizers(obj, [name for name in finalizers if name != finalizer])

    async def _write_finalizers(self, obj: Obj, finalizers: list[str]) -> None:
        # Take the newest version, because a report may have changed the object since. The version
        # protects the finalizers of other controllers.
        key = key_of(obj)
        newest = self.control_planes.get(*key) or obj
        version = newest["metadata"]["resourceVersion"]
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
        with contextlib.suppress(NotFound):
            answer = await self._client.patch(
                self.control_planes.resource, key.name, key.namespace, patch
            )
            # A deleted object no longer exists without its last finalizer.
            if answer["metadata"].get("finalizers") or not being_deleted(answer):
                self.control_planes.observe(answer)

    async def write_status(self, informer: Informer, obj: Obj, status: Obj) -> None:
        """Patch the status of an object, unless it has these fields already.

        :param informer: the informer of the object, which gets the answer
        :param obj: the object as it was read
        :param status: the fields to write
        """
        before = obj.get("status") or {}
        if all(before.get(field) == value for field, value in status.items()):
            return
        key = key_of(obj)
        answer = await self._client.patch(
            informer.resource, key.name, key.namespace, {"status": status}, subresource="status"
        )
        informer.observe(answer)


class Caches(ProviderCaches):
    """Informers of the two providers of one distribution."""

    def __init__(self, client: ApiClient, shared: Shared, distribution: Distribution) -> None:
        super().__init__(client, shared, distribution.configs, distribution.control_planes)
        self.distribution = distribution


def cluster_of(control_plane: Obj) -> Key | None:
    """Return the Cluster that owns a control plane; the core sets the reference."""
    owner = owner_reference(control_plane, CLUSTERS.kind, CLUSTERS.group)
    return Key(key_of(control_plane).namespace, owner["name"]) if owner else None


def core_informer(client: ApiClient, resource: Resource, **options: Any) -> Informer:
    """Return an informer of the core's objects, which converts their status to v1beta2."""
    transform = v1beta1.convert_status if resource.version == v1beta1.VERSION else None
    return Informer(client, resource, transform=transform, **options)


def cluster_key(obj: Obj) -> Key | None:
    """Return the cluster that an object belongs to, by its label."""
    name = labels_of(obj).get(CLUSTER_NAME_LABEL)
    return Key(key_of(obj).namespace, name) if name else None


def _cluster_index(obj: Obj) -> list[str]:
    key = cluster_key(obj)
    return [str(key)] if key else []
