"""Harvester's controller of VM images: their StorageClass, and the import.

An image of type `upload` waits for its upload, which the sandbox does not have.
"""

from __future__ import annotations

import contextlib
import time

from caphv.api.object import STORAGE_CLASSES, Key, Obj, uid_of
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import AlreadyExists
from sandbox.harvester import datavolumes, fixtures, kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers

VIRTUAL_SIZE = 600 * 1024**2


class Images:
    """The controller of all images on one Harvester."""

    def __init__(self, informers: Informers, config: SimulatorConfig) -> None:
        self._informers = informers
        self._config = config
        self._controller = Controller("images", self._reconcile)
        # When (monotonic) the import of an image began, by uid.
        self._since: dict[str, float] = {}

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.images.add_handler(self._changed)
        self._informers.data_volumes.add_handler(self._changed)
        await self._controller.run()

    def _changed(self, change: Change) -> None:
        # The DataVolume of an image has its name.
        self._controller.enqueue(change.key)

    async def _reconcile(self, key: Key) -> Result | None:
        image = self._informers.images.get(*key)
        if image is None or not self._is_ours(image):
            return None

        if datavolumes.is_cdi(image):
            await self._import_by_cdi(key, image)
            return None
        return await self._import(key, image)

    def _is_ours(self, image: Obj) -> bool:
        """Whether an import has to begin or to continue here: another status is that of a user."""
        if image["spec"]["sourceType"] == "upload":
            return False
        conditions = (image.get("status") or {}).get("conditions") or ()
        imported = next((entry["status"] for entry in conditions if entry["type"] == "Imported"), "")
        continues = uid_of(image) in self._since or datavolumes.is_cdi(image)
        return not conditions or (imported == "Unknown" and continues)

    async def _import(self, key: Key, image: Obj) -> Result | None:
        by_uid = self._config.release.image_class_by_uid
        storage_class = f"lh-{uid_of(image)}" if by_uid else f"longhorn-{key.name}"
        with contextlib.suppress(AlreadyExists):
            await self._informers.client.create(
                STORAGE_CLASSES, kinds.typed(STORAGE_CLASSES, fixtures.storage_class(storage_class))
            )

        now, duration = time.monotonic(), self._config.import_seconds
        remaining = self._since.setdefault(uid_of(image), now) + duration - now
        if remaining <= 0:
            self._since.pop(uid_of(image), None)
            await self._report(key, image, storage_class, 100)
            return None
        # Half of the way is reported once, so that something can be seen.
        await self._report(key, image, storage_class, 50 if remaining <= duration / 2 else 0)
        return Result(requeue_after=min(remaining, duration / 2))

    async def _import_by_cdi(self, key: Key, image: Obj) -> None:
        """Have CDI download the image, and report how far it is."""
        volume = self._informers.data_volumes.get(*key)
        if volume is None:
            with contextlib.suppress(AlreadyExists):
                wanted = datavolumes.of_image(image, VIRTUAL_SIZE)
                self._informers.data_volumes.observe(await self._informers.client.create(kinds.DATA_VOLUMES, wanted))
            return
        status = volume.get("status") or {}
        progress = 100 if status.get("phase") == datavolumes.SUCCEEDED else _percent(status.get("progress", ""))
        await self._report(key, image, datavolumes.target_class(image), progress)

    async def _report(self, key: Key, image: Obj, storage_class: str, progress: int) -> None:
        imported = {"type": "Imported", "status": "True" if progress == 100 else "Unknown"}
        status = {
            "storageClassName": storage_class,
            "progress": progress,
            "virtualSize": VIRTUAL_SIZE,
            "conditions": [{"type": "Initialized", "status": "True"}, imported],
        }
        known = image.get("status") or {}
        if {name: known.get(name) for name in status} != status:
            answer = await self._informers.client.patch(kinds.IMAGES, key.name, key.namespace, {"status": status})
            self._informers.images.observe(answer)


def _percent(progress: str) -> int:
    number = progress.partition(".")[0].removesuffix("%")
    return int(number) if number.isdigit() else 0
