"""Find the VirtualMachineImage that a name refers to, and whether a disk can use it yet.

Harvester writes `status.storageClassName` once it has accepted an image, and sets condition
`Imported` when the content is complete. The class does not follow from the name of the image. It is
`longhorn-<name>` for images of Harvester before 1.8, `lh-<uid>` since then, and a class of the user
for images of CDI. Up to 1.8, Harvester accepts a VM with a class that does not exist, and its claim
then stays Pending forever.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from caphv.api import names
from caphv.api.bootimage import ImageImport, is_iso
from caphv.api.conditions import get_condition
from caphv.api.object import Obj, at, key_of, labels_of
from caphv.api.plaintext import plain
from caphv.api.quantity import quantity

# Harvester names two checksums of 128 digits if they differ.
_LONGEST_REASON = 512
# Harvester's messages contain the URL, and a query may have a signature that grants a download.
_QUERY = re.compile(r"[?][^\s\"']+")
# Each new message causes a write of the status of every waiting machine.
_PROGRESS_STEP = 10


@dataclass(frozen=True)
class ResolvedImage:
    """A VirtualMachineImage. `pending` and `failure` are empty for an image that can be used.

    :param storage_class: the class that holds the content, empty until Harvester has created it
    :param virtual_size: the least size of a disk in bytes, 0 if that is not known
    :param pending: the work that Harvester has yet to do
    :param failure: the work that Harvester could not do
    :param checksum: the SHA-512 checksum that Harvester verified, empty without one
    :param iso: whether it is an ISO, as far as its type and its names say so
    """

    namespace: str
    name: str
    storage_class: str
    virtual_size: int = 0
    pending: str = ""
    failure: str = ""
    checksum: str = ""
    iso: bool = False

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
    conditions = status.get("conditions") or []
    imported = get_condition(conditions, "Imported") or {}
    # Before Harvester gives up, only this condition has the errors of attempts. Of an image whose
    # URL does not answer, it is the only one (harvester v1.9.0-rc6: `failStateTransit` in
    # pkg/image/common/operator.go).
    attempts = get_condition(conditions, "RetryLimitExceeded") or {}
    error = _message(imported) or _message(attempts)

    pending = failure = ""
    if imported.get("status") == "True":
        if not storage_class:
            pending = "Harvester has not created the StorageClass of the image yet"
    elif imported.get("status") == "False" or attempts.get("status") == "True":
        failure = f"Harvester cannot import the image: {error}"
    else:
        pending = f"Harvester is importing the image{_progress(status.get('progress'))}"
        if _message(attempts):
            pending += f"; the last attempt {_message(attempts)}"

    size = status.get("virtualSize")
    return ResolvedImage(
        key.namespace,
        key.name,
        storage_class,
        virtual_size=size if isinstance(size, int) and size > 0 else 0,
        pending=pending,
        failure=failure,
        checksum=_verified_checksum(image),
        iso=_is_iso(image),
    )


def _message(condition: Obj) -> str:
    text = _QUERY.sub("?…", str(condition.get("message") or ""))
    return plain(text, _LONGEST_REASON)


def _verified_checksum(image: Obj) -> str:
    # CDI never reads the checksum (harvester v1.9.0-rc6: only pkg/image/backingimage passes it on).
    if at(image, "spec", "backend") == "cdi":
        return ""
    return str(at(image, "spec", "checksum") or "").lower()


def _is_iso(image: Obj) -> bool:
    return (
        labels_of(image).get(names.IMAGE_TYPE_LABEL) == "iso"
        or is_iso(str(at(image, "spec", "url") or ""))
        or str(at(image, "spec", "displayName") or "").lower().endswith(".iso")
    )


def _progress(percent: object) -> str:
    if not isinstance(percent, int):
        return ""
    return f", at least {percent // _PROGRESS_STEP * _PROGRESS_STEP} % done"


def import_failure(image: ResolvedImage, declared: ImageImport) -> str:
    """Return why an image on Harvester is not the declared one; empty if it may be used."""
    again = (
        f"correct its entry in spec.images of the HarvesterCluster if that is wrong, and delete "
        f"VirtualMachineImage {image} on Harvester to have it imported again"
    )
    if image.failure:
        return f"{image.failure}; {again}"
    if image.checksum != declared.checksum:
        # Another user of Harvester may have taken the name for another content.
        has = (
            f"checksum {image.checksum[:12]}…" if image.checksum else "no checksum that it verified"
        )
        return (
            f"Harvester has the image with {has} instead of {declared.checksum[:12]}…; give the "
            f"image another name, or {again}"
        )
    return _iso_failure(image)


def _iso_failure(image: ResolvedImage) -> str:
    if not image.iso:
        return ""
    return f"VirtualMachineImage {image} is an ISO, which starts an installer; use a cloud image"


def failed_imports(
    volumes: Sequence[Obj],
    images: Mapping[str, ResolvedImage],
    declared: Mapping[str, ImageImport],
) -> list[str]:
    """Return why images on Harvester are not those that the HarvesterCluster declares.

    :param volumes: `spec.volumes` of a HarvesterMachine
    :param images: the image for each `imageName` that was found
    :param declared: the declared imports by `imageName`
    """
    return [
        f"{_field(index, volume)}: {failure}"
        for index, volume, image in _image_volumes(volumes, images)
        if volume["imageName"] in declared
        and (failure := import_failure(image, declared[volume["imageName"]]))
    ]


def unusable_images(
    volumes: Sequence[Obj],
    images: Mapping[str, ResolvedImage],
    declared: Collection[str] = (),
) -> list[str]:
    """Return the problems that a user has to fix before Harvester can create these volumes.

    :param volumes: `spec.volumes` of a HarvesterMachine
    :param images: the image for each `imageName` that was found
    :param declared: names of images about whose import `failed_imports` reports
    """
    problems = []
    for index, volume, image in _image_volumes(volumes, images):
        failure = ""
        if volume["imageName"] not in declared:
            if image.failure:
                failure = f"{image.failure}; import it again on Harvester"
            elif volume.get("imageLookup"):
                # An ISO that is named may be meant, for example as a second disk.
                failure = _iso_failure(image)

        if failure:
            problems.append(f"{_field(index, volume)}: {failure}")
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


def awaited_images(
    volumes: Sequence[Obj],
    images: Mapping[str, ResolvedImage],
    declared: Mapping[str, ImageImport],
) -> list[str]:
    """Return the fields with images that Harvester lacks and the HarvesterCluster imports."""
    return [
        _field(index, volume)
        for index, volume in enumerate(volumes)
        if volume.get("volumeType") == "image"
        and volume.get("imageName") in declared
        and volume["imageName"] not in images
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
    if volume.get("imageLookup"):
        return f"spec.volumes[{index}].imageLookup gives {volume['imageName']!r}"
    return f"spec.volumes[{index}].imageName is {volume['imageName']!r}"
