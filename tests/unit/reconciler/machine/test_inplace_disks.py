"""Disks of a running VM grow and are added in place, next to changes of its size."""

from __future__ import annotations

import copy
import json

import pytest

from caphv.api import names
from caphv.api.ownership import record
from reconciler.machine.growth import updated_message
from reconciler.machine.vmclaims import machine_disks, own_claims
from sandbox.harvester import hotplug
from tests.support.reconciler.inplace import DISK, EMPTY, HOSTS, Machine, claim_sizes, claim_templates, complete
from tests.support.reconciler.machines import OWNER

pytestmark = pytest.mark.unit


async def test_disk_grows_by_the_annotation_of_its_vm_until_the_instance_has_it() -> None:
    machine = Machine()
    await complete(machine)
    template = copy.deepcopy(machine.harvester.vm["spec"]["template"])
    before = claim_sizes(machine)
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}])
    assert (before, claim_sizes(machine)) == (["40Gi"], ["60Gi"])
    assert machine.harvester.vm["spec"]["template"] == template
    assert (condition["status"], condition["reason"], machine.events) == ("False", "VMUpdating", ["VMUpdated"])
    assert condition["message"] == "Harvester changes disks of the VM: volumes[0] grows from 40Gi to 60Gi"

    condition = await complete(machine)
    assert (condition["status"], condition["message"]) == ("True", updated_message(machine.obj["spec"]))
    assert machine.events == ["VMUpdated"]


async def test_disk_is_added_to_a_running_vm_and_is_the_machines() -> None:
    machine = Machine()
    boot = copy.deepcopy(machine.harvester.vm["spec"]["template"]["spec"]["volumes"])
    condition = await machine.update(volumes=[DISK, EMPTY])
    spec = machine.harvester.vm["spec"]["template"]["spec"]
    *others, added = spec["volumes"]
    claim = added["persistentVolumeClaim"]["claimName"]
    assert others == boot
    assert added == {
        "name": claim.removeprefix("one-"),
        "persistentVolumeClaim": {"claimName": claim, "hotpluggable": True},
    }
    assert spec["domain"]["devices"]["disks"][-1] == {"name": added["name"], "disk": {"bus": "scsi"}}
    assert claim_sizes(machine) == ["40Gi", "10Gi"]
    assert condition["message"] == "Harvester changes disks of the VM: volumes[1] is being attached (not seen yet)"

    condition = await complete(machine)
    assert (condition["status"], condition["message"]) == ("True", updated_message(machine.obj["spec"]))
    claims = {claim: {"metadata": {"annotations": record(OWNER)}}}
    assert claim in own_claims(machine.harvester.vm, claims, OWNER, 2)
    assert await machine.update(volumes=[DISK, EMPTY, EMPTY])
    assert len(machine_disks(machine.harvester.vm)) == 3


async def test_disk_that_is_larger_already_stays() -> None:
    machine = Machine()
    templates = claim_templates(machine)
    templates[0]["spec"]["resources"]["requests"]["storage"] = "80Gi"
    machine.harvester.vm["metadata"]["annotations"][names.VOLUME_CLAIM_TEMPLATES_ANNOTATION] = json.dumps(templates)
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}])
    assert (claim_sizes(machine), condition["reason"]) == (["80Gi"], "VMDiffers")


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "[{}]", '[{"metadata": {"name": "one-disk-0-aaaaa"}}]'])
async def test_annotation_that_a_user_broke_is_not_rewritten(text: str) -> None:
    machine = Machine()
    machine.harvester.vm["metadata"]["annotations"][names.VOLUME_CLAIM_TEMPLATES_ANNOTATION] = text
    before = copy.deepcopy(machine.harvester.vm["spec"]["template"]["spec"]["volumes"])
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}])
    assert machine.harvester.vm["metadata"]["annotations"][names.VOLUME_CLAIM_TEMPLATES_ANNOTATION] == text
    assert machine.harvester.vm["spec"]["template"]["spec"]["volumes"] == before
    by_type = {entry["type"]: entry for entry in machine.conditions}
    assert by_type["DisksCanGrow"]["status"] == "False"
    assert condition["reason"] in ("VMUpdating", "VMDiffers")


async def test_vm_gets_its_size_before_disks_are_added() -> None:
    """A disk that is being attached and the migration that gives the size keep each other waiting."""
    machine = Machine()
    condition = await machine.update(cpu=4, volumes=[{**DISK, "volumeSize": "60Gi"}, EMPTY])
    assert (machine.sockets, claim_sizes(machine)) == (4, ["60Gi"])
    assert (condition["status"], condition["reason"]) == ("False", "VMUpdating")
    assert condition["message"] == "the VM cannot get disks: it gets 4 CPUs and 4Gi of memory first"
    assert machine.requeue_after == 60
    await machine.update()
    assert claim_sizes(machine) == ["60Gi"], "the VM has not migrated yet"

    machine.vmi["status"] |= hotplug.current_sizes({"spec": machine.harvester.vm["spec"]["template"]["spec"]})
    await machine.update()
    assert claim_sizes(machine) == ["60Gi", "10Gi"]
    assert machine.harvester.vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"]
    assert (await complete(machine))["status"] == "True"


async def test_vm_that_cannot_grow_gets_no_disk() -> None:
    machine = Machine()
    machine.harvester.hosts = HOSTS[:1]
    condition = await machine.update(cpu=4, volumes=[DISK, EMPTY])
    assert (machine.sockets, claim_sizes(machine)) == (2, ["40Gi"])
    assert condition["message"].startswith("the VM cannot grow: ")


@pytest.mark.parametrize("refused", ["sockets", "claims"])
async def test_change_that_harvester_refuses_keeps_no_other_from_the_vm(refused: str) -> None:
    machine = Machine()
    machine.harvester.refused = "domain" if refused == "sockets" else "annotations"
    condition = await machine.update(cpu=4, volumes=[{**DISK, "volumeSize": "60Gi"}])
    assert machine.sockets == (2 if refused == "sockets" else 4)
    assert claim_sizes(machine) == (["60Gi"] if refused == "sockets" else ["40Gi"])
    part = "4 CPUs and 4Gi of memory" if refused == "sockets" else "the disks of its machine"
    assert condition["message"] == f"Harvester refuses {part}: exceeded quota"


@pytest.mark.parametrize(("mode", "grows"), [("Block", True), ("Filesystem", False)])
async def test_file_system_that_was_added_cannot_grow(mode: str, grows: bool) -> None:
    machine = Machine()
    empty = {**EMPTY, "volumeMode": mode}
    await machine.update(volumes=[DISK, empty])
    condition = await machine.update(volumes=[DISK, {**empty, "volumeSize": "20Gi"}])
    assert claim_sizes(machine) == ["40Gi", "20Gi" if grows else "10Gi"]
    assert ("was added and has volumeMode Filesystem" in condition["message"]) is not grows
