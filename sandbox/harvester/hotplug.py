"""KubeVirt: CPU and memory that a running VM gets. Pure.

Modelled after `handleCPUChangeRequest` and `handleMemoryHotplugRequest` in
`pkg/virt-controller/watch/vm/vm.go`, `pkg/virt-controller/watch/workload-updater` and
`pkg/liveupdate/memory` of kubevirt. Not modelled: the requests and limits of the instance, which
KubeVirt increases, failures of the hot-plug inside the guest, and condition `RestartRequired`.
"""

from __future__ import annotations

from caphv.api.object import Obj, at, dict_at, list_at
from sandbox.harvester import kinds
from sandbox.harvester.quantities import parse_quantity

CPU_CHANGE = "HotVCPUChange"
MEMORY_CHANGE = "HotMemoryChange"
ANNOTATION = "harvesterhci.io/enableCPUAndMemoryHotplug"

_GUEST = ("spec", "template", "spec", "domain", "memory", "guest")
_CHANGES = (CPU_CHANGE, MEMORY_CHANGE)
_BLOCK = 2 * 1024**2
_MIN_MEMORY = 1024**3


def is_enabled(vm: Obj) -> bool:
    """Return whether Harvester keeps the maxima of a VM (`SupportCPUAndMemoryHotplug`)."""
    annotations = vm["metadata"].get("annotations") or {}
    return str(annotations.get(ANNOTATION, "")).lower() == "true"


def denial_reason(domain: Obj) -> str:
    """Return the reason for which KubeVirt denies CPU and memory; empty if it accepts them.

    Modelled after `validateLiveUpdateFeatures`.
    """
    cpu = domain.get("cpu") or {}
    memory = domain.get("memory") or {}
    if 0 < int(cpu.get("maxSockets") or 0) < int(cpu.get("sockets") or 0):
        return "Number of sockets in CPU topology is greater than the maximum sockets allowed"
    return _memory_problem(memory) if memory.get("maxGuest") else ""


def _memory_problem(memory: Obj) -> str:
    guest, most = (parse_quantity(memory.get(name)) for name in ("guest", "maxGuest"))
    if guest > most:
        return "Guest memory is greater than the configured maxGuest memory"
    if guest % _BLOCK or most % _BLOCK:
        return "Guest memory must be 2Mi aligned"
    if guest < _MIN_MEMORY:
        return "Memory hotplug is only available for VMs with at least 1Gi of guest memory"
    return ""


def request_patch(vm: Obj, vmi: Obj) -> Obj:
    """Return the patch that asks an instance for the sizes of its VM; empty if it has them.

    One change at a time, and none while the instance migrates.
    """
    if needs_restart(vm, vmi) or is_changing(vmi):
        return {}

    sockets, memory = _sizes(vm["spec"]["template"]["spec"])
    present_sockets, present_memory = _sizes(vmi["spec"])
    domain: Obj = {}
    conditions = list(list_at(vmi, "status", "conditions"))
    if sockets != present_sockets:
        domain["cpu"] = {"sockets": sockets}
        conditions.append(kinds.condition(CPU_CHANGE, True))
    if memory != present_memory:
        domain["memory"] = {"guest": at(vm, *_GUEST)}
        conditions.append(kinds.condition(MEMORY_CHANGE, True))
    return {"spec": {"domain": domain}, "status": {"conditions": conditions}} if domain else {}


def is_changing(vmi: Obj) -> bool:
    """Return whether an instance waits for the migration that gives it its new sizes."""
    return any(entry["type"] in _CHANGES for entry in list_at(vmi, "status", "conditions"))


def without_changes(conditions: list[Obj]) -> list[Obj]:
    """Return conditions without those of changes, which a migration has completed."""
    return [entry for entry in conditions if entry["type"] not in _CHANGES]


def needs_restart(vm: Obj, vmi: Obj) -> bool:
    """Return whether an instance gets the sizes of its VM only by a restart."""
    sockets, memory = _sizes(vm["spec"]["template"]["spec"])
    present_sockets, present_memory = _sizes(vmi["spec"])
    most_sockets = int(at(vmi, "spec", "domain", "cpu", "maxSockets") or present_sockets)
    most_memory = parse_quantity(at(vmi, "spec", "domain", "memory", "maxGuest")) or present_memory
    return not (
        present_sockets <= sockets <= most_sockets and present_memory <= memory <= most_memory
    )


def _sizes(spec: Obj) -> tuple[int, float]:
    """Return the sockets and the bytes of memory in the spec of an instance."""
    sockets = int(at(spec, "domain", "cpu", "sockets") or 1)
    return sockets, parse_quantity(at(spec, "domain", "memory", "guest"))


def current_sizes(vmi: Obj) -> Obj:
    """Return the status fields of an instance that runs with the sizes in its spec."""
    cpu = dict_at(vmi, "spec", "domain", "cpu")
    topology = {name: int(cpu.get(name) or 1) for name in ("cores", "sockets", "threads")}
    memory = at(vmi, "spec", "domain", "memory", "guest")
    return {
        "currentCPUTopology": topology,
        **({"memory": {"guestCurrent": memory}} if memory else {}),
    }
