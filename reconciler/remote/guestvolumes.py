"""Volumes of Harvester's CSI driver, as a workload cluster reports them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from caphv.api.guestparts import DELETE
from caphv.api.object import Obj, at, text_at

DRIVER = "driver.harvesterhci.io"
_CACHED_METADATA = ("name", "uid", "resourceVersion", "deletionTimestamp")


def slim_volume(volume: Obj) -> Obj | None:
    """Return the fields of a PersistentVolume to cache; None for one of another driver."""
    spec = volume.get("spec") or {}
    if at(spec, "csi", "driver") != DRIVER:
        return None
    metadata = volume["metadata"]
    return {
        "metadata": {name: metadata[name] for name in _CACHED_METADATA if name in metadata},
        "spec": {
            "csi": {"volumeHandle": at(spec, "csi", "volumeHandle") or ""},
            "persistentVolumeReclaimPolicy": spec.get("persistentVolumeReclaimPolicy") or "Retain",
        },
    }


def reclaim_policies(volumes: Iterable[Obj]) -> dict[str, str]:
    """Return the reclaim policy of each claim on Harvester, by the name of the claim.

    A volume names its claim in its handle. If several volumes name one claim, Retain wins.
    Policy Delete counts only for a volume whose name is its handle: the CSI driver creates volumes
    so. A user of the guest can create others, with the handle of any claim.
    """
    policies: dict[str, str] = {}
    for volume in volumes:
        handle = text_at(volume, "spec", "csi", "volumeHandle")
        policy = str(at(volume, "spec", "persistentVolumeReclaimPolicy"))
        is_of_driver = volume["metadata"]["name"] == handle
        if not handle or (policy == DELETE and not is_of_driver):
            continue
        if policy != DELETE or handle not in policies:
            policies[handle] = policy
    return policies
