"""The disks of a VM: their names and claims."""

import hashlib
import re
from collections.abc import Sequence

from caphv.api import names
from caphv.api.object import Obj
from reconciler.harvester.storageprofiles import READ_WRITE_MANY, ClaimModes
from reconciler.machine.images import ResolvedImage

# What a disk gets of what its StorageClass offers, best first: a VM can migrate only with ReadWriteMany disks.
_PREFERENCE = (
    ClaimModes(READ_WRITE_MANY, "Block"),
    ClaimModes(READ_WRITE_MANY, "Filesystem"),
    ClaimModes("ReadWriteOnce", "Block"),
    ClaimModes("ReadWriteOnce", "Filesystem"),
)
_SUFFIX_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def pvc_name(vm_name: str, uid: str, index: int) -> str:
    """Return the name of a machine's disk `index`: `<vm>-disk-<index>-<5 characters>`.

    The five characters follow from the uid of the HarvesterMachine, so that a creation repeated after a crash means the
    same disks, and a machine of the same name made later means others.
    """
    digest = hashlib.sha256(f"{uid}/{index}".encode()).digest()
    suffix = "".join(_SUFFIX_LETTERS[byte % len(_SUFFIX_LETTERS)] for byte in digest[:5])
    return f"{vm_name}-disk-{index}-{suffix}"


def is_machine_pvc(vm_name: str, claim_name: str, disks: int | None = None) -> bool:
    """Return whether a claim has the name of a disk of this VM, or of one of its first `disks`.

    We, the Go provider and Harvester's UI name disks so; the UI numbers disks that users add after those of the spec.
    `a-disk-x-disk-0-abcde` is a disk of `a-disk-x`, not of `a`.
    """
    found = re.fullmatch(rf"{re.escape(vm_name)}-disk-(0|[1-9][0-9]{{0,8}})-[a-z0-9]{{5}}", claim_name)
    return found is not None and (disks is None or int(found[1]) < disks)


def storage_class_of(volume: Obj, image: ResolvedImage | None) -> str | None:
    """Return the StorageClass of a volume of the spec; of an image it is the image's, None once that is not known."""
    if volume["volumeType"] == "image" and image:
        return image.storage_class or None
    return volume.get("storageClass")


def claim_modes(volume: Obj, offered: Sequence[ClaimModes]) -> ClaimModes:
    """Return the modes of a volume of the spec: its own, else the best that fit them.

    :param offered: what its StorageClass provides, empty if that is not known
    """
    access_mode, volume_mode = volume.get("accessMode") or "", volume.get("volumeMode") or ""
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
    annotations: dict[str, str],
    offered: Sequence[ClaimModes] = (),
) -> Obj:
    """Return the claim of a volume of the spec, as a template for Harvester.

    :param image: the image of a volume of type image
    :param annotations: the record of its owner
    :param offered: modes that the StorageClass provides, empty if they are not known
    """
    own = dict(annotations)
    if volume["volumeType"] == "image" and image:
        own[names.IMAGE_ID_ANNOTATION] = str(image)
    modes = claim_modes(volume, offered)
    return {
        "metadata": {"name": name, "annotations": own},
        "spec": {
            "accessModes": [modes.access_mode],
            "volumeMode": modes.volume_mode,
            "storageClassName": storage_class_of(volume, image),
            "resources": {"requests": {"storage": str(volume["volumeSize"])}},
        },
    }
