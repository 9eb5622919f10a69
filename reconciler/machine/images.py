"""The image of a disk: which VirtualMachineImage a name means, and whether Harvester can make disks of it.

Harvester writes `status.storageClassName` once it has accepted an image, and sets condition `Imported` when the content
is complete. No name can replace the class: it is `longhorn-<name>` for images of Harvester before 1.8, `lh-<uid>` since
then, and a class of the user for images of CDI. Up to 1.8, nothing refuses a VM with a class that does not exist, and
its claim then stays Pending forever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from caphv.api.object import Obj, key_of
from caphv.api.plaintext import plain
from caphv.api.quantity import quantity

_LONGEST_REASON = 256
# Each message is a write of the status of every machine that waits.
_PROGRESS_STEP = 10


@dataclass(frozen=True)
class ResolvedImage:
    """A VirtualMachineImage.

    `storage_class` holds its content, and is empty until Harvester has created it. `virtual_size` is the least size of
    a disk in bytes, 0 if that is not known. `pending` says what Harvester still does, `failure` what it could not do;
    both are empty for an image that can be used.
    """

    namespace: str
    name: str
    storage_class: str
    virtual_size: int = 0
    pending: str = ""
    failure: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def is_too_large(self, volume_size: object) -> bool:
        """Whether a disk of this size cannot hold the image."""
        size = quantity(volume_size)
        return size is not None and size < self.virtual_size


def resolve_image(image_name: str, images: Iterable[Obj], default_namespace: str) -> ResolvedImage | None:
    """Return the image that `image_name` (`<namespace>/<name>` or `<name>`) means, None if there is none.

    A display name is looked up first, then the name of the object.
    """
    namespace, name = qualified(image_name, default_namespace)
    candidates = sorted(
        (image for image in images if image["metadata"].get("namespace") == namespace),
        key=lambda image: str(image["metadata"]["name"]),
    )
    by_display_name = [image for image in candidates if image.get("spec", {}).get("displayName") == name]
    by_name = [image for image in candidates if image["metadata"]["name"] == name]
    return next((_resolved(image) for image in by_display_name + by_name), None)


def where_searched(reference: str, objects: Iterable[Obj], default_namespace: str) -> str:
    """Say where an absent image or key pair was searched, and under which references Harvester has its name."""
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


def _resolved(image: Obj) -> ResolvedImage:
    key, status = key_of(image), image.get("status") or {}
    storage_class = str(status.get("storageClassName") or "")
    imported: Obj = next((c for c in status.get("conditions") or () if c.get("type") == "Imported"), {})

    pending = failure = ""
    if imported.get("status") == "False":
        failure = f"Harvester cannot import the image: {plain(str(imported.get('message') or ''), _LONGEST_REASON)}"
    elif imported.get("status") != "True":
        pending = f"Harvester is importing the image{_progress(status.get('progress'))}"
    elif not storage_class:
        pending = "Harvester has not created the StorageClass of the image yet"

    size = status.get("virtualSize")
    virtual_size = size if isinstance(size, int) and size > 0 else 0
    return ResolvedImage(key.namespace, key.name, storage_class, virtual_size, pending, failure)


def _progress(percent: object) -> str:
    if not isinstance(percent, int):
        return ""
    return f", at least {percent // _PROGRESS_STEP * _PROGRESS_STEP} % done"


def unusable_images(volumes: Sequence[Obj], images: Mapping[str, ResolvedImage]) -> list[str]:
    """Return what a user has to correct before disks can be made of the images of these volumes.

    :param volumes: `spec.volumes` of a HarvesterMachine
    :param images: the image for each `imageName` that was found
    """
    problems = []
    for index, volume, image in _image_volumes(volumes, images):
        if image.failure:
            problems.append(f"{_shown(index, volume)}: {image.failure}; import it again on Harvester")
        elif image.is_too_large(volume.get("volumeSize")):
            least = f"{-(-image.virtual_size // 1024**3)}Gi"
            problems.append(
                f"spec.volumes[{index}].volumeSize is {volume.get('volumeSize')!r}, and image {image} needs "
                f"{image.virtual_size} bytes: give at least {least}"
            )
    return problems


def pending_images(volumes: Sequence[Obj], images: Mapping[str, ResolvedImage]) -> list[str]:
    """Return what Harvester has yet to do before disks can be made of the images of these volumes."""
    return [
        f"{_shown(index, volume)}: {image.pending}"
        for index, volume, image in _image_volumes(volumes, images)
        if image.pending
    ]


def _image_volumes(
    volumes: Sequence[Obj], images: Mapping[str, ResolvedImage]
) -> Iterator[tuple[int, Obj, ResolvedImage]]:
    for index, volume in enumerate(volumes):
        image = images.get(volume.get("imageName") or "")
        if volume.get("volumeType") == "image" and image:
            yield index, volume, image


def _shown(index: int, volume: Obj) -> str:
    return f"spec.volumes[{index}].imageName is {volume['imageName']!r}"
