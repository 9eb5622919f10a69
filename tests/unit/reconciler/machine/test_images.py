"""Which image a name means, and whether disks can be made of it."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Obj
from reconciler.harvester import slim
from reconciler.machine.images import ResolvedImage, pending_images, resolve_image, unusable_images

pytestmark = pytest.mark.unit


def image(
    name: str, *, namespace: str = "default", shown: str = "", imported: str | None = "True", **status: Any
) -> Obj:
    """Return a VirtualMachineImage as caches keep it."""
    message = status.pop("message", "")
    conditions = [{"type": "Initialized", "status": "True"}]
    if imported is not None:
        conditions.append({"type": "Imported", "status": imported, "message": message, "lastUpdateTime": "now"})
    full = {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"displayName": shown or name, "sourceType": "download"},
        "status": {"storageClassName": f"lh-{name}", "conditions": conditions, **status},
    }
    return slim.image(full)


class TestNames:
    IMAGES = (
        image("sles", shown="other"),
        image("image-1", shown="sles.qcow2"),
        image("image-2", namespace="target", shown="sles.qcow2"),
    )

    @pytest.mark.parametrize(
        ("name", "resolved"),
        [
            ("default/sles.qcow2", ResolvedImage("default", "image-1", "lh-image-1")),
            ("default/image-1", ResolvedImage("default", "image-1", "lh-image-1")),
            ("sles.qcow2", ResolvedImage("target", "image-2", "lh-image-2")),
            ("image-2", ResolvedImage("target", "image-2", "lh-image-2")),
            ("default/sles", ResolvedImage("default", "sles", "lh-sles")),
            ("sles", None),
            ("elsewhere/sles", None),
        ],
    )
    def test_display_name_comes_before_name(self, name: str, resolved: ResolvedImage | None) -> None:
        assert resolve_image(name, self.IMAGES, "target") == resolved


VOLUME = {"volumeType": "image", "imageName": "default/a", "volumeSize": "10Gi"}


class TestUse:
    def resolved(self, obj: Obj) -> dict[str, ResolvedImage]:
        found = resolve_image("default/a", [obj], "target")
        assert found
        return {"default/a": found}

    @pytest.mark.parametrize(
        ("obj", "text"),
        [
            (image("a", imported=None, storageClassName=""), "Harvester is importing the image"),
            (image("a", imported="Unknown"), "Harvester is importing the image"),
            (image("a", imported="Unknown", progress=0), "importing the image, at least 0 % done"),
            (image("a", imported="Unknown", progress=57), "importing the image, at least 50 % done"),
            (image("a", storageClassName=""), "has not created the StorageClass of the image"),
        ],
    )
    def test_unfinished_image_is_waited_for(self, obj: Obj, text: str) -> None:
        (message,) = pending_images([VOLUME], self.resolved(obj))
        assert message.startswith("spec.volumes[0].imageName is 'default/a': ")
        assert text in message
        assert unusable_images([VOLUME], self.resolved(obj)) == []

    def test_no_class_is_guessed(self) -> None:
        assert self.resolved(image("a", storageClassName=""))["default/a"].storage_class == ""

    def test_failed_import_is_a_failure(self) -> None:
        images = self.resolved(image("a", imported="False", message="404 Not Found\x1b[31m"))
        assert pending_images([VOLUME], images) == []
        (message,) = unusable_images([VOLUME], images)
        assert "cannot import the image: 404 Not Found" in message
        assert "\x1b" not in message

    @pytest.mark.parametrize(("size", "fits"), [("10Gi", True), ("10G", False), (10 * 1024**3, True), ("9Gi", False)])
    def test_disk_holds_the_image(self, size: object, fits: bool) -> None:
        images = self.resolved(image("a", virtualSize=10 * 1024**3))
        problems = unusable_images([{**VOLUME, "volumeSize": size}], images)
        assert bool(problems) is not fits
        if problems:
            assert problems == [
                f"spec.volumes[0].volumeSize is {size!r}, and image default/a needs 10737418240 bytes: "
                "give at least 10Gi"
            ]

    def test_other_volumes_need_no_image(self) -> None:
        images = self.resolved(image("a", imported="Unknown"))
        blank = {"volumeType": "storageClass", "storageClass": "x", "volumeSize": "1Gi"}
        assert pending_images([blank], images) == unusable_images([blank], images) == []
