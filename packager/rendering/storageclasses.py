"""Refuses changes of immutable fields of a StorageClass, on which Helm would fail."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.object import Obj, at
from caphv.runtime.text import Limits, TextError, load_yaml_all
from caphv.validation.finding import Fault, FieldPath, Finding
from packager.addons.merge import origin
from packager.addons.settings import AddonSettings

FILE = "storage-classes/storageclasses.yaml"
"""Path of the file in the folder of a cluster."""
# Fields that the API server compares with the old object (`ValidateStorageClassUpdate`).
_FIXED = ("parameters", "reclaimPolicy", "volumeBindingMode", "provisioner")
_LIMITS = Limits(aliases=False)


def check_changes(
    settings: AddonSettings, before: bytes | None, after: bytes | None
) -> list[Finding]:
    """Return a finding for each changed field of an existing StorageClass that is immutable."""
    if before is None or after is None or before == after:
        return []
    old = _classes(before)
    new = _classes(after)
    # Classes of the add-on itself are not in the settings.
    indices = {row["name"]: index for index, row in enumerate(settings.csi.storage_classes)}

    findings: list[Finding] = []
    for name in new:
        if name in old:
            findings += _compare(settings, name, indices.get(name), old[name], new[name])
    return findings


def _compare(
    settings: AddonSettings, name: str, index: int | None, old: Obj, new: Obj
) -> Iterator[Finding]:
    """Yield a finding for each immutable field that differs.

    :param settings: merged settings of the cluster
    :param name: name of the class
    :param index: index of the class in the settings, None for a class of the add-on itself
    :param old: the class in the repository
    :param new: the class as rendered now
    """
    for field in _FIXED:
        if old.get(field) == new.get(field):
            continue
        path: FieldPath = ("csi", "storageClasses")
        if index is not None:
            path = (*path, index, "hostStorageClass" if field == "parameters" else field)
        detail = (
            f"cannot be changed in StorageClass {name}, which exists in the cluster: add a "
            "class of another name, or remove this one in a commit before the one that adds "
            "it again (its volumes stay)"
        )
        field_path = origin(settings.origins, path)
        yield Finding(field_path, Fault.FORBIDDEN, detail, "live-storage-class")


def _classes(content: bytes) -> dict[str, Obj]:
    """Return classes by name; none for a file that the packager did not write."""
    try:
        documents = load_yaml_all(content, _LIMITS)
    except TextError:
        return {}
    objects = (document for document in documents if isinstance(at(document, "metadata"), dict))
    return {str(obj["metadata"].get("name")): obj for obj in objects}
