"""Labels of hosts reach the instances of guests, and no others."""

from __future__ import annotations

import pytest

from sandbox.harvester.hostlabels import copied

pytestmark = pytest.mark.unit

GUEST = {"harvesterhci.io/creator": "docker-machine-driver-harvester"}
HOST = {"metadata": {"labels": {"topology.kubernetes.io/zone": "a", "kubernetes.io/hostname": "h1", "other": "x"}}}


def test_zone_and_host_of_a_guest_are_copied() -> None:
    vmi = {"metadata": {"annotations": {"kubernetes.io/hostname": "h0", "topology.kubernetes.io/region": "gone"}}}
    assert copied(vmi, GUEST, HOST) == {
        "topology.kubernetes.io/zone": "a",
        "topology.kubernetes.io/region": None,
        "kubernetes.io/hostname": "h1",
    }


def test_other_instances_get_nothing() -> None:
    assert copied({"metadata": {}}, {"harvesterhci.io/creator": "harvester"}, HOST) == {}
    assert copied({"metadata": {}}, GUEST, None) == {}
