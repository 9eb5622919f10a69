"""What is read of PersistentVolumes in a workload cluster."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Obj
from reconciler.remote.guestvolumes import reclaim_policies, slim_volume

pytestmark = pytest.mark.unit


def volume(handle: str, policy: str | None = "Delete", driver: str = "driver.harvesterhci.io", name: str = "") -> Obj:
    spec: dict[str, Any] = {"csi": {"driver": driver, "volumeHandle": handle, "volumeAttributes": {"large": "x"}}}
    if policy:
        spec["persistentVolumeReclaimPolicy"] = policy
    return {"metadata": {"name": name or handle, "annotations": {"large": "x"}}, "spec": spec}


def test_only_volumes_of_harvester_are_kept() -> None:
    assert slim_volume(volume("a", driver="ebs.csi.aws.com")) is None
    assert slim_volume({"metadata": {"name": "nfs"}, "spec": {"nfs": {}}}) is None
    slim = slim_volume(volume("a"))
    assert slim is not None
    assert "large" not in str(slim)
    assert reclaim_policies([slim]) == {"a": "Delete"}


def test_volume_without_a_policy_is_retained() -> None:
    """It is the default of PersistentVolumes that were made by hand."""
    slim = slim_volume(volume("a", None))
    assert slim is not None
    assert reclaim_policies([slim]) == {"a": "Retain"}


def test_volume_that_was_made_by_hand_deletes_no_claim() -> None:
    """Its handle may name any claim on Harvester; the CSI driver gives claim and volume one name."""
    by_hand = volume("a", name="mine")
    assert reclaim_policies([by_hand]) == {}
    assert reclaim_policies([by_hand, volume("a")]) == {"a": "Delete"}
    assert reclaim_policies([volume("a"), volume("a", "Retain", name="mine")]) == {"a": "Retain"}


@pytest.mark.parametrize("policies", [("Delete", "Retain"), ("Retain", "Delete")])
def test_one_of_several_volumes_keeps_their_claim(policies: tuple[str, str]) -> None:
    assert reclaim_policies([volume("a", policy) for policy in policies]) == {"a": "Retain"}
    assert reclaim_policies([volume("")]) == {}
