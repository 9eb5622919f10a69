"""The disks of a VM: their names and claims."""

import hashlib
import re

from caphv.api import names
from caphv.api.object import Obj
from reconciler.machine.images import ResolvedImage

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


def claim(name: str, volume: Obj, image: ResolvedImage | None, annotations: dict[str, str]) -> Obj:
    """Return the claim of a volume of the spec, from `image` when it is of type image, as a template for Harvester.

    ReadWriteMany, because live migration needs it.
    """
    own = dict(annotations)
    storage_class = volume.get("storageClass")
    if volume["volumeType"] == "image" and image:
        own[names.IMAGE_ID_ANNOTATION] = f"{image.namespace}/{image.name}"
        # Empty when the VM exists, and Harvester has the image but no longer its class.
        storage_class = image.storage_class or None
    return {
        "metadata": {"name": name, "annotations": own},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "volumeMode": "Block",
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": str(volume["volumeSize"])}},
        },
    }
