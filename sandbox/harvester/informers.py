"""Informers for everything that the simulation reads from the Harvester API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from caphv.api.object import (
    DEPLOYMENTS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    SERVICES,
    Key,
    Obj,
    Resource,
    annotations_of,
)
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from sandbox.harvester import kinds

# Outages of the sandbox are short, and an informer that waits longer would delay the recovery.
_MAX_BACKOFF_SECONDS = 2.0


def claims_of(vm: Obj) -> list[str]:
    """Return the names of the PersistentVolumeClaims that a VirtualMachine uses as disks."""
    volumes = vm["spec"]["template"].get("spec", {}).get("volumes") or ()
    return [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in volumes
        if volume.get("persistentVolumeClaim")
    ]


def claim_templates(vm: Obj) -> list[Obj]:
    """Return the PersistentVolumeClaims that a VirtualMachine's annotation describes.

    Raise ValueError unless it is JSON.
    """
    return list(json.loads(annotations_of(vm).get(kinds.CLAIM_TEMPLATES) or "[]"))


def _claim_index(vm: Obj) -> Iterable[str]:
    return (f"{vm['metadata']['namespace']}/{name}" for name in claims_of(vm))


def _namespace_index(obj: Obj) -> Iterable[str]:
    return (obj["metadata"]["namespace"],)


class Informers:
    """Informers over one Harvester, shared by all parts of the simulator.

    VMs, their instances and claims, quotas and LoadBalancers have the index `namespace`. VMs also
    have the index `claim` (`<namespace>/<name>`).
    """

    def __init__(self, client: ApiClient) -> None:
        self.client = client

        def informer(resource: Resource, namespace: str = "") -> Informer:
            return Informer(client, resource, namespace=namespace, max_backoff=_MAX_BACKOFF_SECONDS)

        def namespace_informer(resource: Resource) -> Informer:
            indexes = {"namespace": _namespace_index}
            return Informer(client, resource, indexes=indexes, max_backoff=_MAX_BACKOFF_SECONDS)

        # VMs and what belongs to them
        self.vms = Informer(
            client,
            kinds.VIRTUAL_MACHINES,
            indexes={"claim": _claim_index, "namespace": _namespace_index},
            max_backoff=_MAX_BACKOFF_SECONDS,
        )
        self.vmis = namespace_informer(kinds.INSTANCES)
        self.claims = namespace_informer(PERSISTENT_VOLUME_CLAIMS)
        self.data_volumes = informer(kinds.DATA_VOLUMES)
        self.vm_backups = informer(kinds.VM_BACKUPS)
        self.quotas = namespace_informer(kinds.RESOURCE_QUOTAS)

        # Objects to which VMs refer
        self.hosts = informer(NODES)
        self.images = informer(kinds.IMAGES)
        self.networks = informer(kinds.NETWORKS)
        self.storage_classes = informer(kinds.STORAGE_CLASSES)

        # Load balancing
        self.services = informer(SERVICES)
        self.load_balancers = namespace_informer(kinds.LOAD_BALANCERS)
        self.pools = informer(kinds.IP_POOLS)
        self.deployments = informer(DEPLOYMENTS, kinds.SYSTEM)

    @property
    def informers(self) -> list[Informer]:
        """Return all informers."""
        return [value for value in vars(self).values() if isinstance(value, Informer)]

    async def run(self) -> None:
        """Run all informers until cancelled."""
        await asyncio.gather(*(informer.run() for informer in self.informers))

    async def wait_synced(self) -> None:
        """Wait until all informers have synced."""
        await asyncio.gather(*(informer.wait_synced() for informer in self.informers))

    # Writes. The cache gets their answers, because the next step must not act on an older state.

    async def create(self, informer: Informer, obj: Obj) -> Obj:
        """Create an object and cache it. Raise AlreadyExists."""
        answer = await self.client.create(informer.resource, obj)
        informer.observe(answer)
        return answer

    async def patch(
        self, informer: Informer, key: Key, patch: Obj, *, subresource: str = ""
    ) -> Obj:
        """Patch an object and cache it. Raise NotFound, Conflict."""
        answer = await self.client.patch(
            informer.resource, key.name, key.namespace, patch, subresource=subresource
        )
        informer.observe(answer)
        return answer
