"""ResourceQuotas, as Harvester applies them to VMs.

Modelled after harvester's pkg/util/resourcequota/calculator.go.

Harvester checks storage when a VM or its claims are added. It checks CPU and memory at each update
of a VM that has a status, is not Halted and has no Pod. So it never refuses a new VM for its CPU or
memory, but halts it. It also checks each update of a VM that is being deleted and whose instance
has stopped. Harvester reads only the quotas of Rancher, but here any ResourceQuota counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.object import Obj, at, key_of
from sandbox.harvester import kinds, quantities
from sandbox.harvester.informers import Informers, claim_templates

_LACKS = "{} insufficient resources due to resource quota"


def start_shortage(vm: Obj, informers: Informers) -> str:
    """Return why a stopped VM cannot start (`CheckIfVMCanStartByResourceQuota`).

    Return an empty text if the VM can start, runs, or shall stay stopped.
    """
    # A VM without a status is new. KubeVirt may start it, and Harvester then halts it.
    is_new = not at(vm, "status", "printableStatus")
    if is_new or vm["spec"].get("runStrategy") == "Halted":
        return ""
    return cpu_or_memory_shortage(vm, informers)


def cpu_or_memory_shortage(vm: Obj, informers: Informers) -> str:
    """Return the resources that the quota lacks for the Pod of a VM; empty if it suffices."""
    namespace = vm["metadata"]["namespace"]
    instances = {
        key_of(vmi): vmi["spec"]
        for vmi in informers.vmis.store.by_index("namespace", namespace)
        if at(vmi, "status", "phase") not in kinds.ENDED_PHASES
    }
    # A VM with a Pod needs no further capacity.
    if key_of(vm) in instances:
        return ""

    specs = [*instances.values(), vm["spec"]["template"].get("spec") or {}]
    for name in ("cpu", "memory"):
        demand = sum(
            quantities.parse_quantity(at(spec, "domain", "resources", "limits", name))
            for spec in specs
        )
        if any(demand > hard for hard in _hard_limits(namespace, f"limits.{name}", informers)):
            return _LACKS.format(name)
    return ""


def storage_shortage(vm: Obj, before: Obj | None, informers: Informers) -> str:
    """Return why a VM is refused (`CheckStorageResourceQuota`); empty if its volumes have room.

    `before` is the VM before an update, None for a new one.
    """
    # Harvester does not check updates that add no storage, even if the quota is exceeded.
    added = sum(map(_storage, claim_templates(vm)))
    added -= sum(map(_storage, claim_templates(before) if before else ()))
    if added <= 0:
        return ""

    namespace = vm["metadata"]["namespace"]
    used = sum(map(_storage, informers.claims.store.by_index("namespace", namespace)))
    limits = _hard_limits(namespace, "requests.storage", informers)
    return _LACKS.format("storage") if any(used + added > hard for hard in limits) else ""


def _hard_limits(namespace: str, name: str, informers: Informers) -> Iterator[float]:
    for quota in informers.quotas.store.by_index("namespace", namespace):
        hard = at(quota, "spec", "hard", name)
        if hard is not None:
            yield quantities.parse_quantity(hard)


def _storage(claim: Obj) -> float:
    return quantities.parse_quantity(at(claim, "spec", "resources", "requests", "storage"))
