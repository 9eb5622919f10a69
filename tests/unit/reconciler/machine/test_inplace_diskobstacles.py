"""What keeps disks of a running VM from growing or being added, and which conditions say so."""

from __future__ import annotations

import copy

import pytest

from caphv.api.object import Obj
from caphv.runtime.errors import ServerFault
from tests.support.reconciler.inplace import DISK, EMPTY, Machine, claim_sizes

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("access_mode", ["ReadWriteOnce", ""])
async def test_disk_that_would_keep_the_vm_from_migrating_is_not_added(access_mode: str) -> None:
    machine = Machine()
    machine.harvester.offered = ["ReadWriteOnce"]
    condition = await machine.update(volumes=[DISK, {**EMPTY, "accessMode": access_mode}])
    assert claim_sizes(machine) == ["40Gi"]
    assert "of StorageClass longhorn would not be ReadWriteMany" in condition["message"]


async def test_disk_of_a_class_that_does_not_offer_its_mode_is_not_added() -> None:
    machine = Machine()
    machine.harvester.offered = ["ReadWriteOnce"]
    condition = await machine.update(volumes=[DISK, {**EMPTY, "volumeMode": "Block"}])
    assert claim_sizes(machine) == ["40Gi"]
    assert "of StorageClass longhorn would not be ReadWriteMany" in condition["message"]

    machine.harvester.offered = ["ReadWriteOnce", "ReadWriteMany"]
    machine.forget()
    await machine.update()
    assert claim_sizes(machine) == ["40Gi", "10Gi"]


async def test_disk_of_a_class_that_does_not_exist_is_not_added_and_can_be_taken_back() -> None:
    machine = Machine()
    machine.harvester.absent_class = "typo"
    before = copy.deepcopy(machine.harvester.vm)
    condition = await machine.update(volumes=[DISK, {**EMPTY, "storageClass": "typo"}])
    assert condition["message"] == "the VM cannot get disks: StorageClass typo does not exist, or may not be read"
    assert machine.harvester.vm == before
    assert (await machine.update(volumes=[DISK]))["status"] == "True"


async def test_disk_is_not_added_while_volumes_are_migrated() -> None:
    machine = Machine()
    machine.harvester.vm["spec"]["updateVolumesStrategy"] = "Migration"
    await machine.update(volumes=[DISK, EMPTY])
    by_type = {entry["type"]: entry for entry in machine.conditions}
    assert "its volumes were migrated" in by_type["DisksCanBeAdded"]["message"]
    assert by_type["DisksCanGrow"]["status"] == "True"
    assert claim_sizes(machine) == ["40Gi"]


async def test_failure_of_harvester_leaves_the_conditions_as_they_are() -> None:
    machine = Machine()
    await machine.update()
    machine.obj["status"] = {"conditions": copy.deepcopy(machine.conditions)}
    machine.forget()
    machine.harvester.failure = ServerFault(503, "ServiceUnavailable", "etcd")
    await machine.update()
    by_type = {entry["type"]: entry["status"] for entry in machine.conditions}
    assert (by_type["DisksCanGrow"], by_type["DisksCanBeAdded"]) == ("True", "True")
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}])
    assert claim_sizes(machine) == ["40Gi"], "what is not certain is not done"
    assert "Harvester does not answer" in condition["message"]

    machine.harvester.failure = None
    await machine.update()
    assert claim_sizes(machine) == ["60Gi"]


async def test_class_that_cannot_grow_is_asked_again() -> None:
    machine = Machine()
    machine.harvester.storage_class["allowVolumeExpansion"] = False
    await machine.update()
    assert machine.requeue_after == 600
    machine.harvester.storage_class["allowVolumeExpansion"] = True
    machine.forget()
    await machine.update()
    assert machine.requeue_after is None


async def test_where_nothing_updates_machines_harvester_is_not_asked() -> None:
    machine = Machine()
    await machine.update()
    machine.obj["status"] = {"conditions": copy.deepcopy(machine.conditions)}
    assert {"DisksCanGrow", "DisksCanBeAdded"} <= {entry["type"] for entry in machine.conditions}
    machine.forget()
    machine.harvester.asked.clear()
    machine.updates_in_place = False
    before = copy.deepcopy(machine.harvester.vm)
    await machine.reconcile(volumes=[{**DISK, "volumeSize": "60Gi"}, EMPTY])
    assert machine.harvester.asked == []
    assert not {"DisksCanGrow", "DisksCanBeAdded"} & {entry["type"] for entry in machine.conditions}
    assert (machine.harvester.vm, machine.requeue_after) == (before, None)


@pytest.mark.parametrize(
    ("release", "storage_class", "growth", "addition"),
    [
        ("v1.8.2", {}, "", ""),
        ("v1.7.3", {}, "", "Harvester 1.7 does not support it, 1.8 and later do"),
        ("v1.6.1", {}, "Harvester 1.6 does not support it", "Harvester 1.6 does not support it"),
        ("head", {}, "the release of Harvester is unknown", "the release of Harvester is unknown"),
        ("v1.8.2", {"provisioner": "lvm.driver.harvesterhci.io"}, "StorageClass lh-x is not of driver.longhorn.io", ""),
        ("v1.8.2", {"allowVolumeExpansion": False}, "StorageClass lh-x has no allowVolumeExpansion", ""),
        ("v1.8.2", {"parameters": {"frontend": "ublk"}}, "StorageClass lh-x has frontend ublk", ""),
        ("v1.8.2", {"parameters": {"encrypted": "true"}}, "StorageClass lh-x is encrypted and lacks", ""),
    ],
)
async def test_disks_that_cannot_change_stay_and_conditions_say_why(
    release: str, storage_class: Obj, growth: str, addition: str
) -> None:
    machine = Machine()
    containers = [{"image": f"rancher/harvester:{release}"}]
    machine.harvester.deployment_object = {"spec": {"template": {"spec": {"containers": containers}}}}
    machine.harvester.storage_class |= storage_class
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}, EMPTY])

    conditions_by_type = {entry["type"]: entry for entry in machine.conditions}
    for kind, obstacle in (("DisksCanGrow", growth), ("DisksCanBeAdded", addition)):
        assert conditions_by_type[kind]["status"] == ("False" if obstacle else "True")
        assert obstacle in conditions_by_type[kind].get("message", "")
        assert obstacle in condition["message"]
    assert claim_sizes(machine) == (["40Gi"] if growth else ["60Gi"]) + ([] if addition else ["10Gi"])
    assert machine.requeue_after == (60 if growth or addition else None)
