"""Harvester's volume controller: the PersistentVolumeClaims of a VM's templates, bound at once.

A claim of a StorageClass that does not exist stays Pending: nothing refuses it, and its class cannot be changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, Obj, annotations_of
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.harvester import kinds
from sandbox.harvester.informers import Informers, claim_templates, claims_of

log = logging.getLogger(__name__)


class Volumes:
    """Creates and removes the claims of VMs."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers

    async def ensure(self, vm: Obj) -> list[str]:
        """Create the claims of a VM's templates; returns the missing claims among its disks.

        Like Harvester, skip a template whose image is missing.
        """
        namespace = vm["metadata"]["namespace"]
        wanted = [
            claim for claim in _templates(vm) if not self._informers.claims.get(namespace, claim["metadata"]["name"])
        ]
        await asyncio.gather(*(self._create(namespace, claim) for claim in wanted if self._image_exists(claim)))
        return [name for name in claims_of(vm) if not self._informers.claims.get(namespace, name)]

    def unbound(self, vm: Obj) -> list[str]:
        """Names of the claims among a VM's disks that wait for a volume."""
        namespace = vm["metadata"]["namespace"]
        claims = {name: self._informers.claims.get(namespace, name) for name in claims_of(vm)}
        return [name for name, claim in claims.items() if claim and _phase(claim) == "Pending"]

    async def remove(self, vm: Obj) -> None:
        """Delete the claims that the VM's annotation lists; keep all others."""
        namespace = vm["metadata"]["namespace"]
        listed = annotations_of(vm).get(kinds.REMOVED_CLAIMS, "").split(",")
        present = [name for name in map(str.strip, listed) if name and self._informers.claims.get(namespace, name)]
        await asyncio.gather(*(self._delete(namespace, name) for name in present))

    def _image_exists(self, claim: Obj) -> bool:
        image = annotations_of(claim).get(kinds.IMAGE_ID)
        if not image:
            return True
        namespace, _, name = image.partition("/")
        return self._informers.images.get(namespace, name) is not None

    async def _create(self, namespace: str, template: Obj) -> None:
        name = template["metadata"]["name"]
        metadata = {**template["metadata"], "namespace": namespace}
        metadata.pop("creationTimestamp", None)
        spec = {**template["spec"], "volumeName": f"pvc-{namespace}-{name}"}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
        with contextlib.suppress(AlreadyExists):
            await self._informers.client.create(PERSISTENT_VOLUME_CLAIMS, claim)
        storage_class = spec.get("storageClassName")
        if storage_class and self._informers.storage_classes.get("", storage_class) is None:
            return
        bound = {"phase": "Bound", "accessModes": spec.get("accessModes"), "capacity": spec["resources"]["requests"]}
        answer = await self._informers.client.patch(
            PERSISTENT_VOLUME_CLAIMS, name, namespace, {"status": bound}, subresource="status"
        )
        self._informers.claims.observe(answer)

    async def _delete(self, namespace: str, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._informers.client.delete(PERSISTENT_VOLUME_CLAIMS, name, namespace)


def _phase(claim: Obj) -> str:
    return str((claim.get("status") or {}).get("phase") or "")


def _templates(vm: Obj) -> list[Obj]:
    try:
        return claim_templates(vm)
    except ValueError:
        log.warning("%s: annotation %s is not JSON", vm["metadata"]["name"], kinds.CLAIM_TEMPLATES)
        return []
