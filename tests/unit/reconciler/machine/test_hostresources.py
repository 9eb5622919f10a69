"""Devices, pinned CPUs and huge pages: what a VM gets, and what is no difference."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.hostresources import node_resources
from caphv.api.object import Obj
from caphv.api.virtualmachine import devices_of
from reconciler.machine.drift import drift
from reconciler.machine.vm import virtual_machine
from sandbox.harvester import pinning
from sandbox.harvester.mutations import MutationSettings, mutate
from sandbox.harvester.releases import RELEASES
from tests.support.reconciler.machines import inputs
from webhooks.admission import Review, validate

pytestmark = pytest.mark.unit

A10, USB = "nvidia.com/GA102GL_A10", "kubevirt.io/node1-0951-16dc-001002"
DEVICES = [{"resourceName": A10, "count": 2, "nodeResource": "nvidia.com/gpu"}, {"resourceName": USB}]
REALTIME = {"cpuPinning": True, "isolateEmulatorThread": True, "numaPassthrough": True, "hugepages": "1Gi"}

machines = st.fixed_dictionaries(
    {"cpu": st.integers(1, 64), "memory": st.sampled_from(["2Gi", "2050Mi", "8Gi", "17179869184", "4.5Gi"])},
    optional={
        "devices": st.lists(
            st.fixed_dictionaries({"resourceName": st.sampled_from([A10, USB])}, optional={"count": st.integers(1, 4)}),
            max_size=2,
        ),
        "cpuPinning": st.booleans(),
        "isolateEmulatorThread": st.booleans(),
        "numaPassthrough": st.booleans(),
        "hugepages": st.sampled_from(["2Mi", "1Gi"]),
        "cpuMax": st.integers(1, 64),
    },
)


def spec_of(vm: Obj) -> Obj:
    spec: Obj = vm["spec"]["template"]["spec"]
    return spec


def is_valid(machine: Obj) -> bool:
    """Whether the webhook accepts a machine."""
    return not validate(Review("CREATE", "HarvesterMachine", "v1beta1", machine)).errors


def test_each_device_is_a_host_device_of_its_own() -> None:
    devices = spec_of(virtual_machine(inputs(devices=DEVICES)))["domain"]["devices"]
    assert devices["hostDevices"] == [
        {"name": "device-0", "deviceName": A10},
        {"name": "device-1", "deviceName": A10},
        {"name": "device-2", "deviceName": USB},
    ]
    assert "gpus" not in devices


def test_pinned_vm_has_all_that_kubevirt_needs() -> None:
    domain = spec_of(virtual_machine(inputs(cpu=4, memory="8Gi", **REALTIME)))["domain"]
    assert domain["cpu"] == {
        "cores": 4,
        "sockets": 1,
        "threads": 1,
        "dedicatedCpuPlacement": True,
        "isolateEmulatorThread": True,
        "numa": {"guestMappingPassthrough": {}},
    }
    assert domain["memory"] == {"guest": "8Gi", "hugepages": {"pageSize": "1Gi"}}


@pytest.mark.parametrize(
    "fields", [{"devices": []}, {"cpuPinning": False, "isolateEmulatorThread": False, "numaPassthrough": False}]
)
def test_fields_that_ask_for_nothing_change_nothing(fields: Obj) -> None:
    assert virtual_machine(inputs(**fields)) == virtual_machine(inputs())


# The domains of VMs before devices existed. A byte more, and each such VM would differ from its machine.
DISKS_AND_NICS: Obj = {
    "disks": [
        {"bootOrder": 1, "disk": {"bus": "virtio"}, "name": "disk-0"},
        {"disk": {"bus": "virtio"}, "name": "disk-1"},
        {"disk": {"bus": "virtio"}, "name": "cloudinitdisk"},
    ],
    "inputs": [{"bus": "usb", "name": "tablet", "type": "tablet"}],
    "interfaces": [
        {"bridge": {}, "model": "virtio", "name": "nic-1"},
        {"bridge": {}, "model": "virtio", "name": "nic-2"},
    ],
}
PLAIN: Obj = {
    "cpu": {"cores": 4, "sockets": 1, "threads": 1},
    "devices": DISKS_AND_NICS,
    "firmware": {"uuid": "uid-1"},
    "memory": {"guest": "8Gi"},
    "resources": {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"memory": "8Gi"}},
}
GROWING: Obj = {
    **PLAIN,
    "cpu": {"cores": 1, "maxSockets": 4, "sockets": 2, "threads": 1},
    "memory": {"guest": "4Gi", "maxGuest": "8Gi"},
}


@pytest.mark.parametrize(
    ("machine", "hotplug", "domain"),
    [({}, False, PLAIN), ({"cpu": 2, "cpuMax": 4, "memory": "4Gi", "memoryMax": "8Gi"}, True, GROWING)],
)
@pytest.mark.parametrize("fields", [{}, {"devices": [], "cpuPinning": False}])
def test_machine_without_resources_of_its_host_gets_the_previous_vm(
    machine: Obj, hotplug: bool, domain: Obj, fields: Obj
) -> None:
    assert spec_of(virtual_machine(replace(inputs(**machine, **fields), hotplug=hotplug)))["domain"] == domain


@pytest.mark.parametrize("field", ["devices", "cpuPinning"])
def test_vm_with_resources_of_its_host_never_declares_growth(field: str) -> None:
    # A machine that was cloned from a stored template may break the rule.
    value: Any = DEVICES if field == "devices" else True
    vm = virtual_machine(replace(inputs(cpuMax=16, **{field: value}), hotplug=True))
    assert "maxSockets" not in spec_of(vm)["domain"]["cpu"]


@given(machines, st.sampled_from(sorted(RELEASES)), st.integers(100, 1600), st.integers(100, 400))
def test_what_rules_accept_is_admitted_and_no_drift(fields: Obj, release: str, cpu: int, memory: int) -> None:
    machine = inputs(**fields)
    if not is_valid(machine.machine):
        return
    expected = virtual_machine(machine)
    admitted = mutate(expected, None, MutationSettings(cpu, memory, release=RELEASES[release]))
    assert pinning.denial_reason(spec_of(admitted)["domain"]) == ""
    assert devices_of(spec_of(admitted)) == devices_of(spec_of(expected))
    assert drift(expected, admitted) == ()
    assert mutate(admitted, admitted, MutationSettings(cpu, memory, release=RELEASES[release])) == admitted


def test_move_of_gpus_and_names_of_allocated_devices_are_no_difference() -> None:
    expected = virtual_machine(inputs(devices=DEVICES))
    actual = copy.deepcopy(expected)
    devices = spec_of(actual)["domain"]["devices"]
    devices["gpus"] = [{"name": "harvester-1-000004000", "deviceName": A10}, devices["hostDevices"].pop(0)]
    devices["hostDevices"] = [{"name": "harvester-1-usb", "deviceName": USB}]
    assert drift(expected, actual) == ()
    assert drift(expected, mutate(actual, None, MutationSettings())) == ()
    assert "gpus" not in spec_of(mutate(actual, None, MutationSettings()))["domain"]["devices"]


def test_devices_and_settings_of_the_vm_alone_are_no_difference() -> None:
    expected = virtual_machine(inputs())
    actual = virtual_machine(inputs(devices=DEVICES, **REALTIME))
    assert drift(expected, actual) == ()
    more = virtual_machine(inputs(devices=[{**DEVICES[0], "count": 3}, DEVICES[1]]))
    assert drift(virtual_machine(inputs(devices=DEVICES)), more) == ()


def test_what_a_vm_lacks_is_named() -> None:
    expected = virtual_machine(inputs(devices=DEVICES, **REALTIME))
    assert drift(expected, virtual_machine(inputs(devices=[DEVICES[1]]))) == (
        f"devices lack 2 {A10}",
        "CPU pinning is off, not on",
        "isolated emulator thread is off, not on",
        "NUMA passthrough is off, not on",
        "huge pages is off, not 1Gi",
    )


def test_difference_can_be_taken_into_the_spec() -> None:
    """Rule `machine-immutable` finds the fields in the message."""
    vm = virtual_machine(inputs())
    message = "; ".join(drift(virtual_machine(inputs(devices=DEVICES, **REALTIME)), vm))
    status = {
        "ready": True,
        "conditions": [{"type": "VMUpToDate", "status": "False", "reason": "VMDiffers", "message": message}],
    }
    old = {**inputs(devices=DEVICES, **REALTIME).machine, "status": status}
    new = {**inputs().machine, "status": status}
    verdict = validate(Review("UPDATE", "HarvesterMachine", "v1beta1", new, old))
    assert verdict.errors == ()
    fields = {finding.path[-1] for finding in verdict.warnings}
    assert {"devices", *REALTIME} <= fields


def test_capacity_of_a_node_is_what_pods_request() -> None:
    assert node_resources({"devices": DEVICES}) == {"nvidia.com/gpu": "2"}
    assert node_resources({"devices": [*DEVICES, {"resourceName": "n.com/x", "nodeResource": "nvidia.com/gpu"}]}) == {
        "nvidia.com/gpu": "3"
    }
    assert node_resources({}) == {}
