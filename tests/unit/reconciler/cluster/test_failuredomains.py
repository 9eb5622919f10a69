"""Which places a Harvester offers, and which of them to control planes."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from reconciler.harvester.failuredomains import failure_domains

pytestmark = pytest.mark.unit


def host(name: str, zone: str = "") -> Obj:
    labels = {"kubernetes.io/hostname": name} | ({"topology.kubernetes.io/zone": zone} if zone else {})
    return {"metadata": {"name": name, "labels": labels}}


def offered(hosts: list[Obj], *control_plane: str) -> dict[str, bool]:
    return {domain["name"]: domain["controlPlane"] for domain in failure_domains(hosts, control_plane)}


def test_every_zone_is_for_control_planes_unless_some_are_named() -> None:
    hosts = [host("a", "zone-2"), host("b", "zone-1"), host("c", "zone-2")]
    assert offered(hosts) == {"zone-1": True, "zone-2": True}
    assert offered(hosts, "zone-2", "elsewhere") == {"zone-1": False, "zone-2": True}


def test_hosts_are_named_where_one_has_no_zone() -> None:
    hosts = [host("b", "zone-1"), host("a")]
    assert offered(hosts, "a") == {"a": True, "b": False}
    assert list(offered(hosts)) == ["a", "b"]


def test_nothing_is_offered_without_hosts() -> None:
    assert failure_domains([], ["zone-1"]) == []
