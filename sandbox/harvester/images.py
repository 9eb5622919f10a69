"""Harvester's controller of VM images: their StorageClass, and the import at once.

An image of type `upload` waits for its upload, which the sandbox does not have.
"""

from __future__ import annotations

import contextlib

from caphv.api.object import STORAGE_CLASSES, Key, Obj, uid_of
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import AlreadyExists
from sandbox.harvester import fixtures, kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers

VIRTUAL_SIZE = 600 * 1024**2


class Images:
    """The controller of all images on one Harvester."""

    def __init__(self, informers: Informers, config: SimulatorConfig) -> None:
        self._informers = informers
        self._config = config
        self._controller = Controller("images", self._reconcile)

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.images.add_handler(self._changed)
        await self._controller.run()

    def _changed(self, change: Change) -> None:
        self._controller.enqueue(change.key)

    async def _reconcile(self, key: Key) -> Result | None:
        image = self._informers.images.get(*key)
        if image is None or (image.get("status") or {}).get("conditions") or image["spec"]["sourceType"] == "upload":
            return None

        storage_class = self._storage_class(image)
        if image["spec"].get("backend") != "cdi":
            with contextlib.suppress(AlreadyExists):
                await self._informers.client.create(
                    STORAGE_CLASSES, kinds.typed(STORAGE_CLASSES, fixtures.storage_class(storage_class))
                )
        status = {
            "storageClassName": storage_class,
            "progress": 100,
            "virtualSize": VIRTUAL_SIZE,
            "conditions": [{"type": kind, "status": "True"} for kind in ("Initialized", "Imported")],
        }
        await self._informers.client.patch(kinds.IMAGES, key.name, key.namespace, {"status": status})
        return None

    def _storage_class(self, image: Obj) -> str:
        """Name of the class that holds the content: of CDI that of the spec, else one that Harvester makes."""
        if image["spec"].get("backend") == "cdi":
            return str(image["spec"].get("targetStorageClassName") or "")
        by_uid = self._config.release.image_class_by_uid
        return f"lh-{uid_of(image)}" if by_uid else f"longhorn-{image['metadata']['name']}"
