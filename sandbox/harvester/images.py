"""Harvester's controller of VM images: their StorageClass, and the import.

An image of type `upload` waits for its upload, which the sandbox does not have. A file that is
downloaded contains nothing but its URL, so that `content_checksum` is known, and hosts below
`.invalid` do not exist.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from urllib.parse import urlsplit

from caphv.api.object import STORAGE_CLASSES, Key, Obj, at, list_at, text_at, uid_of
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.harvester import datavolumes, fixtures, kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers

VIRTUAL_SIZE = 600 * 1024**2


def content_checksum(url: str) -> str:
    """Return the SHA-512 checksum of the simulated file behind a URL."""
    return hashlib.sha512(url.encode()).hexdigest()


class Images:
    """The controller of all images on one Harvester."""

    def __init__(self, informers: Informers, config: SimulatorConfig) -> None:
        self._informers = informers
        self._config = config
        self._controller = Controller("images", self._reconcile)
        # The time (monotonic) at which the import of an image began, by uid.
        self._start_times: dict[str, float] = {}
        # The class of each image that this controller imports.
        self._classes: dict[Key, str] = {}

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.images.add_handler(self._enqueue)
        # The DataVolume of an image has its name.
        self._informers.data_volumes.add_handler(self._enqueue)
        await self._controller.run()

    def _enqueue(self, change: Change) -> None:
        self._controller.enqueue(change.key)

    async def _reconcile(self, key: Key) -> Result | None:
        image = self._informers.images.get(*key)
        if image is None:
            await self._delete_class(self._classes.pop(key, ""))
            return None
        if not self._needs_import(image):
            return None

        if datavolumes.is_cdi(image):
            await self._import_by_cdi(key, image)
            return None
        return await self._import(key, image)

    def _needs_import(self, image: Obj) -> bool:
        """Return whether an import has to begin or to continue here."""
        if image["spec"]["sourceType"] == "upload":
            return False
        conditions = list_at(image, "status", "conditions")
        if not conditions:
            return True

        status_of = {entry["type"]: entry["status"] for entry in conditions}
        if status_of.get("RetryLimitExceeded") == "True":
            return False

        # If this controller has not written the status, a user did so to simulate an import.
        is_ours = uid_of(image) in self._start_times or datavolumes.is_cdi(image)
        return is_ours and status_of.get("Imported", "Unknown") == "Unknown"

    async def _import(self, key: Key, image: Obj) -> Result | None:
        by_uid = self._config.release.image_class_by_uid
        storage_class = f"lh-{uid_of(image)}" if by_uid else f"longhorn-{key.name}"
        # A class has no namespace. Harvester deletes it before the import and with the image, whose
        # ever it is (harvester v1.7.2: `Initialize` and `OnRemove` in
        # pkg/image/backingimage/backingimage.go, `GetImageStorageClassName` in pkg/util/image.go).
        if uid_of(image) not in self._start_times:
            await self._delete_class(storage_class)
        self._classes[key] = storage_class
        with contextlib.suppress(AlreadyExists):
            obj = fixtures.storage_class(storage_class)
            obj["parameters"] = {**obj["parameters"], "backingImage": f"vmi-{uid_of(image)}"}
            await self._informers.client.create(STORAGE_CLASSES, kinds.typed(STORAGE_CLASSES, obj))

        time_now = time.monotonic()
        duration = self._config.import_seconds
        remaining = self._start_times.setdefault(uid_of(image), time_now) + duration - time_now
        if remaining <= 0:
            self._start_times.pop(uid_of(image), None)
            if error := _download_error(image):
                return await self._report_failure(key, image, error)
            await self._report(key, image, storage_class, 100)
            return None

        # Report half of the way once, so that users can see progress.
        progress = 50 if remaining <= duration / 2 else 0
        await self._report(key, image, storage_class, progress)
        return Result(requeue_after=min(remaining, duration / 2))

    async def _delete_class(self, name: str) -> None:
        if name:
            with contextlib.suppress(NotFound):
                await self._informers.client.delete(STORAGE_CLASSES, name)

    async def _report_failure(self, key: Key, image: Obj, error: str) -> Result | None:
        """Report a failed attempt, and begin the next one unless the limit is reached."""
        # As `failStateTransit` in pkg/image/common/operator.go of harvester v1.9.0-rc6.
        failed = (at(image, "status", "failed") or 0) + 1
        retry = image["spec"].get("retry", 3)
        attempt = f"retry attempted {failed - 1}/{retry} " if failed > 1 else ""
        message = f"{attempt}failed due to error: {error}"
        exceeded = failed > retry

        conditions = [
            {
                "type": "RetryLimitExceeded",
                "status": "True" if exceeded else "False",
                "message": message,
            }
        ]
        if _is_reachable(image):
            conditions += [
                {"type": "Initialized", "status": "True"},
                {
                    "type": "Imported",
                    "status": "False" if exceeded else "Unknown",
                    "message": message if exceeded else "",
                },
            ]
        status = {"failed": failed, "progress": 0, "conditions": conditions}
        await self._informers.patch(self._informers.images, key, {"status": status})
        if exceeded:
            return None
        self._start_times[uid_of(image)] = time.monotonic()
        return Result(requeue_after=max(self._config.import_seconds, 0.01))

    async def _import_by_cdi(self, key: Key, image: Obj) -> None:
        """Let CDI download the image, and report the progress."""
        volume = self._informers.data_volumes.get(*key)
        if volume is None:
            with contextlib.suppress(AlreadyExists):
                volume = datavolumes.image_volume(image, VIRTUAL_SIZE)
                await self._informers.create(self._informers.data_volumes, volume)
            return

        progress = 100 if datavolumes.is_filled(volume) else _percent(volume)
        await self._report(key, image, datavolumes.target_class(image), progress)

    async def _report(self, key: Key, image: Obj, storage_class: str, progress: int) -> None:
        imported = {"type": "Imported", "status": "True" if progress == 100 else "Unknown"}
        status = {
            "storageClassName": storage_class,
            "progress": progress,
            "virtualSize": VIRTUAL_SIZE,
            "conditions": [{"type": "Initialized", "status": "True"}, imported],
        }
        if any(at(image, "status", name) != value for name, value in status.items()):
            await self._informers.patch(self._informers.images, key, {"status": status})


def _is_reachable(image: Obj) -> bool:
    return not (urlsplit(image["spec"].get("url") or "").hostname or "").endswith(".invalid")


def _download_error(image: Obj) -> str:
    """Return the error of the download of an image; empty if it succeeds."""
    url = image["spec"].get("url") or ""
    checksum = image["spec"].get("checksum") or ""
    if not _is_reachable(image):
        return f'Head "{url}": dial tcp: lookup {urlsplit(url).hostname}: no such host'
    actual = content_checksum(url)
    if checksum and checksum != actual:
        return (
            f"failed to process sync file: the expected checksum {checksum} doesn't match the file "
            f"actual checksum {actual}"
        )
    return ""


def _percent(volume: Obj) -> int:
    """Return the progress of a DataVolume, whose text is `50.0%` or `N/A`."""
    number = text_at(volume, "status", "progress").partition(".")[0].removesuffix("%")
    return int(number) if number.isdigit() else 0
