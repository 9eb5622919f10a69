"""What KubeVirt makes of the sizes of a VM; docs/simulators.md names the sources."""

import copy
from typing import Any

import pytest

from caphv.api.object import Obj
from sandbox.harvester import hotplug, instances
from sandbox.harvester.mutations import MutationSettings, mutate
from sandbox.harvester.releases import release_named

pytestmark = pytest.mark.unit


def growing_vm(**annotations: str) -> Obj:
    domain = {
        "cpu": {"cores": 1, "sockets": 4, "threads": 1, "maxSockets": 8},
        "memory": {"guest": "4Gi", "maxGuest": "16Gi"},
        "resources": {"limits": {"cpu": "8", "memory": "16Gi"}},
        "devices": {},
    }
    metadata = {"name": "one", "namespace": "vms", "uid": "u", "annotations": annotations}
    return {"metadata": metadata, "spec": {"template": {"spec": {"domain": domain}}}}


def domain_of(vm: Obj) -> Obj:
    found: Obj = vm["spec"]["template"]["spec"]["domain"]
    return found


@pytest.mark.parametrize("value", ["true", "True"])
@pytest.mark.parametrize("release", ["1.6", "1.7", "1.8", "1.9"])
def test_harvester_keeps_sizes_of_a_vm_with_the_annotation(release: str, value: str) -> None:
    vm = growing_vm(**{hotplug.ANNOTATION: value})
    domain = domain_of(mutate(vm, None, MutationSettings(release=release_named(release))))
    assert (domain["memory"]["guest"], domain["cpu"]["sockets"], domain["cpu"]["maxSockets"]) == ("4Gi", 4, 8)
    assert domain["resources"]["requests"] == {"cpu": "500m", "memory": "10922Mi"}


@pytest.mark.parametrize(
    ("release", "most", "is_refused"), [("1.6", 1, True), ("1.7", 1, True), ("1.8", 1, True), ("1.9", 4, False)]
)
def test_several_sockets_need_the_annotation_before_1_9(release: str, most: int, is_refused: bool) -> None:
    domain = domain_of(mutate(growing_vm(), None, MutationSettings(release=release_named(release))))
    assert (domain["memory"]["guest"], domain["cpu"]["maxSockets"]) == ("16Gi", most)
    assert bool(hotplug.denial_reason(domain)) is is_refused


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        ({"guest": "4Gi", "maxGuest": "16Gi"}, ""),
        ({"guest": "4Gi"}, ""),
        ({"guest": "17Gi", "maxGuest": "16Gi"}, "greater than the configured maxGuest"),
        ({"guest": "1025Mi", "maxGuest": "16Gi"}, "2Mi aligned"),
        ({"guest": "512Mi", "maxGuest": "1Gi"}, "at least 1Gi"),
    ],
)
def test_kubevirt_refuses_memory_that_cannot_grow(memory: Obj, reason: str) -> None:
    denial = hotplug.denial_reason({"memory": memory})
    assert reason in denial
    assert bool(denial) is bool(reason)


def running(vm: Obj) -> Obj:
    vmi = instances.instance_of(vm, "host-1")
    return {**vmi, "status": {**vmi["status"], **hotplug.current_sizes(vmi), "conditions": []}}


def change(vm: Obj, section: str, **values: Any) -> Obj:
    changed = copy.deepcopy(vm)
    domain_of(changed)[section] |= values
    return changed


def test_growth_is_requested_then_migrates_then_is_complete() -> None:
    vmi = running(growing_vm())
    assert hotplug.request_patch(growing_vm(), vmi) == {}

    patch = hotplug.request_patch(change(growing_vm(), "cpu", sockets=6), vmi)
    assert patch["spec"] == {"domain": {"cpu": {"sockets": 6}}}
    requested = copy.deepcopy(vmi)
    requested["spec"]["domain"]["cpu"]["sockets"] = 6
    requested["status"] |= patch["status"]
    assert hotplug.is_changing(requested)
    assert requested["status"]["currentCPUTopology"]["sockets"] == 4

    migrated = instances.migrated_patch(requested, "host-2")["status"]
    assert migrated["currentCPUTopology"]["sockets"] == 6
    assert not hotplug.is_changing({"status": migrated})


def test_no_second_change_while_one_is_under_way() -> None:
    vm = change(growing_vm(), "cpu", sockets=6)
    vmi = running(growing_vm())
    vmi["status"]["conditions"] = [{"type": hotplug.MEMORY_CHANGE, "status": "True"}]
    assert hotplug.request_patch(vm, vmi) == {}


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("cpu", {"sockets": 9}),
        ("cpu", {"sockets": 2}),
        ("memory", {"guest": "32Gi"}),
        ("memory", {"guest": "2Gi"}),
    ],
)
def test_change_beyond_the_maxima_or_below_needs_a_restart(section: str, values: Obj) -> None:
    vm = change(growing_vm(), section, **values)
    assert hotplug.needs_restart(vm, running(growing_vm()))
    assert hotplug.request_patch(vm, running(growing_vm())) == {}
