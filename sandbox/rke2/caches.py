"""What both providers read of the management cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from caphv.api.names import CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.resource import SECRETS, Key, Obj, key_of, labels_of
from sandbox.rke2.resources import CLUSTERS, CONFIGS, CONTROL_PLANES, HARVESTER_MACHINES, MACHINES

_BY_CLUSTER = "cluster"


class Caches:
    """Local copies; run them with `running`."""

    def __init__(self, client: ApiClient) -> None:
        self.clusters = Informer(client, CLUSTERS, max_backoff=2)
        self.control_planes = Informer(client, CONTROL_PLANES, max_backoff=2)
        self.configs = Informer(client, CONFIGS, max_backoff=2)
        self.machines = Informer(client, MACHINES, max_backoff=2, indexes={_BY_CLUSTER: _cluster})
        self.harvester_machines = Informer(client, HARVESTER_MACHINES, max_backoff=2, indexes={_BY_CLUSTER: _cluster})
        self.secrets = Informer(client, SECRETS, max_backoff=2, label_selector=CLUSTER_NAME_LABEL)

    @property
    def all(self) -> tuple[Informer, ...]:
        """All of them."""
        return (
            self.clusters,
            self.control_planes,
            self.configs,
            self.machines,
            self.harvester_machines,
            self.secrets,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep them true inside the block, which begins when all have been read once."""
        tasks = [informer.start() for informer in self.all]
        try:
            await asyncio.gather(*(informer.wait_synced() for informer in self.all))
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def machines_of(self, cluster: Key, *, control_plane: bool) -> list[Obj]:
        """Machines of a cluster: those of its control plane, or all others."""
        found = self.machines.store.by_index(_BY_CLUSTER, str(cluster))
        return [machine for machine in found if (CONTROL_PLANE_LABEL in labels_of(machine)) is control_plane]

    def harvester_machines_of(self, cluster: Key) -> list[Obj]:
        """HarvesterMachines of a cluster."""
        return self.harvester_machines.store.by_index(_BY_CLUSTER, str(cluster))


def cluster_key(obj: Obj) -> Key | None:
    """The cluster that an object belongs to, by its label."""
    name = labels_of(obj).get(CLUSTER_NAME_LABEL)
    return Key(key_of(obj).namespace, name) if name else None


def _cluster(obj: Obj) -> list[str]:
    key = cluster_key(obj)
    return [str(key)] if key else []
