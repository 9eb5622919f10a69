"""CDI: DataVolumes of images with backend `cdi` and of disks made of them, and the claims that they fill.

Harvester creates a DataVolume for each such image and disk, and CDI its claim: with the modes that the StorageProfile
of the class lists first, whatever the template of the VM says. A guest starts when its DataVolumes are complete.
Harvester deletes a DataVolume with its claim. Sources: docs/simulators.md.
"""

from __future__ import annotations

import contextlib
import time

from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, Key, Obj, annotations_of, being_deleted, key_of, uid_of
from caphv.api.resources import STORAGE_PROFILES
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.harvester import kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers

# On the claim of a DataVolume, with the uid of that.
CREATED_FOR = "cdi.kubevirt.io/createdForDataVolume"
SUCCEEDED, IN_PROGRESS = "Succeeded", "CloneInProgress"
_WITHOUT_PROFILE: Obj = {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"}


def is_cdi(image: Obj) -> bool:
    """Whether CDI has the content of an image."""
    return (image.get("spec") or {}).get("backend") == "cdi"


def of_image(image: Obj, size: int) -> Obj:
    """Return the DataVolume that downloads an image; the image is its owner."""
    spec = image["spec"]
    owner = kinds.typed(kinds.IMAGES, {"name": image["metadata"]["name"], "uid": uid_of(image)})
    volume = _data_volume(key_of(image), {"http": {"url": spec.get("url", "")}}, str(size), target_class(image))
    volume["metadata"]["ownerReferences"] = [owner]
    return volume


def of_disk(namespace: str, template: Obj, image: Obj) -> Obj:
    """Return the DataVolume that clones an image for a claim of a VM's templates."""
    source = key_of(image)
    spec, key = template["spec"], Key(namespace, template["metadata"]["name"])
    size = spec["resources"]["requests"]["storage"]
    return _data_volume(
        key, {"pvc": {"namespace": source.namespace, "name": source.name}}, size, spec.get("storageClassName", "")
    )


def target_class(image: Obj) -> str:
    """The StorageClass of an image of CDI, and of its disks."""
    return str(image["spec"].get("targetStorageClassName") or "")


def is_filled(volume: Obj | None) -> bool:
    """Whether CDI has filled the claim of a DataVolume."""
    return volume is not None and (volume.get("status") or {}).get("phase") == SUCCEEDED


class DataVolumes:
    """The controller of all DataVolumes on one Harvester."""

    def __init__(self, informers: Informers, config: SimulatorConfig) -> None:
        self._informers = informers
        self._config = config
        self._controller = Controller("datavolumes", self._reconcile)
        # When (monotonic) a DataVolume began to be filled, by uid.
        self._since: dict[str, float] = {}

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.data_volumes.add_handler(lambda change: self._controller.enqueue(change.key))
        self._informers.claims.add_handler(self._claim_changed)
        await self._controller.run()

    def _claim_changed(self, change: Change) -> None:
        if change.new is None and CREATED_FOR in annotations_of(change.obj):
            self._controller.enqueue(change.key)

    async def _reconcile(self, key: Key) -> Result | None:
        volume = self._informers.data_volumes.get(*key)
        if volume is None or being_deleted(volume):
            return None
        begun = (volume.get("status") or {}).get("phase")
        if self._informers.claims.get(*key) is None:
            if begun:
                await self._delete(key)
                return None
            await self._create_claim(volume)

        if begun == SUCCEEDED:
            return None
        now = time.monotonic()
        remaining = self._since.setdefault(uid_of(volume), now) + self._config.import_seconds - now
        if remaining <= 0:
            self._since.pop(uid_of(volume), None)
            await self._report(key, SUCCEEDED, "100.0%")
            return None
        # Half of the way is reported once, so that something can be seen.
        done = 1 - remaining / self._config.import_seconds
        await self._report(key, IN_PROGRESS, f"{50.0 if done >= 0.5 else 0.0}%")
        return Result(requeue_after=min(remaining, self._config.import_seconds / 2))

    async def _create_claim(self, volume: Obj) -> None:
        spec = volume["spec"]["storage"]
        owner = kinds.typed(kinds.DATA_VOLUMES, {"name": volume["metadata"]["name"], "uid": uid_of(volume)})
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": volume["metadata"]["name"],
                "namespace": volume["metadata"]["namespace"],
                "annotations": {CREATED_FOR: uid_of(volume)},
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": {**await self._modes(spec["storageClassName"]), **spec},
        }
        with contextlib.suppress(AlreadyExists):
            self._informers.claims.observe(await self._informers.client.create(PERSISTENT_VOLUME_CLAIMS, claim))

    async def _modes(self, storage_class: str) -> Obj:
        try:
            profile = await self._informers.client.get(STORAGE_PROFILES, storage_class)
        except NotFound:
            return _WITHOUT_PROFILE
        return next(iter((profile.get("status") or {}).get("claimPropertySets") or ()), _WITHOUT_PROFILE)

    async def _report(self, key: Key, phase: str, progress: str) -> None:
        volume = self._informers.data_volumes.get(*key)
        status = {"phase": phase, "progress": progress}
        if volume is not None and volume.get("status") != status:
            with contextlib.suppress(NotFound):
                answer = await self._informers.client.patch(
                    kinds.DATA_VOLUMES, key.name, key.namespace, {"status": status}
                )
                self._informers.data_volumes.observe(answer)

    async def _delete(self, key: Key) -> None:
        with contextlib.suppress(NotFound):
            await self._informers.client.delete(kinds.DATA_VOLUMES, key.name, key.namespace)


def _data_volume(key: Key, source: Obj, size: str, storage_class: str) -> Obj:
    storage = {"storageClassName": storage_class, "resources": {"requests": {"storage": size}}}
    metadata: Obj = {"name": key.name, "namespace": key.namespace}
    return kinds.typed(kinds.DATA_VOLUMES, {"metadata": metadata, "spec": {"source": source, "storage": storage}})
