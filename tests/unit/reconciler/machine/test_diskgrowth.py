"""A VM whose disks have followed its machine has no difference, whatever its disks were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Obj
from reconciler.harvester.storageclasses import class_obstacle
from reconciler.machine.diskgrowth import added_disks, classes_of, larger_disks, pending_disks
from reconciler.machine.drift import drift
from reconciler.machine.vm import virtual_machine
from reconciler.machine.vmclaims import machine_disks
from sandbox.harvester.disks import instance_patch, volume_states
from sandbox.harvester.informers import claim_templates
from sandbox.harvester.mutations import MutationSettings, mutate
from sandbox.harvester.releases import release_named
from tests.support.ippools import merge
from tests.support.reconciler.machines import inputs

pytestmark = pytest.mark.unit

SIZES = st.integers(1, 9)
HOTPLUGGED: Obj = {"name": "disk-9", "persistentVolumeClaim": {"claimName": "pvc-9", "hotpluggable": True}}


def volumes(sizes: list[int]) -> list[Obj]:
    first: Obj = {"volumeType": "image", "imageName": "default/sles", "bootOrder": 1}
    others: Obj = {"volumeType": "storageClass", "storageClass": "longhorn"}
    return [{**(others if index else first), "volumeSize": f"{size}0Gi"} for index, size in enumerate(sizes)]


def vm_of(sizes: list[int], **machine: Any) -> Obj:
    made = inputs(volumes=volumes(sizes), **machine)
    return virtual_machine(replace(made, hotplug=True))


def follow(vm: Obj, expected: Obj) -> Obj:
    """Return a VM after its update in place."""
    larger = merge(vm, larger_disks(vm, expected))
    return merge(larger, added_disks(larger, expected))


@given(st.lists(SIZES, min_size=1, max_size=3), st.lists(SIZES, max_size=3), st.lists(SIZES, max_size=2), st.booleans())
def test_vm_that_has_followed_does_not_differ(
    before: list[int], growth: list[int], more: list[int], has_csi_volume: bool
) -> None:
    vm = mutate(vm_of(before), None, MutationSettings())
    if has_csi_volume:
        vm["spec"]["template"]["spec"]["volumes"].append(HOTPLUGGED)
    grown = [size + (growth[index] if index < len(growth) else 0) for index, size in enumerate(before)]
    first = vm_of([*grown, *more[:1]])
    # A second update adds to disks that the first has added, perhaps after a move to another cluster.
    second = vm_of([size + 1 for size in [*grown, *more]])
    for expected in (first, second):
        vm = follow(vm, expected)
        assert drift(expected, vm) == ()
        assert larger_disks(vm, expected) == added_disks(vm, expected) == {}
        names = [volume["name"] for volume in vm["spec"]["template"]["spec"]["volumes"]]
        assert len(names) == len(set(names))
    assert len(machine_disks(vm)) == len(grown) + len(more)
    assert classes_of(vm) == ["lh-uuid", "longhorn"][: 1 + (len(machine_disks(vm)) > 1)]


@given(st.lists(SIZES, min_size=1, max_size=3), st.integers(0, 2))
def test_instance_lacks_nothing_once_harvester_has_followed(before: list[int], more: int) -> None:
    old, expected = vm_of(before), vm_of([size + 1 for size in before] + [1] * more)
    vm = follow(mutate(old, None, MutationSettings()), expected)
    spec, wanted = old["spec"]["template"]["spec"], volumes([size + 1 for size in before] + [1] * more)
    states = volume_states(spec["volumes"], spec["domain"]["devices"]["disks"], claims_of(old))
    vmi: Obj = {"metadata": {"name": "node-1"}, "spec": spec, "status": {"volumeStatus": states}}
    assert len(list(pending_disks(vm, vmi, wanted))) == len(wanted)
    vmi = merge(vmi, instance_patch(vm, vmi, claims_of(vm), release_named("1.8")))
    assert list(pending_disks(vm, vmi, wanted)) == []


def claims_of(vm: Obj) -> dict[str, Obj]:
    claims = {}
    for template in claim_templates(vm):
        status = {"phase": "Bound", "capacity": template["spec"]["resources"]["requests"]}
        claims[template["metadata"]["name"]] = {**template, "status": status}
    return claims


@pytest.mark.parametrize(
    ("fields", "obstacle"),
    [
        ({}, ""),
        ({"parameters": {"dataEngine": "v2", "frontend": "nvmf"}}, ""),
        ({"parameters": {"encrypted": "true", "csi.storage.k8s.io/node-expand-secret-name": "a"}}, ""),
        ({"parameters": None}, ""),
        ({"provisioner": "rbd.csi.ceph.com"}, "StorageClass gold is not of driver.longhorn.io"),
    ],
)
def test_class_of_longhorn_grows(fields: Obj, obstacle: str) -> None:
    longhorn = {"provisioner": "driver.longhorn.io", "allowVolumeExpansion": True}
    assert class_obstacle({"metadata": {"name": "gold"}, **longhorn, **fields}) == obstacle
