"""Rules about the disks of a machine."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.quantity import quantity
from caphv.validation.finding import Fault, Finding
from caphv.validation.rule import Rules
from webhooks.rules.model import MACHINES, Field, Subject
from webhooks.rules.values import MI, NO_QUANTITY, TI

RULES = Rules()

IMAGE = "image"
STORAGE_CLASS = "storageClass"
_MIN_SIZE = 10 * MI
_MAX_SIZE = 100 * TI
# 20G in decimal units are a little less than 20Gi, and enough.
_MIN_BOOT_DISK_SIZE = 20 * 1000**3


@RULES.rule(
    "volume-type",
    MACHINES,
    "`volumeType` must be `image` or `storageClass`.",
    "volumes[].volumeType",
    example="volumes: [{volumeType: pvc, volumeSize: 40Gi}]",
    refused_by_go=True,
)
def _volume_type(subject: Subject) -> Iterator[Finding]:
    for volume in _volumes(subject):
        kind = volume.at("volumeType")
        if isinstance(kind.value, str) and kind.value not in (IMAGE, STORAGE_CLASS):
            yield kind.problem(Fault.UNSUPPORTED, 'must be "image" or "storageClass"')


@RULES.rule(
    "volume-image",
    MACHINES,
    "A disk of type `image` must name its image, or say by `imageLookup` how it is found.",
    "volumes[].imageName",
    "volumes[].imageLookup",
    "volumes[].volumeType",
    example="volumes: [{volumeType: image, volumeSize: 40Gi}]",
    refused_by_go=True,
)
def _volume_image(subject: Subject) -> Iterator[Finding]:
    for volume in _volumes(subject):
        name = volume.at("imageName")
        is_found = name.present or volume.at("imageLookup").value is not None
        if volume.at("volumeType").value == IMAGE and not is_found:
            yield name.required(
                "a disk of type image needs one, for example default/opensuse-leap-micro, or an "
                "imageLookup"
            )


@RULES.rule(
    "volume-storage-class",
    MACHINES,
    "A disk of type `storageClass` must name its StorageClass.",
    "volumes[].storageClass",
    "volumes[].volumeType",
    example="volumes: [{volumeType: storageClass, volumeSize: 40Gi}]",
    refused_by_go=True,
)
def _volume_storage_class(subject: Subject) -> Iterator[Finding]:
    for volume in _volumes(subject):
        name = volume.at("storageClass")
        if volume.at("volumeType").value == STORAGE_CLASS and not name.present:
            yield name.required(
                "a disk of type storageClass needs one, for example harvester-longhorn"
            )


@RULES.rule(
    "volume-source",
    MACHINES,
    "A disk must set the field of its own type only: `imageName` or `storageClass`.",
    "volumes[].imageName",
    "volumes[].storageClass",
    example=(
        "volumes: [{volumeType: storageClass, storageClass: harvester-longhorn, imageName: "
        "default/opensuse, volumeSize: 40Gi}]"
    ),
)
def _volume_source(subject: Subject) -> Iterator[Finding]:
    for volume in _volumes(subject):
        kind = volume.at("volumeType").value
        image = volume.at("imageName")
        storage_class = volume.at("storageClass")
        if kind == STORAGE_CLASS and image.present:
            yield image.forbidden(
                "a disk of type storageClass is empty: use type image, or remove the image"
            )
        if kind == IMAGE and storage_class.present:
            yield storage_class.forbidden(
                "a disk of type image gets the StorageClass of its image: remove it"
            )


@RULES.rule(
    "volume-size",
    MACHINES,
    "A disk must have a size from 10Mi to 100Ti. A number without a suffix counts bytes.",
    "volumes[].volumeSize",
    example="volumes: [{volumeType: image, imageName: default/opensuse}]",
)
def _volume_size(subject: Subject) -> Iterator[Finding]:
    for volume in _volumes(subject):
        size = volume.at("volumeSize")
        if size.value in (None, ""):
            yield size.required("say how large the disk is, for example 40Gi")
            continue

        number = quantity(size.value)
        if number is None and size.text:
            yield size.invalid(NO_QUANTITY)
        elif number is not None and not _MIN_SIZE <= number <= _MAX_SIZE:
            yield size.invalid(
                "must be from 10Mi to 100Ti; without a suffix it counts bytes, so write for "
                "example 40Gi"
            )


@RULES.rule(
    "boot-order-positive",
    MACHINES,
    "`bootOrder` must be at least 1. The Go provider's ClusterClass writes 0 for none.",
    "volumes[].bootOrder",
    example=(
        "volumes: [{volumeType: image, imageName: default/opensuse, volumeSize: 40Gi, bootOrder: "
        "-1}]"
    ),
)
def _boot_order_positive(subject: Subject) -> Iterator[Finding]:
    for volume in _volumes(subject):
        order = volume.at("bootOrder")
        if order.number is not None and order.number < 0:
            yield order.invalid("must be at least 1, or left out")


@RULES.rule(
    "boot-order-unique",
    MACHINES,
    "`bootOrder` must be unique among the disks of a machine.",
    "volumes[].bootOrder",
    example=(
        "volumes: [{volumeType: image, imageName: default/opensuse, volumeSize: 40Gi, bootOrder: "
        "1}, {volumeType: storageClass, storageClass: harvester-longhorn, volumeSize: 40Gi, "
        "bootOrder: 1}]"
    ),
)
def _boot_order_unique(subject: Subject) -> Iterator[Finding]:
    used_ranks: set[int] = set()
    for volume in _volumes(subject):
        order = volume.at("bootOrder")
        # The Go provider's ClusterClass writes 0 for none.
        if not order.number:
            continue
        if order.number in used_ranks:
            yield order.problem(
                Fault.DUPLICATE, "another disk has this rank: give each disk one of its own"
            )
        used_ranks.add(order.number)


@RULES.rule(
    "boot-disk",
    MACHINES,
    "The disk that a VM boots from must have an image, and at least 20Gi.",
    "volumes[]",
    example=(
        "volumes: [{volumeType: storageClass, storageClass: harvester-longhorn, volumeSize: 40Gi}]"
    ),
    advice=True,
)
def _boot_disk(subject: Subject) -> Iterator[Finding]:
    volumes = _volumes(subject)
    if not volumes:
        return

    # Disks without a rank come after all others, and disks with the same rank keep their order.
    last_rank = len(volumes) + 2**31
    first = min(volumes, key=lambda volume: volume.at("bootOrder").number or last_rank)

    if first.at("volumeType").value == STORAGE_CLASS:
        detail = "the VM boots from this disk first, and it is empty: rank an image first"
        yield Finding(first.path, Fault.INVALID, detail)
        return

    size = quantity(first.at("volumeSize").value)
    if size is not None and _MIN_SIZE <= size < _MIN_BOOT_DISK_SIZE:
        yield first.at("volumeSize").invalid(
            "a node needs 20Gi or more for its system, container images and logs"
        )


@RULES.rule(
    "volume-not-migratable",
    MACHINES,
    "All disks must be ReadWriteMany for a VM to migrate: with others, it stops when its host is "
    "drained.",
    "volumes[].accessMode",
    example=(
        "volumes: [{volumeType: image, imageName: default/opensuse, volumeSize: 40Gi, accessMode: "
        "ReadWriteOnce}]"
    ),
    advice=True,
)
def _volume_not_migratable(subject: Subject) -> Iterator[Finding]:
    for volume in _volumes(subject):
        if volume.at("accessMode").text == "ReadWriteOnce":
            yield volume.at("accessMode").invalid(
                "the VM cannot migrate, and stops when its host is drained: use ReadWriteMany if "
                "the class has it"
            )


def _volumes(subject: Subject) -> list[Field]:
    return [volume for volume in subject.spec.at("volumes").each() if volume.mapping]
