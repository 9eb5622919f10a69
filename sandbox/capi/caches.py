"""Informers of the providers on the management cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from caphv.api.names import CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL
from caphv.api.object import SECRETS, Key, Obj, Resource, key_of, labels_of
from caphv.api.resources import HARVESTER_MACHINES, clusters, machines
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from sandbox.background import background
from sandbox.capi import v1beta1
from sandbox.capi.distribution import Distribution

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
    async def running(self, *caches: Caches) -> AsyncIterator[None]:
        """Run the informers inside the block, which starts once all have synced."""
        informers = [self.clusters, self.machines, self.harvester_machines, self.secrets]
        for distribution_caches in caches:
            informers += [distribution_caches.control_planes, distribution_caches.configs]

        async with background(*(informer.run() for informer in informers)):
            await asyncio.gather(*(informer.wait_synced() for informer in informers))
            yield


class Caches:
    """Informers of the two providers of one distribution."""

    def __init__(self, client: ApiClient, shared: Shared, distribution: Distribution) -> None:
        self.distribution = distribution
        self._client = client
        self.clusters = shared.clusters
        self.machines = shared.machines
        self.harvester_machines = shared.harvester_machines
        self.secrets = shared.secrets
        self.control_planes = Informer(client, distribution.control_planes, max_backoff=2)
        self.configs = Informer(client, distribution.configs, max_backoff=2)

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
