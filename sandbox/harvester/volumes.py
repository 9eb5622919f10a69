"""Harvester's volume controller: the PersistentVolumeClaims of a VM's templates; and the provisioner that binds them.

Modelled after `createPVCsFromAnnotation` in Harvester's pkg/controller/master/virtualmachine/vm_controller.go, which
runs next to KubeVirt: the instance of a new VM is there before its claims. A claim of a StorageClass that does not
exist stays Pending: nothing refuses it, and its class cannot be changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass

from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, Obj, annotations_of, key_of, uid_of
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.harvester import datavolumes, kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers, claim_templates, claims_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pending:
    """Claims for which the Pod of a VM waits.

    :param missing: names of those that do not exist
    :param unbound: names of those without a volume
    :param unfilled: names of those that CDI is filling
    :param retry_after: seconds until one of them is due; None if only an event can end the wait
    """

    missing: tuple[str, ...] = ()
    unbound: tuple[str, ...] = ()
    unfilled: tuple[str, ...] = ()
    retry_after: float | None = None

    def __bool__(self) -> bool:
        return bool(self.missing or self.unbound or self.unfilled)


class Volumes:
    """Creates, binds and removes the claims of VMs."""

    def __init__(self, informers: Informers, config: SimulatorConfig) -> None:
        self._informers = informers
        self._config = config
        # When (monotonic) a VM began to wait for its claims, and a claim to wait for its volume, by uid.
        self._since: dict[str, float] = {}

    def are_bound(self, vm: Obj) -> bool:
        """Whether all claims of a VM exist, are bound and filled."""
        claims = (self._informers.claims.get(vm["metadata"]["namespace"], name) for name in claims_of(vm))
        return all(claim is not None and _is_bound(claim) and self._is_filled(claim) for claim in claims)

    async def ensure(self, vm: Obj) -> Pending:
        """Create and bind the claims of a VM when they are due; return those that its Pod waits for.

        Like Harvester, skip a template whose image is missing. A claim of an unknown StorageClass is never bound.
        """
        namespace = vm["metadata"]["namespace"]
        delays: list[float] = []

        templates = [
            claim for claim in _templates(vm) if not self._informers.claims.get(namespace, claim["metadata"]["name"])
        ]
        wanted = [claim for claim in templates if self._image_exists(claim)]
        remaining = self._remaining(uid_of(vm), self._config.claim_seconds) if wanted else 0
        if wanted and remaining > 0:
            delays.append(remaining)
        elif wanted:
            await asyncio.gather(*(self._create(namespace, claim) for claim in wanted))

        claims = {name: self._informers.claims.get(namespace, name) for name in claims_of(vm)}
        for claim in claims.values():
            if claim is not None and not _is_bound(claim) and self._class_exists(claim):
                remaining = self._remaining(uid_of(claim), self._config.bind_seconds)
                if remaining > 0:
                    delays.append(remaining)
                else:
                    await self._bind(claim)

        claims = {name: self._informers.claims.get(namespace, name) for name in claims}
        missing = tuple(name for name, claim in claims.items() if claim is None)
        unbound = tuple(name for name, claim in claims.items() if claim is not None and not _is_bound(claim))
        bound = {name: claim for name, claim in claims.items() if claim is not None and _is_bound(claim)}
        unfilled = tuple(name for name, claim in bound.items() if not self._is_filled(claim))
        if not missing and not unbound:
            self._since.pop(uid_of(vm), None)
        return Pending(missing, unbound, unfilled, min(delays, default=None))

    def _is_filled(self, claim: Obj) -> bool:
        if datavolumes.CREATED_FOR not in annotations_of(claim):
            return True
        return datavolumes.is_filled(self._informers.data_volumes.get(*key_of(claim)))

    def _remaining(self, uid: str, seconds: float) -> float:
        now = time.monotonic()
        return self._since.setdefault(uid, now) + seconds - now

    def _class_exists(self, claim: Obj) -> bool:
        name = claim["spec"].get("storageClassName")
        return not name or self._informers.storage_classes.get("", name) is not None

    async def remove(self, vm: Obj) -> None:
        """Delete the claims that the VM's annotation lists; keep all others."""
        namespace = vm["metadata"]["namespace"]
        listed = annotations_of(vm).get(kinds.REMOVED_CLAIMS, "").split(",")
        present = [name for name in map(str.strip, listed) if name and self._informers.claims.get(namespace, name)]
        await asyncio.gather(*(self._delete(namespace, name) for name in present))

    def _image_exists(self, claim: Obj) -> bool:
        return not annotations_of(claim).get(kinds.IMAGE_ID) or self._image(claim) is not None

    def _image(self, claim: Obj) -> Obj | None:
        namespace, _, name = annotations_of(claim).get(kinds.IMAGE_ID, "").partition("/")
        return self._informers.images.get(namespace, name)

    async def _create(self, namespace: str, template: Obj) -> None:
        image = self._image(template)
        if image is not None and datavolumes.is_cdi(image):
            with contextlib.suppress(AlreadyExists):
                volume = datavolumes.of_disk(namespace, template, image)
                self._informers.data_volumes.observe(await self._informers.client.create(kinds.DATA_VOLUMES, volume))
            return
        metadata = {**template["metadata"], "namespace": namespace}
        metadata.pop("creationTimestamp", None)
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": template["spec"]}
        with contextlib.suppress(AlreadyExists):
            answer = await self._informers.client.create(PERSISTENT_VOLUME_CLAIMS, claim)
            self._informers.claims.observe(answer)

    async def _bind(self, claim: Obj) -> None:
        name, namespace, spec = claim["metadata"]["name"], claim["metadata"]["namespace"], claim["spec"]
        self._since.pop(uid_of(claim), None)
        bound = {"phase": "Bound", "accessModes": spec.get("accessModes"), "capacity": spec["resources"]["requests"]}
        answer = await self._informers.client.patch(
            PERSISTENT_VOLUME_CLAIMS, name, namespace, {"status": bound}, subresource="status"
        )
        self._informers.claims.observe(answer)

    async def _delete(self, namespace: str, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._informers.client.delete(PERSISTENT_VOLUME_CLAIMS, name, namespace)


def _is_bound(claim: Obj) -> bool:
    return bool((claim.get("status") or {}).get("phase") == "Bound")


def _templates(vm: Obj) -> list[Obj]:
    try:
        return claim_templates(vm)
    except ValueError:
        log.warning("%s: annotation %s is not JSON", vm["metadata"]["name"], kinds.CLAIM_TEMPLATES)
        return []
