"""Rules about devices of the host, pinned CPUs and huge pages.

They follow the admission of KubeVirt v1.8.3 (`validateCPUIsolatorThread`, `validateNUMA` and
`validateHugepagesMemoryRequests` in pkg/virt-api/webhooks/validating-webhook/admitters/
vmi-create-admitter.go), and that of Harvester v1.9.0-rc6 (`generateMemoryPatch` in
pkg/webhook/resources/virtualmachine/mutator.go).
"""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.quantity import quantity
from caphv.validation.finding import Fault, Finding
from caphv.validation.rule import Rules
from webhooks.rules.model import MACHINES, Field, Subject

RULES = Rules()

_MAX_DEVICES = 16


@RULES.rule(
    "devices-unique",
    MACHINES,
    "`devices` must name each resource once, and at most 16 of them: `count` is for several "
    "devices of one kind.",
    "devices[].resourceName",
    example="devices: [{resourceName: nvidia.com/GA102GL_A10}, {resourceName: "
    "nvidia.com/GA102GL_A10}]",
)
def _devices_unique(subject: Subject) -> Iterator[Finding]:
    devices = subject.spec.at("devices")
    if len(devices.each()) > _MAX_DEVICES:
        yield devices.problem(Fault.TOO_MANY, f"must have at most {_MAX_DEVICES} items")

    seen: set[str] = set()
    for device in devices.each():
        name = device.at("resourceName")
        if name.text and name.text in seen:
            yield name.problem(
                Fault.DUPLICATE, "is in the list already: raise its count, and remove this entry"
            )
        seen.add(name.text)


@RULES.rule(
    "cpu-pinning-needed",
    MACHINES,
    "`cpuPinning` must be true for `isolateEmulatorThread` and `hugepages`, and with `hugepages` "
    "also for `numaPassthrough`. Without pinned CPUs, a VM requests only a share of its memory of "
    "the host, which does not suffice for huge pages.",
    "isolateEmulatorThread",
    "hugepages",
    "numaPassthrough",
    "cpuPinning",
    example="isolateEmulatorThread: true",
)
def _cpu_pinning_needed(subject: Subject) -> Iterator[Finding]:
    spec = subject.spec
    is_pinned = _is_on(spec.at("cpuPinning"))
    hugepages = spec.at("hugepages")

    isolation = spec.at("isolateEmulatorThread")
    if _is_on(isolation) and not is_pinned:
        yield isolation.invalid("needs cpuPinning: true, because it takes a core of its own")
    if hugepages.text and not is_pinned:
        yield hugepages.invalid(
            "needs cpuPinning: true, because Harvester requests only a share of the memory of "
            "other VMs"
        )
    numa = spec.at("numaPassthrough")
    if _is_on(numa) and not (is_pinned and hugepages.text):
        yield numa.invalid(
            "needs cpuPinning: true and hugepages, because only pinned CPUs and huge pages belong "
            "to a NUMA cell"
        )


@RULES.rule(
    "hugepages-fit",
    MACHINES,
    "`memory` must be a multiple of the page size in `hugepages`.",
    "hugepages",
    "memory",
    example="{memory: 2560Mi, cpuPinning: true, hugepages: 1Gi}",
)
def _hugepages_fit(subject: Subject) -> Iterator[Finding]:
    hugepages, memory = subject.spec.at("hugepages"), subject.spec.at("memory")
    page, size = quantity(hugepages.text), quantity(memory.text)
    if page and size is not None and size % page:
        yield hugepages.invalid(
            f"memory must be a multiple of the page size, and {memory.text} is none: change one "
            "of them"
        )


@RULES.rule(
    "growth-excluded",
    MACHINES,
    "A machine with `devices` or `cpuPinning` must have neither `cpuMax` nor `memoryMax`: a VM "
    "grows by a live migration, which devices exclude, and KubeVirt refuses pinned CPUs with a "
    "maximum.",
    "cpuMax",
    "memoryMax",
    "devices",
    "cpuPinning",
    example="{cpu: 4, cpuMax: 8, cpuPinning: true}",
)
def _growth_excluded(subject: Subject) -> Iterator[Finding]:
    spec = subject.spec
    causes = []
    if spec.at("devices").each():
        causes.append("devices of its host")
    if _is_on(spec.at("cpuPinning")):
        causes.append("pinned CPUs")
    if not causes:
        return

    for maximum in (spec.at("cpuMax"), spec.at("memoryMax")):
        if maximum.present:
            yield maximum.forbidden(
                f"a VM with {' and '.join(causes)} cannot grow while it runs: remove it"
            )


def _is_on(field: Field) -> bool:
    return field.value is True
