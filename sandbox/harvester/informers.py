"""Informers for everything the simulation reads from the Harvester API server, shared by all its parts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from caphv.api.object import DEPLOYMENTS, NODES, PERSISTENT_VOLUME_CLAIMS, SERVICES, Obj, annotations_of
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from sandbox.harvester import kinds


def claims_of(vm: Obj) -> list[str]:
    """Names of the PersistentVolumeClaims that a VirtualMachine uses as disks."""
    volumes = vm["spec"]["template"].get("spec", {}).get("volumes") or ()
    return [volume["persistentVolumeClaim"]["claimName"] for volume in volumes if volume.get("persistentVolumeClaim")]


def claim_templates(vm: Obj) -> list[Obj]:
    """The PersistentVolumeClaims that a VirtualMachine's annotation describes. Raises ValueError unless it is JSON."""
    return list(json.loads(annotations_of(vm).get(kinds.CLAIM_TEMPLATES) or "[]"))


def _used_claims(vm: Obj) -> Iterable[str]:
    return (f"{vm['metadata']['namespace']}/{name}" for name in claims_of(vm))


def _namespace(obj: Obj) -> Iterable[str]:
    return (obj["metadata"]["namespace"],)


class Informers:
    """Informers over one Harvester; `vms` has the indexes `claim` (`<namespace>/<name>`) and `namespace`."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client
        self.vms = Informer(
            client, kinds.VIRTUAL_MACHINES, indexes={"claim": _used_claims, "namespace": _namespace}, max_backoff=2
        )
        self.vmis = Informer(client, kinds.INSTANCES, indexes={"namespace": _namespace}, max_backoff=2)
        self.claims = Informer(client, PERSISTENT_VOLUME_CLAIMS, indexes={"namespace": _namespace}, max_backoff=2)
        self.hosts = Informer(client, NODES, max_backoff=2)
        self.images = Informer(client, kinds.IMAGES, max_backoff=2)
        self.networks = Informer(client, kinds.NETWORKS, max_backoff=2)
        self.storage_classes = Informer(client, kinds.STORAGE_CLASSES, max_backoff=2)
        self.quotas = Informer(client, kinds.RESOURCE_QUOTAS, indexes={"namespace": _namespace}, max_backoff=2)
        self.services = Informer(client, SERVICES, max_backoff=2)
        self.load_balancers = Informer(client, kinds.LOAD_BALANCERS, indexes={"namespace": _namespace}, max_backoff=2)
        self.pools = Informer(client, kinds.IP_POOLS, max_backoff=2)
        self.deployments = Informer(client, DEPLOYMENTS, namespace=kinds.SYSTEM, max_backoff=2)
        self.data_volumes = Informer(client, kinds.DATA_VOLUMES, max_backoff=2)

    @property
    def informers(self) -> list[Informer]:
        """All informers."""
        return [value for value in vars(self).values() if isinstance(value, Informer)]

    async def run(self) -> None:
        """Run all informers until cancelled."""
        await asyncio.gather(*(informer.run() for informer in self.informers))

    async def wait_synced(self) -> None:
        """Wait until all informers have synced."""
        await asyncio.gather(*(informer.wait_synced() for informer in self.informers))
