"""Rules about devices of the host, pinned CPUs and huge pages."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api import hostresources
from caphv.api.hostresources import GROWTH_EXCLUDED, PAGES_FIT, PINNING_NEEDED
from caphv.validation.finding import Fault, Finding
from caphv.validation.rule import Rules
from webhooks.rules.model import MACHINES, Subject

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

    listed_names: set[str] = set()
    for device in devices.each():
        name = device.at("resourceName")
        if name.text and name.text in listed_names:
            yield name.problem(
                Fault.DUPLICATE, "is in the list already: raise its count, and remove this entry"
            )
        listed_names.add(name.text)


@RULES.rule(
    PINNING_NEEDED,
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
    yield from _report(subject, PINNING_NEEDED, Fault.INVALID)


@RULES.rule(
    PAGES_FIT,
    MACHINES,
    "`memory` must be a multiple of the page size in `hugepages`.",
    "hugepages",
    "memory",
    example="{memory: 2560Mi, cpuPinning: true, hugepages: 1Gi}",
)
def _hugepages_fit(subject: Subject) -> Iterator[Finding]:
    yield from _report(subject, PAGES_FIT, Fault.INVALID)


@RULES.rule(
    GROWTH_EXCLUDED,
    MACHINES,
    "A machine with `devices` or `cpuPinning` must have neither `cpuMax` nor `memoryMax`: a VM "
    "grows by a live migration, which devices exclude, and the provider sets the limits of a VM to "
    "its maxima, which KubeVirt requires to equal the present size of pinned CPUs.",
    "cpuMax",
    "memoryMax",
    "devices",
    "cpuPinning",
    example="{cpu: 4, cpuMax: 8, cpuPinning: true}",
)
def _growth_excluded(subject: Subject) -> Iterator[Finding]:
    yield from _report(subject, GROWTH_EXCLUDED, Fault.FORBIDDEN)


def _report(subject: Subject, kind: str, fault: Fault) -> Iterator[Finding]:
    """Yield findings about the conflicts of one kind."""
    for conflict in hostresources.conflicts(subject.spec.mapping):
        if conflict.kind == kind:
            yield subject.spec.at(conflict.field).problem(fault, conflict.detail)
