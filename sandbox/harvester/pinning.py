"""KubeVirt's admission of pinned CPUs, NUMA and huge pages. Pure.

Modelled after `pkg/virt-api/webhooks/validating-webhook/admitters/vmi-create-admitter.go` of
kubevirt/kubevirt v1.8.3: `validateCPUIsolatorThread`, `validateNUMA`, `validateCpuPinning` and
`validateHugepagesMemoryRequests`. Not modelled: threads, and requests of a part of a core.
"""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.object import Obj, at, dict_at
from sandbox.harvester.quantities import parse_quantity


def denial_reason(domain: Obj) -> str:
    """Return the reasons for which KubeVirt denies the domain of a VM; empty if it accepts it."""
    return "; ".join(_reasons(domain))


def _reasons(domain: Obj) -> Iterator[str]:
    cpu = domain.get("cpu") or {}
    is_pinned = bool(cpu.get("dedicatedCpuPlacement"))
    page_size = at(domain, "memory", "hugepages", "pageSize")

    if cpu.get("isolateEmulatorThread") and not is_pinned:
        yield "IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement"
    if at(cpu, "numa", "guestMappingPassthrough") is not None:
        if not is_pinned:
            yield "dedicatedCpuPlacement must be set to true when NUMA topology strategy is set"
        if not page_size:
            yield "hugepages must be requested when NUMA topology strategy is set"
    if is_pinned:
        yield from _pinning_reasons(domain)

    requested = parse_quantity(at(domain, "resources", "requests", "memory"))
    guest = parse_quantity(at(domain, "memory", "guest"))
    if page_size and (requested or guest) % parse_quantity(page_size):
        yield f"memory is not a multiple of the page size {page_size}"


def _pinning_reasons(domain: Obj) -> Iterator[str]:
    cpu = domain["cpu"]
    cores = (cpu.get("cores") or 1) * (cpu.get("sockets") or 1) * (cpu.get("threads") or 1)
    limits, requests = (dict_at(domain, "resources", kind) for kind in ("limits", "requests"))
    for resource in ("cpu", "memory"):
        limit, request = (parse_quantity(amounts.get(resource)) for amounts in (limits, requests))
        if limit and request and limit != request:
            yield f"requests and limits of {resource} must be equal"
    amounts = {parse_quantity(kind["cpu"]) for kind in (limits, requests) if "cpu" in kind}
    if amounts and cores not in amounts:
        yield "CPU requests or limits must not be provided at the same time with cores"
