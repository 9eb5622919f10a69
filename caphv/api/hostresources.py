"""The fields of a machine for devices, pinned CPUs and huge pages. Pure.

The rules about fields that exclude each other are those of KubeVirt v1.8.3
(`validateCPUIsolatorThread`, `validateNUMA` and `validateHugepagesMemoryRequests` in
pkg/virt-api/webhooks/validating-webhook/admitters/vmi-create-admitter.go), and follow from what
Harvester v1.9.0-rc6 requests for a VM (`generateMemoryPatch` in
pkg/webhook/resources/virtualmachine/mutator.go).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from caphv.api.quantity import quantity

FIELDS = ("devices", "cpuPinning", "isolateEmulatorThread", "numaPassthrough", "hugepages")
"""Fields of a HarvesterMachine for resources that its VM has for itself."""

# Prefix of resources that KubeVirt adds to each host and that every VM uses.
_KUBEVIRT_DEVICES = "devices.kubevirt.io/"

HUGEPAGES = "hugepages-"
"""Prefix of the resources of huge pages, before their size."""

PINNING_NEEDED, PAGES_FIT, GROWTH_EXCLUDED = (
    "cpu-pinning-needed",
    "hugepages-fit",
    "growth-excluded",
)
"""Kinds of conflicts, which are the names of the rules."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A field that cannot be used with the others, and the remedy.

    :param kind: one of `PINNING_NEEDED`, `PAGES_FIT` and `GROWTH_EXCLUDED`
    """

    kind: str
    field: str
    detail: str


def requested_devices(spec: Mapping[str, Any]) -> Counter[str]:
    """Return the devices that the spec of a HarvesterMachine requests, by resource name.

    Entries without a name are skipped, because others report them.
    """
    devices: Counter[str] = Counter()
    listed = spec.get("devices")
    for device in listed if isinstance(listed, list) else ():
        name = device.get("resourceName") if isinstance(device, dict) else None
        if isinstance(name, str) and name:
            devices[name] += _count(device)
    return devices


def offered_resources(allocatable: Mapping[str, Any]) -> dict[str, Any]:
    """Return the devices and huge pages that a host has, without CPU, memory and Pods.

    :param allocatable: `status.allocatable` of the host
    """
    return {
        name: amount
        for name, amount in allocatable.items()
        if ("/" in name and not name.startswith(_KUBEVIRT_DEVICES)) or name.startswith(HUGEPAGES)
        if amount != "0"
    }


def node_resources(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return what the Node of a machine offers because of its devices, by resource name."""
    resources: Counter[str] = Counter()
    for device in spec.get("devices") or ():
        if name := device.get("nodeResource"):
            resources[str(name)] += _count(device)
    return {name: str(count) for name, count in sorted(resources.items())}


def _count(device: Mapping[str, Any]) -> int:
    count = device.get("count")
    return count if isinstance(count, int) and count > 0 else 1


def conflicts(spec: Mapping[str, Any]) -> Iterator[Conflict]:
    """Yield the conflicts in the spec of a HarvesterMachine, whose values may have any type."""
    is_pinned = spec.get("cpuPinning") is True
    yield from _pinning_conflicts(spec, is_pinned=is_pinned)

    hugepages = spec.get("hugepages")
    memory = spec.get("memory")
    page = quantity(hugepages)
    size = quantity(memory)
    if page and size is not None and size % page:
        detail = (
            f"memory must be a multiple of the page size, and {memory} is none: change one of them"
        )
        yield Conflict(PAGES_FIT, "hugepages", detail)

    causes = ["devices of its host"] if spec.get("devices") else []
    causes += ["pinned CPUs"] if is_pinned else []
    for maximum in ("cpuMax", "memoryMax") if causes else ():
        if spec.get(maximum):
            detail = f"a VM with {' and '.join(causes)} cannot grow while it runs: remove it"
            yield Conflict(GROWTH_EXCLUDED, maximum, detail)


def _pinning_conflicts(spec: Mapping[str, Any], *, is_pinned: bool) -> Iterator[Conflict]:
    hugepages = spec.get("hugepages")
    if spec.get("isolateEmulatorThread") is True and not is_pinned:
        detail = "needs cpuPinning: true, because it takes a core of its own"
        yield Conflict(PINNING_NEEDED, "isolateEmulatorThread", detail)
    if hugepages and not is_pinned:
        detail = (
            "needs cpuPinning: true, because Harvester requests only a share of the memory of "
            "other VMs"
        )
        yield Conflict(PINNING_NEEDED, "hugepages", detail)
    if spec.get("numaPassthrough") is True and not (is_pinned and hugepages):
        detail = (
            "needs cpuPinning: true and hugepages, because only pinned CPUs and huge pages belong "
            "to a NUMA cell"
        )
        yield Conflict(PINNING_NEEDED, "numaPassthrough", detail)
