"""ResourceQuotas, as Harvester applies them to VMs (harvester: pkg/util/resourcequota/calculator.go).

Storage is checked when a VM or its claims are added. CPU and memory are checked at each update of a VM that has a
status, is not Halted and has no Pod: a VM that Harvester has just created is never refused for them, but halted. So is
each update of a VM that is being deleted and whose instance has stopped. Unlike Harvester, which reads the quotas of
Rancher alone, any ResourceQuota counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.object import Obj, key_of
from sandbox.harvester import quantities
from sandbox.harvester.informers import Informers, claim_templates

_ENDED = ("Failed", "Succeeded")  # phases of an instance without a Pod
_LACKS = "{} insufficient resources due to resource quota"


def lacks_to_start(vm: Obj, informers: Informers) -> str:
    """Why a stopped VM cannot start (`CheckIfVMCanStartByResourceQuota`); empty if it can, runs, or is to stay so."""
    if not (vm.get("status") or {}).get("printableStatus") or vm["spec"].get("runStrategy") == "Halted":
        return ""
    return lacks_cpu_or_memory(vm, informers)


def lacks_cpu_or_memory(vm: Obj, informers: Informers) -> str:
    """What the quota lacks for the Pod of a VM, empty for nothing; a VM that has a Pod needs no more."""
    instances = {key_of(vmi): vmi["spec"] for vmi in _instances(vm, informers)}
    if key_of(vm) in instances:
        return ""
    for name in ("cpu", "memory"):
        wanted = sum(_limit(spec, name) for spec in (*instances.values(), vm["spec"]["template"].get("spec") or {}))
        if any(wanted > hard for hard in _hard(vm, f"limits.{name}", informers)):
            return _LACKS.format(name)
    return ""


def lacks_storage(vm: Obj, before: Obj | None, informers: Informers) -> str:
    """Why a VM is refused (`CheckStorageResourceQuota`), empty if there is room for what its volumes need in addition.

    `before` is the VM before an update, None for a new one.
    """
    added = sum(map(_storage, claim_templates(vm))) - sum(map(_storage, claim_templates(before) if before else ()))
    if added <= 0:
        return ""
    wanted = added + sum(map(_storage, informers.claims.store.by_index("namespace", vm["metadata"]["namespace"])))
    return _LACKS.format("storage") if any(wanted > hard for hard in _hard(vm, "requests.storage", informers)) else ""


def _hard(vm: Obj, name: str, informers: Informers) -> Iterator[float]:
    for quota in informers.quotas.store.by_index("namespace", vm["metadata"]["namespace"]):
        if (hard := (quota["spec"].get("hard") or {}).get(name)) is not None:
            yield quantities.number(hard)


def _instances(vm: Obj, informers: Informers) -> Iterator[Obj]:
    for vmi in informers.vmis.store.by_index("namespace", vm["metadata"]["namespace"]):
        if vmi.get("status", {}).get("phase") not in _ENDED:
            yield vmi


def _limit(spec: Obj, name: str) -> float:
    limits = ((spec.get("domain") or {}).get("resources") or {}).get("limits") or {}
    return quantities.number(limits.get(name))


def _storage(claim: Obj) -> float:
    return quantities.number(((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage"))
