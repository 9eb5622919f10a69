"""CDI: DataVolumes of images with backend `cdi` and of disks created from them, and their claims.

Harvester creates a DataVolume for each such image and disk. CDI creates the claim of the DataVolume
with the modes that the StorageProfile of the class lists first, and ignores those of the VM's
template. A guest starts when its DataVolumes are complete. Harvester deletes a DataVolume with its
claim. docs/simulators.md has the sources.
"""

from __future__ import annotations

import contextlib
import time

from caphv.api.object import (
    Key,
    Obj,
    Resource,
    annotations_of,
    at,
    being_deleted,
    key_of,
    uid_of,
)
from caphv.api.resources import STORAGE_PROFILES
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.harvester import kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers

# The annotation of a claim with the uid of its DataVolume.
CREATED_FOR = "cdi.kubevirt.io/createdForDataVolume"
SUCCEEDED = "Succeeded"
IN_PROGRESS = "CloneInProgress"
_WITHOUT_PROFILE: Obj = {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"}


def is_cdi(image: Obj) -> bool:
    """Return whether CDI stores the content of an image."""
    return at(image, "spec", "backend") == "cdi"


def image_volume(image: Obj, size: int) -> Obj:
    """Return the DataVolume that downloads an image; the image is its owner."""
    source = {"http": {"url": image["spec"].get("url", "")}}
    volume = _data_volume(key_of(image), source, str(size), target_class(image))
    volume["metadata"]["ownerReferences"] = [_owner(kinds.IMAGES, image)]
    return volume


def disk_volume(namespace: str, template: Obj, image: Obj) -> Obj:
    """Return the DataVolume that clones an image for a claim of a VM's templates."""
    # The claim of an image has the image's name.
    image_key = key_of(image)
    spec = template["spec"]
    source = {"pvc": {"namespace": image_key.namespace, "name": image_key.name}}
    return _data_volume(
        Key(namespace, template["metadata"]["name"]),
        source,
        size=spec["resources"]["requests"]["storage"],
        storage_class=spec.get("storageClassName", ""),
    )


def target_class(image: Obj) -> str:
    """Return the StorageClass of an image of CDI, and of its disks."""
    return str(image["spec"].get("targetStorageClassName") or "")


def is_filled(volume: Obj | None) -> bool:
    """Return whether CDI has filled the claim of a DataVolume."""
    return bool(at(volume, "status", "phase") == SUCCEEDED)


class DataVolumes:
    """The controller of all DataVolumes on one Harvester."""

    def __init__(self, informers: Informers, config: SimulatorConfig) -> None:
        self._informers = informers
        self._config = config
        self._controller = Controller("datavolumes", self._reconcile)
        # The time (monotonic) at which CDI began to fill a DataVolume, by uid.
        self._start_times: dict[str, float] = {}

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.data_volumes.add_handler(
            lambda change: self._controller.enqueue(change.key)
        )
        self._informers.claims.add_handler(self._enqueue_deleted_claim)
        await self._controller.run()

    def _enqueue_deleted_claim(self, change: Change) -> None:
        if change.new is None and CREATED_FOR in annotations_of(change.obj):
            self._controller.enqueue(change.key)

    async def _reconcile(self, key: Key) -> Result | None:
        volume = self._informers.data_volumes.get(*key)
        if volume is None or being_deleted(volume):
            return None

        # A DataVolume with a phase had a claim, and is deleted with it.
        phase = at(volume, "status", "phase")
        if self._informers.claims.get(*key) is None:
            if phase:
                with contextlib.suppress(NotFound):
                    await self._informers.client.delete(kinds.DATA_VOLUMES, key.name, key.namespace)
                return None
            await self._create_claim(volume)
        if phase == SUCCEEDED:
            return None

        time_now = time.monotonic()
        duration = self._config.import_seconds
        remaining = self._start_times.setdefault(uid_of(volume), time_now) + duration - time_now
        if remaining <= 0:
            self._start_times.pop(uid_of(volume), None)
            await self._report(key, SUCCEEDED, "100.0%")
            return None

        # Report half of the way once, so that users can see progress.
        progress = "50.0%" if remaining <= duration / 2 else "0.0%"
        await self._report(key, IN_PROGRESS, progress)
        return Result(requeue_after=min(remaining, duration / 2))

    async def _create_claim(self, volume: Obj) -> None:
        metadata = volume["metadata"]
        spec = volume["spec"]["storage"]
        owner = _owner(kinds.DATA_VOLUMES, volume)

        # CDI takes the modes that the DataVolume names, and adds the missing ones.
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "annotations": {CREATED_FOR: uid_of(volume)},
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": {**await self._read_modes(spec["storageClassName"]), **spec},
        }
        with contextlib.suppress(AlreadyExists):
            await self._informers.create(self._informers.claims, claim)

    async def _read_modes(self, storage_class: str) -> Obj:
        """Return the modes that CDI prefers for claims of a StorageClass."""
        try:
            profile = await self._informers.client.get(STORAGE_PROFILES, storage_class)
        except NotFound:
            return _WITHOUT_PROFILE
        modes = at(profile, "status", "claimPropertySets")
        return modes[0] if modes else _WITHOUT_PROFILE

    async def _report(self, key: Key, phase: str, progress: str) -> None:
        volume = self._informers.data_volumes.get(*key)
        status = {"phase": phase, "progress": progress}
        if volume is not None and volume.get("status") != status:
            with contextlib.suppress(NotFound):
                await self._informers.patch(self._informers.data_volumes, key, {"status": status})


def _owner(resource: Resource, obj: Obj) -> Obj:
    return kinds.typed(resource, {"name": obj["metadata"]["name"], "uid": uid_of(obj)})


def _data_volume(key: Key, source: Obj, size: str, storage_class: str) -> Obj:
    storage = {"storageClassName": storage_class, "resources": {"requests": {"storage": size}}}
    metadata: Obj = {"name": key.name, "namespace": key.namespace}
    return kinds.typed(
        kinds.DATA_VOLUMES, {"metadata": metadata, "spec": {"source": source, "storage": storage}}
    )
