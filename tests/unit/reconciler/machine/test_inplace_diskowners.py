"""Disks that are not the machine's, or not as it declares them, stay as they are."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from caphv.api import names
from caphv.api.object import Obj
from caphv.api.ownership import record
from reconciler.machine.vmclaims import own_claims
from tests.support.reconciler.inplace import (
    DISK,
    EMPTY,
    Machine,
    claim_sizes,
    claim_templates,
    complete,
    write_templates,
)
from tests.support.reconciler.machines import OWNER

pytestmark = pytest.mark.unit


def attach(machine: Machine, claim: str, size: str, **source: Any) -> None:
    """A user attaches a claim in Harvester's UI."""
    spec = machine.harvester.vm["spec"]["template"]["spec"]
    spec["volumes"].append({"name": "disk-1", "persistentVolumeClaim": {"claimName": claim, **source}})
    spec["domain"]["devices"]["disks"].append({"name": "disk-1", "disk": {"bus": "virtio"}})
    template = {
        "metadata": {"name": claim, "annotations": {}},
        "spec": {"storageClassName": "longhorn", "resources": {"requests": {"storage": size}}},
    }
    write_templates(machine, [*claim_templates(machine), template])


@pytest.mark.parametrize("claim", ["users-data", "one-disk-1-qqqqq", "one-disk-7-qqqqq", "one-disk-0-qqqqq"])
@pytest.mark.parametrize("size", ["10Gi", "500Gi"])
async def test_disk_of_a_user_is_never_enlarged(claim: str, size: str) -> None:
    machine = Machine()
    attach(machine, claim, "1Gi")
    before = copy.deepcopy(machine.harvester.vm)
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}, {**EMPTY, "volumeSize": size}])
    assert machine.harvester.vm == before
    by_type = {entry["type"]: entry["status"] for entry in machine.conditions}
    assert (by_type["DisksCanGrow"], by_type["DisksCanBeAdded"]) == ("False", "False")
    assert (condition["status"], condition["reason"]) == ("False", "VMUpdating")


async def test_claim_with_the_record_of_another_is_never_enlarged() -> None:
    machine = Machine()
    await machine.update(volumes=[DISK, EMPTY])
    claim = claim_templates(machine)[1]["metadata"]["name"]
    machine.claims[claim] = {"metadata": {"annotations": record(replace(OWNER, uid="other"))}}
    await machine.update(volumes=[DISK, {**EMPTY, "volumeSize": "20Gi"}])
    assert claim_sizes(machine) == ["40Gi", "10Gi"]


async def test_disk_keeps_its_record_when_its_machine_moves_to_another_cluster() -> None:
    machine = Machine()
    empty = {**EMPTY, "volumeMode": "Block"}
    await machine.update(volumes=[DISK, empty])
    claim = claim_templates(machine)[1]["metadata"]["name"]
    moved = replace(OWNER, uid="moved")
    machine.owner = moved
    machine.obj["metadata"]["uid"] = "moved"
    await machine.update(volumes=[DISK, {**empty, "volumeSize": "20Gi"}])
    assert claim_sizes(machine) == ["40Gi", "10Gi"], "nothing proves that the disk is the machine's"
    machine.claims[claim] = {"metadata": {"annotations": record(moved)}}
    await machine.update()
    assert claim_sizes(machine) == ["40Gi", "20Gi"]


@pytest.mark.parametrize("keeps_template", [True, False])
async def test_after_a_disk_was_detached_no_disk_changes(keeps_template: bool) -> None:
    machine = Machine()
    empty = {**EMPTY, "volumeMode": "Block"}
    await machine.update(volumes=[DISK, empty, empty])
    spec = machine.harvester.vm["spec"]["template"]["spec"]
    spec["volumes"] = [volume for volume in spec["volumes"] if not volume["name"].startswith("disk-1-")]
    devices = spec["domain"]["devices"]
    devices["disks"] = [disk for disk in devices["disks"] if not disk["name"].startswith("disk-1-")]
    if not keeps_template:
        first, _, third = claim_templates(machine)
        write_templates(machine, [first, third])
    before = copy.deepcopy(machine.harvester.vm)
    sizes = ("50Gi", "90Gi", "60Gi")
    volumes = [{**volume, "volumeSize": size} for volume, size in zip((DISK, empty, empty), sizes, strict=True)]
    condition = await machine.update(volumes=volumes)
    assert machine.harvester.vm == before
    assert "the VM has disks 0, 2, and its machine disks 0 to 2" in condition["message"]


async def test_last_disk_that_was_detached_is_not_attached_again() -> None:
    machine = Machine()
    await machine.update(volumes=[DISK, EMPTY])
    spec = machine.harvester.vm["spec"]["template"]["spec"]
    spec["volumes"].pop()
    spec["domain"]["devices"]["disks"].pop()
    before = copy.deepcopy(machine.harvester.vm)
    await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}, EMPTY])
    assert machine.harvester.vm == before


async def test_disks_that_differ_otherwise_do_not_change() -> None:
    machine = Machine()
    templates = claim_templates(machine)
    templates[0]["metadata"]["annotations"][names.IMAGE_ID_ANNOTATION] = "default/other"
    write_templates(machine, templates)
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}, EMPTY])
    assert claim_sizes(machine) == ["40Gi"]
    assert "default/other" in condition["message"]


async def test_hotplugged_disk_whose_claim_harvester_replaces_stays_the_machines() -> None:
    machine = Machine()
    await machine.update(volumes=[DISK, EMPTY])
    volume = machine.harvester.vm["spec"]["template"]["spec"]["volumes"][-1]
    templates = claim_templates(machine)
    old = templates[1]["metadata"]["name"]
    templates[1]["metadata"]["name"] = volume["persistentVolumeClaim"]["claimName"] = "restore-abc"
    write_templates(machine, templates)
    condition = await complete(machine)
    assert condition["status"] == "True", condition
    before = copy.deepcopy(machine.harvester.vm)
    condition = await machine.update(volumes=[DISK, {**EMPTY, "volumeSize": "20Gi"}])
    assert machine.harvester.vm == before
    assert (condition["status"], condition["reason"]) == ("False", "VMDiffers")
    by_type = {entry["type"]: entry for entry in machine.conditions}
    for kind in ("DisksCanGrow", "DisksCanBeAdded"):
        assert "restore-abc does not have the name of a disk of the machine" in by_type[kind]["message"]

    # Only its record says whether the claim may be deleted.
    owner = replace(OWNER, uid="u")
    vm = machine.harvester.vm
    assert "restore-abc" not in own_claims(vm, {}, owner, 2)
    claims: dict[str, Obj] = {"restore-abc": {"metadata": {"annotations": record(owner)}}}
    assert {"restore-abc"} == set(own_claims(vm, claims, owner, 2)) - {old, "one-disk-0", *own_claims(vm, {}, owner, 2)}


async def test_disks_that_others_hotplug_are_no_difference_and_stay() -> None:
    machine = Machine()
    spec = machine.harvester.vm["spec"]["template"]["spec"]
    spec["volumes"].append({"name": "disk-1", "persistentVolumeClaim": {"claimName": "pvc-1", "hotpluggable": True}})
    spec["domain"]["devices"]["disks"].append({"name": "disk-1", "disk": {"bus": "scsi"}})
    assert (await machine.update())["status"] == "True"
    await machine.update(volumes=[DISK, EMPTY])
    volumes = [volume["name"] for volume in machine.harvester.vm["spec"]["template"]["spec"]["volumes"]]
    assert volumes[:3] == ["disk-0", "cloudinitdisk", "disk-1"]
    assert len(set(volumes)) == len(volumes) == 4
