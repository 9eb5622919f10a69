"""Which image a name means, and whether disks can be made of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.bootimage import ImageImport
from caphv.api.object import Obj
from reconciler.harvester import slim
from reconciler.machine.images import (
    ResolvedImage,
    awaited_images,
    failed_imports,
    import_failure,
    pending_images,
    resolve_image,
    unusable_images,
)
from reconciler.machine.vminputs import describe_import

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
        "metadata": {"namespace": namespace, "name": name, "uid": name},
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

    def test_an_image_that_is_being_deleted_comes_after_its_successor(self) -> None:
        old = image("image-1", shown="sles")
        old["metadata"]["deletionTimestamp"] = "2026-11-27T10:00:00Z"
        successor = ResolvedImage("default", "image-2", "lh-image-2")
        assert resolve_image("default/sles", [old, image("image-2", shown="sles")], "") == successor


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

    def test_attempt_that_failed_is_reported_while_harvester_tries_again(self) -> None:
        images = self.resolved(attempted("False", "retry attempted 1/3 failed due to error: no such host"))
        (message,) = pending_images([VOLUME], images)
        assert message.endswith("the last attempt retry attempted 1/3 failed due to error: no such host")
        assert unusable_images([VOLUME], images) == []

    def test_url_that_never_answered_is_a_failure(self) -> None:
        images = self.resolved(attempted("True", "failed due to error: got 404 status code"))
        assert pending_images([VOLUME], images) == []
        (message,) = unusable_images([VOLUME], images)
        assert "cannot import the image: failed due to error: got 404 status code" in message

    def test_query_of_a_url_is_not_reported(self) -> None:
        url = 'Head "https://images.example.com/a.qcow2?X-Amz-Signature=secret": no such host'
        (message,) = unusable_images([VOLUME], self.resolved(attempted("True", url)))
        assert 'Head "https://images.example.com/a.qcow2?…": no such host' in message
        assert "secret" not in message

    @pytest.mark.parametrize(
        "url",
        [
            "https://images.example.com/a?sig=ab'SECRET",
            'https://images.example.com/a?sig=ab"SECRET',
            "https://user:SECRET@images.example.com/a",
            "https://user:x@SECRET@images.example.com/a?b#SECRET",
        ],
    )
    def test_no_part_of_a_url_that_may_be_secret_is_reported(self, url: str) -> None:
        resolved = self.resolved(attempted("True", f'Head "{url}": dial tcp: no such host'))
        (message,) = unusable_images([VOLUME], resolved)
        assert "SECRET" not in message
        assert 'Head "https://images.example.com/a' in message
        assert '": dial tcp: no such host' in message

    def test_checksum_of_a_download_is_not_reported(self) -> None:
        text = f"the expected checksum {SUM} doesn't match the file actual checksum {OTHER_SUM}"
        (message,) = unusable_images([VOLUME], self.resolved(attempted("True", text)))
        assert "doesn't match the file actual checksum …" in message
        assert OTHER_SUM[:16] not in message

    def test_image_that_is_being_deleted_is_waited_for(self) -> None:
        obj = image("a")
        obj["metadata"]["deletionTimestamp"] = "now"
        (message,) = pending_images([VOLUME], self.resolved(obj))
        assert message.endswith("the image is being deleted")


def attempted(exceeded: str, message: str) -> Obj:
    obj = image("a", imported=None, storageClassName="")
    entry = {"type": "RetryLimitExceeded", "status": exceeded, "message": message}
    return slim.image({**obj, "status": {"conditions": [entry]}})


SUM, OTHER_SUM = "a" * 128, "b" * 128
DECLARED = ImageImport("default", "a", "https://images.example.com/a.qcow2", SUM)


class TestDeclared:
    """An image that a HarvesterCluster declares must be the one that it declares."""

    @staticmethod
    def failure(**spec: str) -> str:
        obj = image("a")
        found = resolve_image("default/a", [slim.image({**obj, "spec": {**obj["spec"], **spec}})], "target")
        assert found
        return import_failure(found, DECLARED)

    def test_same_checksum_is_used(self) -> None:
        assert self.failure(checksum=SUM.upper(), backend="backingimage") == ""

    @pytest.mark.parametrize(
        ("spec", "text"),
        [
            ({"checksum": OTHER_SUM}, "with checksum bbbbbbbbbbbb… instead of aaaaaaaaaaaa…"),
            ({}, "with no checksum that it verified instead of"),
            ({"checksum": SUM, "backend": "cdi"}, "with no checksum that it verified instead of"),
        ],
    )
    def test_another_content_is_refused(self, spec: dict[str, str], text: str) -> None:
        failure = self.failure(**spec)
        assert text in failure
        assert "delete VirtualMachineImage default/a on Harvester" in failure
        images = {"default/a": ResolvedImage("default", "a", "lh-a", checksum=spec.get("checksum", ""))}
        if spec.get("backend") != "cdi":
            (problem,) = failed_imports([VOLUME], images, {"default/a": DECLARED})
            assert problem == f"spec.volumes[0].imageName is 'default/a': {failure}"
            assert unusable_images([VOLUME], images, {"default/a": DECLARED}) == []

    def test_iso_is_refused_with_the_reason(self) -> None:
        assert "is an ISO, which starts an installer" in self.failure(checksum=SUM, url="https://x.example.com/a.iso")

    @pytest.mark.parametrize("volume", [VOLUME, {**VOLUME, "imageLookup": {"format": "default/a"}}])
    def test_iso_by_lookup_is_refused_and_by_name_is_meant(self, volume: Obj) -> None:
        problems = unusable_images([volume], {"default/a": ResolvedImage("default", "a", "lh-a", iso=True)})
        assert bool(problems) is ("imageLookup" in volume)
        assert all("imageLookup gives 'default/a': VirtualMachineImage default/a is an ISO" in p for p in problems)

    @pytest.mark.parametrize(
        ("storage_class", "other", "text"),
        [
            ("lh-a", "lh-b", ""),
            ("longhorn-a", "", ""),
            ("lh-evil", "", "StorageClass 'lh-evil' is not one that Harvester gives it"),
            ("longhorn-a", "longhorn-a", "StorageClass 'longhorn-a' is that of team-b/a, too"),
        ],
    )
    def test_class_of_another_image_is_refused(self, storage_class: str, other: str, text: str) -> None:
        images = [
            image("a", storageClassName=storage_class),
            image("a", namespace="team-b", storageClassName=other),
        ]
        images[0]["spec"]["checksum"] = SUM
        found = resolve_image("default/a", images, "target")
        assert found
        failure = import_failure(found, DECLARED)
        assert text in failure
        assert bool(failure) is bool(text)
        assert unusable_images([VOLUME], {"default/a": found}) == [], "an image that is named is the user's choice"

    def test_absent_image_is_awaited(self) -> None:
        assert awaited_images([VOLUME], {}, {"default/a": DECLARED}) == ["spec.volumes[0].imageName is 'default/a'"]
        present = {"default/a": ResolvedImage("default", "a", "lh-a")}
        assert awaited_images([VOLUME], present, {"default/a": DECLARED}) == awaited_images([VOLUME], {}, {}) == []


@pytest.mark.parametrize(
    ("labels", "shown"), [({"harvesterhci.io/image-type": "iso"}, "a"), ({}, "Installer.ISO"), ({}, "a.qcow2")]
)
def test_iso_is_known_by_its_type_and_its_name(labels: dict[str, str], shown: str) -> None:
    obj = image("a", shown=shown)
    obj["metadata"]["labels"] = labels
    found = resolve_image("default/a", [slim.image(obj)], "target")
    assert found
    assert found.iso is (shown != "a.qcow2")


@pytest.mark.parametrize(
    ("annotation", "paused", "cause"),
    [
        ("", False, "default/a: Harvester is importing the image"),
        ("cluster.x-k8s.io/managed-by", False, "the HarvesterCluster is managed externally: import it by hand"),
        ("cluster.x-k8s.io/paused", False, "the HarvesterCluster is paused: resume it, or import it by hand"),
        ("", True, "the HarvesterCluster is paused: resume it, or import it by hand"),
    ],
)
def test_machine_says_what_the_import_of_its_image_waits_for(annotation: str, paused: bool, cause: str) -> None:
    condition = {"type": "ImagesReady", "status": "False", "message": "default/a: Harvester is importing the image"}
    cluster = {"metadata": {"annotations": {annotation: ""}}, "status": {"conditions": [condition]}}
    scope: Any = SimpleNamespace(harvester_cluster=cluster, cluster={"spec": {"paused": paused}})
    assert describe_import(scope, ["spec.volumes[0].imageName is 'default/a'"]).partition(": ")[2] == cause
