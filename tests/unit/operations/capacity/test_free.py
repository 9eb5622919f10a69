"""What is free on a Harvester."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Obj
from caphv.api.quantity import readable
from operations.capacity.free import CapacityObjects, capacity_of
from operations.read.objects import HarvesterObjects
from tests.support.clusters import condition

pytestmark = pytest.mark.unit

GIB = 1024**3


def host(name: str, zone: str = "", **spec: Any) -> Obj:
    return {
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone} if zone else {}},
        "spec": spec,
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi"}, "conditions": [condition("Ready", "True")]},
    }


def vm(where: str, cpu: str, memory: str) -> Obj:
    requests = {"requests": {"cpu": cpu, "memory": memory}}
    return {"spec": {"domain": {"resources": requests}}, "status": {"nodeName": where}}


def test_hosts_and_zones_have_what_vms_do_not_request() -> None:
    hosts = [host("a", "north"), host("b", "north"), host("c"), host("closed", "south", unschedulable=True)]
    instances = [vm("a", "500m", "4Gi"), vm("a", "1", "2Gi"), vm("c", "8", "32Gi")]
    found = capacity_of(CapacityObjects(HarvesterObjects(hosts=hosts, instances=instances), all_vms=True))
    assert [(room.name, room.hosts, room.cpu_free, room.memory_free // GIB) for room in found.zones] == [
        ("north", 2, 14.5, 58)
    ]
    assert (found.total.hosts, found.total.cpu, found.total.cpu_free) == (3, 24.0, 14.5)
    assert [(room.name, room.memory_free // GIB) for room in found.hosts] == [("a", 26), ("b", 32), ("c", 0)]


def test_hosts_that_report_their_pods_need_no_right_to_see_all_vms() -> None:
    report = {"annotations": {"management.cattle.io/pod-requests": '{"cpu":"2","memory":"30Gi"}'}}
    one, other = host("a"), host("b")
    one["metadata"] |= report
    found = capacity_of(CapacityObjects(HarvesterObjects(hosts=[one, other])))
    assert (found.all_vms, found.total.memory_free // GIB) == (False, 34)
    other["metadata"] |= report
    found = capacity_of(CapacityObjects(HarvesterObjects(hosts=[one, other])))
    assert (found.all_vms, found.total.memory_free // GIB) == (True, 4)


def test_quotas_have_what_is_left_of_each_limit() -> None:
    quota = {
        "metadata": {"namespace": "vms", "name": "default-resource-quota"},
        "spec": {"hard": {"limits.cpu": "10", "limits.memory": "20Gi", "broken": []}},
        "status": {"used": {"limits.cpu": "9500m", "limits.memory": "24Gi"}},
    }
    found = capacity_of(CapacityObjects(HarvesterObjects(), quotas=[quota])).quotas
    assert [(each.resource, each.free) for each in found] == [("limits.cpu", 0.5), ("limits.memory", -4.0 * GIB)]


def test_storage_is_what_longhorn_may_still_schedule() -> None:
    disks = {"fine": {"allowScheduling": True, "storageReserved": 10}, "closed": {"allowScheduling": False}}
    status = {"fine": {"storageMaximum": 110, "storageScheduled": 150}, "closed": {"storageMaximum": 999}}
    node = {"spec": {"disks": disks}, "status": {"diskStatus": status}}
    closed = {**node, "spec": {"allowScheduling": False, "disks": disks}}
    found = capacity_of(CapacityObjects(HarvesterObjects(), disks=[node, closed, {}], over_provisioning=200))
    assert found.storage is not None
    assert (found.storage.total, found.storage.free) == (200, 50)
    assert capacity_of(CapacityObjects(HarvesterObjects())).storage is None
    # A disk of which the spec says nothing takes volumes.
    bare = {"spec": {}, "status": {"diskStatus": {"new": {"storageMaximum": 50}, "empty": {}}}}
    found = capacity_of(CapacityObjects(HarvesterObjects(), disks=[bare, {"status": {}}], over_provisioning=100))
    assert found.storage is not None
    assert (found.storage.total, found.storage.free) == (50, 50)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.0, "", "2"),
        (2.25, "", "2.2"),
        (1536 * 1024**2, "B", "1.5 GiB"),
        (4 * GIB, "B", "4 GiB"),
        (-GIB, "B", "-1 GiB"),
    ],
)
def test_amounts_are_read_by_people(value: float, unit: str, text: str) -> None:
    assert readable(value, unit) == text
