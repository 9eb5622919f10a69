"""The disks of a VM: their names, claims and images."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from caphv.api import names
from caphv.api.object import Obj

_SUFFIX_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class ResolvedImage:
    """A VirtualMachineImage and the storage class that holds its content."""

    namespace: str
    name: str
    storage_class: str


def resolve_image(image_name: str, images: Iterable[Obj], default_namespace: str) -> ResolvedImage | None:
    """Find the image that `image_name` (`<namespace>/<name>` or `<name>`) means, by display name, else by name.

    The storage class is the one Harvester reports (its naming changed in 1.8.1), else the older convention.
    """
    namespace, name = qualified(image_name, default_namespace)
    there = sorted(
        (image for image in images if image["metadata"].get("namespace") == namespace),
        key=lambda image: str(image["metadata"]["name"]),
    )
    by_display_name = [image for image in there if image.get("spec", {}).get("displayName") == name]
    by_name = [image for image in there if image["metadata"]["name"] == name]
    for image in by_display_name + by_name:
        found: str = image["metadata"]["name"]
        storage_class = (image.get("status") or {}).get("storageClassName") or f"longhorn-{found}"
        return ResolvedImage(namespace, found, storage_class)
    return None


def where_searched(reference: str, objects: Iterable[Obj], default_namespace: str) -> str:
    """Where an absent image or key pair was searched, and under which references Harvester has its name."""
    namespace, name = qualified(reference, default_namespace)
    found = {
        f"{obj['metadata'].get('namespace')}/{name}"
        for obj in objects
        if name in (obj["metadata"]["name"], (obj.get("spec") or {}).get("displayName"))
    }
    how = "" if "/" in reference else ", where names without a namespace are searched"
    there = f"; Harvester has {', '.join(sorted(found))}" if found else ""
    return f"{reference!r} is not in namespace {namespace}{how}{there}"


def qualified(reference: str, default_namespace: str) -> tuple[str, str]:
    """Split a reference `<namespace>/<name>` or `<name>`."""
    namespace, _, name = reference.rpartition("/")
    return namespace or default_namespace, name


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
        storage_class = image.storage_class
    return {
        "metadata": {"name": name, "annotations": own},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "volumeMode": "Block",
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": str(volume["volumeSize"])}},
        },
    }
