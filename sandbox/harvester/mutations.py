"""Changes that Harvester makes to a VirtualMachine at admission. Pure and idempotent; applied at each update."""

from __future__ import annotations

import copy
import random

from caphv.api.object import Obj, annotations_of
from sandbox.harvester import kinds, quantities

RESERVED_MEMORY = 100 * 1024**2
TERMINATION_GRACE_SECONDS = 120
MAX_SOCKETS = 4


def mutated(vm: Obj, old: Obj | None, *, cpu_overcommit: int, memory_overcommit: int) -> Obj:
    """The VM as Harvester stores it; overcommits are percentages, `old` is the VM before an update."""
    vm = copy.deepcopy(vm)
    if old is None:
        finalizers = vm["metadata"].setdefault("finalizers", [])
        # KubeVirt's controller adds this a moment later in a separate request; adding it here saves one per VM.
        finalizers += [] if kinds.VM_FINALIZER in finalizers else [kinds.VM_FINALIZER]
    else:
        _restart_strategy(vm, old)
    spec = vm["spec"]["template"].get("spec")
    if spec:
        _resources(spec["domain"], cpu_overcommit, memory_overcommit)
        _macs(spec, ((old or {}).get("spec", {}).get("template", {}).get("spec")) or {})
        _affinity(spec)
        spec.setdefault("terminationGracePeriodSeconds", TERMINATION_GRACE_SECONDS)
        spec["domain"].setdefault("cpu", {}).setdefault("maxSockets", MAX_SOCKETS)
    return vm


def _restart_strategy(vm: Obj, old: Obj) -> None:
    if old["spec"].get("runStrategy") == "Halted" and vm["spec"].get("runStrategy") == "Always":
        vm["spec"]["runStrategy"] = annotations_of(vm).get(kinds.RUN_STRATEGY) or "RerunOnFailure"


def _resources(domain: Obj, cpu_overcommit: int, memory_overcommit: int) -> None:
    resources = domain.setdefault("resources", {})
    limits = resources.get("limits") or {}
    requests = dict(resources.get("requests") or {})
    if "cpu" in limits:
        requests["cpu"] = f"{int(quantities.number(limits['cpu']) * 1000 * 100 / cpu_overcommit)}m"
    if "memory" in limits:
        limit = int(quantities.number(limits["memory"]))
        requests["memory"] = f"{limit * 100 // memory_overcommit // 1024**2}Mi"
        domain.setdefault("memory", {})["guest"] = f"{max(limit - RESERVED_MEMORY, 0) // 1024**2}Mi"
    if requests:
        resources["requests"] = requests


def _macs(spec: Obj, before: Obj) -> None:
    known = {nic["name"]: nic.get("macAddress") for nic in _interfaces(before)}
    for nic in _interfaces(spec):
        if not nic.get("macAddress"):
            nic["macAddress"] = known.get(nic["name"]) or _new_mac()


def _interfaces(spec: Obj) -> list[Obj]:
    return ((spec.get("domain") or {}).get("devices") or {}).get("interfaces") or []


def _new_mac() -> str:
    # The second bit of the first byte marks locally administered addresses.
    return ":".join(f"{byte:02x}" for byte in (0x02, *random.randbytes(5)))


def _affinity(spec: Obj) -> None:
    """Require hosts with the cluster network of the VM's networks, in each of the user's terms."""
    if not any(network.get("multus") for network in spec.get("networks") or ()):
        return
    wanted = {"key": kinds.CLUSTER_NETWORK, "operator": "In", "values": ["true"]}
    node = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = node.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.setdefault("nodeSelectorTerms", [])
    terms += [] if terms else [{}]
    for term in terms:
        expressions = term.setdefault("matchExpressions", [])
        expressions += [] if wanted in expressions else [wanted]
