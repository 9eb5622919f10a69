"""Harvester's volume controller, and the provisioner that binds claims.

The controller creates the PersistentVolumeClaims of a VM's templates. Modelled after
`createPVCsFromAnnotation` in Harvester's pkg/controller/master/virtualmachine/vm_controller.go,
which runs next to KubeVirt: the instance of a new VM is there before its claims. A claim of a
StorageClass that does not exist stays Pending: nothing refuses it, and its class cannot be changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass

from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, Key, Obj, annotations_of, at, key_of, uid_of
from caphv.runtime.errors import AlreadyExists, Forbidden, NotFound
from sandbox.harvester import datavolumes, disks, kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers, claim_templates, claims_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pending:
    """Claims for which the Pod of a VM waits.

    :param missing: names of the claims that do not exist
    :param unbound: names of the claims without a volume
    :param unfilled: names of the claims that CDI is filling
    :param retry_after: seconds until a claim is due; None if only an event can end the wait
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
        # The time (monotonic) at which a VM began to wait for its claims or a claim for its volume,
        # by uid.
        self._start_times: dict[str, float] = {}

    def are_bound(self, vm: Obj) -> bool:
        """Return whether all claims of a VM exist, are bound and filled."""
        return not self._pending_claims(vm)

    async def ensure(self, vm: Obj) -> Pending:
        """Create and bind the claims of a VM when they are due.

        Return the claims for which the Pod waits. A claim of a missing StorageClass is never bound.
        """
        waits = [*await self._create_missing(vm), *await self._bind_unbound(vm)]

        pending = self._pending_claims(vm, min(waits, default=None))
        if not pending.missing and not pending.unbound:
            self._start_times.pop(uid_of(vm), None)
        return pending

    async def enlarge(self, vm: Obj) -> None:
        """Enlarge the claims that are smaller than their templates in the VM's annotation."""
        namespace = vm["metadata"]["namespace"]
        claims = [self._informers.claims.get(namespace, name) for name in claims_of(vm)]
        bound = [claim for claim in claims if claim and _is_bound(claim)]
        for name, size in disks.larger_claims(vm, bound).items():
            key = Key(namespace, name)
            requests = {"storage": size}
            request = {"spec": {"resources": {"requests": requests}}}
            # Kubernetes refuses classes that do not allow it.
            with contextlib.suppress(NotFound, Forbidden):
                await self._informers.patch(self._informers.claims, key, request)
                status = {"status": {"capacity": requests}}
                await self._informers.patch(
                    self._informers.claims, key, status, subresource="status"
                )

    async def remove(self, vm: Obj) -> None:
        """Delete the claims that the VM's annotation lists, and keep all others."""
        namespace = vm["metadata"]["namespace"]
        names = map(str.strip, annotations_of(vm).get(kinds.REMOVED_CLAIMS, "").split(","))
        existing = [name for name in names if name and self._informers.claims.get(namespace, name)]
        await asyncio.gather(*(self._delete(namespace, name) for name in existing))

    def _pending_claims(self, vm: Obj, retry_after: float | None = None) -> Pending:
        namespace = vm["metadata"]["namespace"]
        missing = []
        unbound = []
        unfilled = []
        for name in claims_of(vm):
            claim = self._informers.claims.get(namespace, name)
            if claim is None:
                missing.append(name)
            elif not _is_bound(claim):
                unbound.append(name)
            elif not self._is_filled(claim):
                unfilled.append(name)
        return Pending(tuple(missing), tuple(unbound), tuple(unfilled), retry_after)

    def _is_filled(self, claim: Obj) -> bool:
        if datavolumes.CREATED_FOR not in annotations_of(claim):
            return True
        return datavolumes.is_filled(self._informers.data_volumes.get(*key_of(claim)))

    def _remaining(self, uid: str, seconds: float) -> float:
        """Return the seconds until a wait of this object ends. The first call starts the wait."""
        time_now = time.monotonic()
        return self._start_times.setdefault(uid, time_now) + seconds - time_now

    # Claims

    async def _create_missing(self, vm: Obj) -> list[float]:
        """Create the claims of the templates if they are due; return the seconds to wait if not.

        Like Harvester, skip a template whose image is missing.
        """
        namespace = vm["metadata"]["namespace"]
        missing = [
            template
            for template in _templates(vm)
            if not self._informers.claims.get(namespace, template["metadata"]["name"])
            and (_image_id(template) == "" or self._image_of(template) is not None)
        ]
        if not missing:
            return []

        remaining = self._remaining(uid_of(vm), self._config.claim_seconds)
        if remaining > 0:
            return [remaining]
        await asyncio.gather(*(self._create(namespace, template) for template in missing))
        return []

    async def _create(self, namespace: str, template: Obj) -> None:
        # CDI creates the claim of a disk of its images.
        image = self._image_of(template)
        if image is not None and datavolumes.is_cdi(image):
            with contextlib.suppress(AlreadyExists):
                volume = datavolumes.disk_volume(namespace, template, image)
                await self._informers.create(self._informers.data_volumes, volume)
            return

        # Programs written in Go write `creationTimestamp: null` into templates.
        metadata = {**template["metadata"], "namespace": namespace}
        metadata.pop("creationTimestamp", None)
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata,
            "spec": template["spec"],
        }
        with contextlib.suppress(AlreadyExists):
            await self._informers.create(self._informers.claims, claim)

    def _image_of(self, template: Obj) -> Obj | None:
        namespace, _, name = _image_id(template).partition("/")
        return self._informers.images.get(namespace, name)

    async def _bind_unbound(self, vm: Obj) -> list[float]:
        """Bind the claims that are due; return the seconds until each other claim is due."""
        waits = []
        for name in claims_of(vm):
            claim = self._informers.claims.get(vm["metadata"]["namespace"], name)
            if claim is None or _is_bound(claim) or not self._has_class(claim):
                continue
            remaining = self._remaining(uid_of(claim), self._config.bind_seconds)
            if remaining > 0:
                waits.append(remaining)
            else:
                await self._bind(claim)
        return waits

    def _has_class(self, claim: Obj) -> bool:
        name = claim["spec"].get("storageClassName")
        return not name or self._informers.storage_classes.get("", name) is not None

    async def _bind(self, claim: Obj) -> None:
        self._start_times.pop(uid_of(claim), None)
        status = {
            "phase": "Bound",
            "accessModes": claim["spec"].get("accessModes"),
            "capacity": claim["spec"]["resources"]["requests"],
        }
        await self._informers.patch(
            self._informers.claims, key_of(claim), {"status": status}, subresource="status"
        )

    async def _delete(self, namespace: str, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._informers.client.delete(PERSISTENT_VOLUME_CLAIMS, name, namespace)


def _is_bound(claim: Obj) -> bool:
    return bool(at(claim, "status", "phase") == "Bound")


def _image_id(template: Obj) -> str:
    return annotations_of(template).get(kinds.IMAGE_ID) or ""


def _templates(vm: Obj) -> list[Obj]:
    try:
        return claim_templates(vm)
    except ValueError:
        log.warning("%s: annotation %s is not JSON", vm["metadata"]["name"], kinds.CLAIM_TEMPLATES)
        return []
