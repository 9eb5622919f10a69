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
from caphv.api.object import Obj, at, being_deleted, key_of, labels_of, text_at, uid_of
from caphv.api.plaintext import plain
from caphv.api.quantity import quantity

# Harvester names a checksum of 128 digits if it differs from that of the file.
_MAX_REASON = 512
# Harvester's messages contain the URL: its user information is a password, and its query may have a
# signature that grants a download.
_USER = re.compile(r"(?<=://)[^/\s?#]*@")
_QUERY = re.compile(r"(?<=\S)[?#]\S+")
# The checksum of what was downloaded would show users something of content that they cannot read.
_ACTUAL = re.compile(r"(actual checksum:?\s+)[0-9a-fA-F]{16,}")
_MAX_MESSAGE = 4096
# Each new message causes a write of the status of every waiting machine.
PROGRESS_STEP = 10


@dataclass(frozen=True)
class ResolvedImage:
    """A VirtualMachineImage. `pending` and `failure` are empty for an image that can be used.

    :param storage_class: the class that holds the content, empty until Harvester has created it
    :param virtual_size: the least size of a disk in bytes, 0 if that is not known
    :param pending: the work that Harvester has yet to do
    :param failure: the work that Harvester could not do
    :param checksum: the SHA-512 checksum that Harvester had to verify, empty without one
    :param iso: whether it is an ISO, as far as its type and its names say so
    :param doubt: why its class may not have its content; empty if nothing indicates that
    """

    namespace: str
    name: str
    storage_class: str
    virtual_size: int = 0
    pending: str = ""
    failure: str = ""
    checksum: str = ""
    iso: bool = False
    doubt: str = ""

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
    images = list(images)
    candidates = [
        image
        for image in images
        if image["metadata"].get("namespace") == namespace
        and name in (at(image, "spec", "displayName"), image["metadata"]["name"])
    ]
    image = min(
        candidates,
        key=lambda image: (
            being_deleted(image),
            at(image, "spec", "displayName") != name,
            image["metadata"]["name"],
        ),
        default=None,
    )
    return _resolve(image, images) if image else None


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


def _resolve(image: Obj, images: Iterable[Obj]) -> ResolvedImage:
    """Return the properties of a VirtualMachineImage.

    :param images: all images of the Harvester
    """
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
    if being_deleted(image):
        pending = "the image is being deleted"
    elif imported.get("status") == "True":
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
        doubt=_class_doubt(image, storage_class, images),
    )


def _class_doubt(image: Obj, storage_class: str, images: Iterable[Obj]) -> str:
    """Return why the class in the status of an image may have the content of another one.

    The status is no subresource, so that a user who creates an image can write it.
    """
    # A class of CDI is the user's, for any number of images.
    if not storage_class or at(image, "spec", "backend") == "cdi":
        return ""
    name = image["metadata"]["name"]
    if storage_class not in (f"longhorn-{name}", f"lh-{uid_of(image)}"):
        return f"its StorageClass {storage_class!r} is not one that Harvester gives it"
    others = (
        key_of(other)
        for other in images
        if at(other, "status", "storageClassName") == storage_class
        and key_of(other) != key_of(image)
    )
    if other := next(others, None):
        return f"its StorageClass {storage_class!r} is that of {other.namespace}/{other.name}, too"
    return ""


def _message(condition: Obj) -> str:
    return redacted(str(condition.get("message") or ""))


def redacted(text: str) -> str:
    """Return a message of Harvester without passwords, queries, and checksums of downloads."""

    def shorten(query: re.Match[str]) -> str:
        # The query ends where blanks begin, because it may contain quotes; those behind it stay.
        content = query[0].rstrip("\"':,;.)")
        return f"{query[0][0]}…{query[0][len(content) :]}"

    text = _USER.sub("", plain(text, _MAX_MESSAGE))
    return plain(_ACTUAL.sub(r"\1…", _QUERY.sub(shorten, text)), _MAX_REASON)


def _verified_checksum(image: Obj) -> str:
    # CDI never reads the checksum (harvester v1.9.0-rc6: only pkg/image/backingimage passes it on).
    if at(image, "spec", "backend") == "cdi":
        return ""
    return text_at(image, "spec", "checksum").lower()


def _is_iso(image: Obj) -> bool:
    return (
        labels_of(image).get(names.IMAGE_TYPE_LABEL) == "iso"
        or is_iso(text_at(image, "spec", "url"))
        or text_at(image, "spec", "displayName").lower().endswith(".iso")
    )


def _progress(percent: object) -> str:
    if not isinstance(percent, int):
        return ""
    return f", at least {percent // PROGRESS_STEP * PROGRESS_STEP} % done"


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
    if image.doubt:
        return f"{image.doubt}; give the image another name, or {again}"
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
