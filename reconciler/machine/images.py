"""Find the VirtualMachineImage that a name refers to, and whether a disk can use it yet.

Harvester writes `status.storageClassName` once it has accepted an image, and sets condition
`Imported` when the content is complete. The class does not follow from the name of the image. It is
`longhorn-<name>` for images of Harvester before 1.8, `lh-<uid>` since then, and a class of the user
for images of CDI. Up to 1.8, Harvester accepts a VM with a class that does not exist, and its claim
then stays Pending forever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from caphv.api.conditions import get_condition
from caphv.api.object import Obj, at, key_of
from caphv.api.plaintext import plain
from caphv.api.quantity import quantity

_LONGEST_REASON = 256
# Each new message causes a write of the status of every waiting machine.
_PROGRESS_STEP = 10


@dataclass(frozen=True)
class ResolvedImage:
    """A VirtualMachineImage. `pending` and `failure` are empty for an image that can be used.

    :param storage_class: the class that holds the content, empty until Harvester has created it
    :param virtual_size: the least size of a disk in bytes, 0 if that is not known
    :param pending: the work that Harvester has yet to do
    :param failure: the work that Harvester could not do
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
        """Return whether a disk of this size cannot hold the image."""
        size = quantity(volume_size)
        return size is not None and size < self.virtual_size


def resolve_image(
    image_name: str, images: Iterable[Obj], default_namespace: str
) -> ResolvedImage | None:
    """Return the image that a name refers to, None if there is none.

    Display names take precedence over names of objects.

    :param image_name: `<namespace>/<name>` or `<name>`
    """
    namespace, name = split_reference(image_name, default_namespace)
    candidates = sorted(
        (image for image in images if image["metadata"].get("namespace") == namespace),
        key=lambda image: str(image["metadata"]["name"]),
    )
    for image in candidates:
        if at(image, "spec", "displayName") == name:
            return _resolve(image)
    for image in candidates:
        if image["metadata"]["name"] == name:
            return _resolve(image)
    return None


def describe_search(reference: str, objects: Iterable[Obj], default_namespace: str) -> str:
    """Describe where an absent image or key pair was searched, and where else Harvester has one."""
    namespace, name = split_reference(reference, default_namespace)
    references = {
        f"{obj['metadata'].get('namespace')}/{name}"
        for obj in objects
        if name in (obj["metadata"]["name"], at(obj, "spec", "displayName"))
    }
    rule = "" if "/" in reference else ", where names without a namespace are searched"
    alternatives = f"; Harvester has {', '.join(sorted(references))}" if references else ""
    return f"{reference!r} is not in namespace {namespace}{rule}{alternatives}"


def split_reference(reference: str, default_namespace: str) -> tuple[str, str]:
    """Split a reference `<namespace>/<name>` or `<name>`."""
    namespace, _, name = reference.rpartition("/")
    return namespace or default_namespace, name


def _resolve(image: Obj) -> ResolvedImage:
    """Return the properties of a VirtualMachineImage."""
    key = key_of(image)
    status = image.get("status") or {}
    storage_class = str(status.get("storageClassName") or "")
    imported = get_condition(status.get("conditions") or [], "Imported") or {}

    pending = failure = ""
    if imported.get("status") == "False":
        reason = plain(str(imported.get("message") or ""), _LONGEST_REASON)
        failure = f"Harvester cannot import the image: {reason}"
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
    """Return the problems that a user has to fix before Harvester can create these volumes.

    :param volumes: `spec.volumes` of a HarvesterMachine
    :param images: the image for each `imageName` that was found
    """
    problems = []
    for index, volume, image in _image_volumes(volumes, images):
        if image.failure:
            problems.append(
                f"{_field(index, volume)}: {image.failure}; import it again on Harvester"
            )
        elif image.is_too_large(volume.get("volumeSize")):
            least = f"{-(-image.virtual_size // 1024**3)}Gi"
            problems.append(
                f"spec.volumes[{index}].volumeSize is {volume.get('volumeSize')!r}, and image "
                f"{image} needs {image.virtual_size} bytes: give at least {least}"
            )
    return problems


def pending_images(volumes: Sequence[Obj], images: Mapping[str, ResolvedImage]) -> list[str]:
    """Return the work that Harvester has yet to do before it can create these volumes."""
    return [
        f"{_field(index, volume)}: {image.pending}"
        for index, volume, image in _image_volumes(volumes, images)
        if image.pending
    ]


def _image_volumes(
    volumes: Sequence[Obj], images: Mapping[str, ResolvedImage]
) -> Iterator[tuple[int, Obj, ResolvedImage]]:
    """Yield index, volume and image of each volume with an image that was found."""
    for index, volume in enumerate(volumes):
        image = images.get(volume.get("imageName") or "")
        if volume.get("volumeType") == "image" and image:
            yield index, volume, image


def _field(index: int, volume: Obj) -> str:
    return f"spec.volumes[{index}].imageName is {volume['imageName']!r}"
