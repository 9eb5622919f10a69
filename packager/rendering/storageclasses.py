"""What an API server does not let anyone change in a StorageClass, checked before a commit makes Helm fail on it."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.object import Obj
from caphv.runtime.text import Limits, TextError, load_yaml_all
from caphv.validation.finding import Fault, Finding
from packager.addons.merge import origin
from packager.addons.settings import AddonSettings

FILE = "storage-classes/storageclasses.yaml"
"""Path of the file in the folder of a cluster."""
_FIXED = ("parameters", "reclaimPolicy", "volumeBindingMode", "provisioner")
"""Fields that validation of `storage.k8s.io/v1` compares with the old object (ValidateStorageClassUpdate)."""
_LIMITS = Limits(aliases=False)


def changes(settings: AddonSettings, before: bytes | None, after: bytes | None) -> list[Finding]:
    """Return a refusal for each changed field of a class that exists in the cluster and cannot be changed there."""
    if before is None or after is None or before == after:
        return []
    old, new = _classes(before), _classes(after)
    places = {found["name"]: index for index, found in enumerate(settings.csi.storage_classes)}
    return [finding for name in new if name in old for finding in _compared(settings, name, places.get(name), old, new)]


def _compared(
    settings: AddonSettings, name: str, index: int | None, old: dict[str, Obj], new: dict[str, Obj]
) -> Iterator[Finding]:
    for field in _FIXED:
        if old[name].get(field) != new[name].get(field):
            setting = "hostStorageClass" if field == "parameters" else field
            path = ("csi", "storageClasses", *(() if index is None else (index, setting)))
            detail = (
                f"cannot be changed in StorageClass {name}, which exists in the cluster: add a class of another name, "
                "or remove this one in a commit before the one that adds it again (its volumes stay)"
            )
            yield Finding(origin(settings.origins, path), Fault.FORBIDDEN, detail, "live-storage-class")


def _classes(content: bytes) -> dict[str, Obj]:
    """Return classes by name; none for a file that is not what the packager wrote."""
    try:
        found = load_yaml_all(content, _LIMITS)
    except TextError:
        return {}
    return {str(one["metadata"].get("name")): one for one in found if _has_metadata(one)}


def _has_metadata(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("metadata"), dict)
