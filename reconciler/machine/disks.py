"""Names and claims of the disks of a VM."""

import hashlib
from collections.abc import Sequence

from caphv.api import names
from caphv.api.object import Obj
from caphv.api.virtualmachine import READ_WRITE_MANY
from reconciler.harvester.storageprofiles import ClaimModes
from reconciler.machine.images import ResolvedImage

# Modes that a disk gets if its StorageClass offers them, best first. ReadWriteMany comes first,
# because a VM can migrate only with such disks.
_PREFERENCE = (
    ClaimModes(READ_WRITE_MANY, "Block"),
    ClaimModes(READ_WRITE_MANY, "Filesystem"),
    ClaimModes("ReadWriteOnce", "Block"),
    ClaimModes("ReadWriteOnce", "Filesystem"),
)
_SUFFIX_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def pvc_name(vm_name: str, uid: str, index: int) -> str:
    """Return the name of a machine's disk `index`: `<vm>-disk-<index>-<5 characters>`."""
    # The characters follow from the uid of the HarvesterMachine. So a creation that is repeated
    # after a crash uses the same disks, and a later machine of the same name uses others.
    digest = hashlib.sha256(f"{uid}/{index}".encode()).digest()
    suffix = "".join(_SUFFIX_LETTERS[byte % len(_SUFFIX_LETTERS)] for byte in digest[:5])
    return f"{vm_name}-disk-{index}-{suffix}"


def storage_class_of(volume: Obj, image: ResolvedImage | None) -> str | None:
    """Return the StorageClass of a volume of the spec.

    Harvester decides the class of an image. Returns None while it is not known.
    """
    if volume["volumeType"] == "image" and image:
        return image.storage_class or None
    return volume.get("storageClass")


def claim_modes(volume: Obj, offered: Sequence[ClaimModes]) -> ClaimModes:
    """Return the modes of a volume: the modes in the spec, completed with the best that fit.

    :param offered: the modes that its StorageClass provides, empty if they are not known
    """
    access_mode = volume.get("accessMode") or ""
    volume_mode = volume.get("volumeMode") or ""
    fitting = [
        modes
        for modes in _PREFERENCE
        if modes in (offered or _PREFERENCE)
        and access_mode in ("", modes.access_mode)
        and volume_mode in ("", modes.volume_mode)
    ]
    best = fitting[0] if fitting else _PREFERENCE[0]
    return ClaimModes(access_mode or best.access_mode, volume_mode or best.volume_mode)


def claim(
    name: str,
    volume: Obj,
    image: ResolvedImage | None,
    owner_record: dict[str, str],
    offered: Sequence[ClaimModes] = (),
) -> Obj:
    """Return the claim of a volume of the spec, as a template for Harvester.

    :param name: name of the claim
    :param volume: the volume of the spec
    :param image: the image of a volume of type image
    :param owner_record: annotations that record the owner
    :param offered: modes that the StorageClass provides, empty if they are not known
    """
    annotations = dict(owner_record)
    if volume["volumeType"] == "image" and image:
        annotations[names.IMAGE_ID_ANNOTATION] = str(image)
    modes = claim_modes(volume, offered)
    return {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "accessModes": [modes.access_mode],
            "volumeMode": modes.volume_mode,
            "storageClassName": storage_class_of(volume, image),
            "resources": {"requests": {"storage": str(volume["volumeSize"])}},
        },
    }
