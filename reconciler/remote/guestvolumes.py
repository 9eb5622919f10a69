"""Volumes of Harvester's CSI driver, as a workload cluster reports them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from caphv.api.guestparts import DELETE
from caphv.api.object import Obj, at, text_at

DRIVER = "driver.harvesterhci.io"


def slim_volume(volume: Obj) -> Obj | None:
    """Return what a cache keeps of a PersistentVolume; None for one of another driver."""
    spec = volume.get("spec") or {}
    if at(spec, "csi", "driver") != DRIVER:
        return None
    kept = ("name", "uid", "resourceVersion", "deletionTimestamp")
    return {
        "metadata": {name: volume["metadata"][name] for name in kept if name in volume["metadata"]},
        "spec": {
            "csi": {"volumeHandle": at(spec, "csi", "volumeHandle") or ""},
            "persistentVolumeReclaimPolicy": spec.get("persistentVolumeReclaimPolicy") or "Retain",
        },
    }


def reclaim_policies(volumes: Iterable[Obj]) -> dict[str, str]:
    """Return reclaim policies by the name of the claim on Harvester.

    Of several volumes with one claim, one that keeps it is enough to keep it. One that deletes it
    has its name, which the CSI driver gives both: others were made by hand in the guest, and may
    name any claim.
    """
    policies: dict[str, str] = {}
    for volume in volumes:
        handle = text_at(volume, "spec", "csi", "volumeHandle")
        policy = str(at(volume, "spec", "persistentVolumeReclaimPolicy"))
        if policy == DELETE and handle != volume["metadata"]["name"]:
            continue
        if handle and policies.get(handle, DELETE) == DELETE:
            policies[handle] = policy
    return policies
