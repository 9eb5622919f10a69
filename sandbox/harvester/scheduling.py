"""Host selection for a VM, as the Kubernetes scheduler does it for the VM's Pod.

Modelled: node selector, required and preferred node affinity, required and preferred pod anti-affinity of the new VM,
CPU and memory, taints, unschedulable and NotReady hosts. Not modelled: pod affinity, topology spread, and the
anti-affinity of running VMs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from caphv.api.object import Obj, labels_of
from sandbox.harvester import quantities


@dataclass(frozen=True, slots=True)
class Placed:
    """A VM on a host, with the CPUs and bytes of memory it uses there."""

    host: str
    namespace: str
    labels: Mapping[str, str]
    cpu: float
    memory: float


def place(vm: Obj, hosts: Iterable[Obj], placed: Iterable[Placed]) -> str:
    """Name of the host for a VirtualMachine; empty if none fits."""
    spec = vm["spec"]["template"]["spec"]
    placed = list(placed)
    candidates = [host for host in hosts if is_usable(host, spec) and matches_host(spec, labels_of(host))]
    if not candidates:
        return ""
    domains = {host["metadata"]["name"]: labels_of(host) for host in candidates}
    free = [host for host in candidates if _has_room(spec, host, placed)]
    anti = (spec.get("affinity") or {}).get("podAntiAffinity") or {}
    for term in anti.get("requiredDuringSchedulingIgnoredDuringExecution") or ():
        taken = _domains_with_match(term, vm, placed, domains)
        free = [host for host in free if labels_of(host).get(term["topologyKey"]) not in taken]
    if not free:
        return ""
    preferred = anti.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    penalties = [
        (entry["weight"], entry["podAffinityTerm"], _domains_with_match(entry["podAffinityTerm"], vm, placed, domains))
        for entry in preferred
    ]

    def cost(host: Obj) -> tuple[float, float, str]:
        labels = labels_of(host)
        crowd = sum(weight * taken.get(labels.get(term["topologyKey"], ""), 0) for weight, term, taken in penalties)
        return crowd - _preference(spec, labels), _load(host, placed), host["metadata"]["name"]

    return str(min(free, key=cost)["metadata"]["name"])


def is_ready(host: Obj) -> bool:
    """Whether the host is Ready."""
    conditions = host.get("status", {}).get("conditions") or ()
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def is_usable(host: Obj, spec: Obj | None = None) -> bool:
    """Whether a host takes new VMs: it is Ready, not cordoned, and the VM tolerates its taints."""
    tolerations = (spec or {}).get("tolerations") or ()
    taints = [
        taint
        for taint in host.get("spec", {}).get("taints") or ()
        # The API server taints new Nodes as not ready; readiness is checked by the condition.
        if taint["effect"] != "PreferNoSchedule" and not taint["key"].startswith("node.kubernetes.io/")
    ]
    tolerated = all(any(_tolerates(entry, taint) for entry in tolerations) for taint in taints)
    return is_ready(host) and tolerated and not host.get("spec", {}).get("unschedulable")


def matches(expressions: Sequence[Obj], labels: Mapping[str, str]) -> bool:
    """Whether labels match all expressions `{key, operator, values}` of a node or label selector."""
    return all(_holds(entry, labels) for entry in expressions)


def selects(selector: Obj | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector (`matchLabels`, `matchExpressions`) selects labels; no selector selects nothing."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    same = all(labels.get(name) == value for name, value in wanted.items())
    return same and matches(selector.get("matchExpressions") or (), labels)


def _holds(entry: Obj, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(entry["key"]), list(entry.get("values") or ())
    checks: dict[str, Callable[[], bool]] = {
        "In": lambda: value in values,
        "NotIn": lambda: value not in values,
        "Exists": lambda: value is not None,
        "DoesNotExist": lambda: value is None,
        "Gt": lambda: value is not None and int(value) > int(values[0]),
        "Lt": lambda: value is not None and int(value) < int(values[0]),
    }
    return checks[entry["operator"]]()


def _tolerates(toleration: Obj, taint: Obj) -> bool:
    same_key = toleration.get("key") in (None, "", taint["key"])
    same_value = toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
    return same_key and same_value and toleration.get("effect") in (None, "", taint["effect"])


def matches_host(spec: Obj, labels: Mapping[str, str]) -> bool:
    """Whether a host with these labels matches the node selector and the required node affinity of a VM."""
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = _node_affinity(spec).get("requiredDuringSchedulingIgnoredDuringExecution")
    # Terms are ORed; a term without expressions selects nothing.
    return required is None or any(
        term.get("matchExpressions") and matches(term["matchExpressions"], labels)
        for term in required.get("nodeSelectorTerms") or ()
    )


def _preference(spec: Obj, labels: Mapping[str, str]) -> float:
    preferred = _node_affinity(spec).get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return sum(
        entry["weight"] for entry in preferred if matches(entry["preference"].get("matchExpressions") or (), labels)
    )


def _node_affinity(spec: Obj) -> Obj:
    return (spec.get("affinity") or {}).get("nodeAffinity") or {}


def _has_room(spec: Obj, host: Obj, placed: Iterable[Placed]) -> bool:
    cpu, memory = quantities.demand(spec)
    here = [other for other in placed if other.host == host["metadata"]["name"]]
    allocatable = host["status"].get("allocatable") or {}
    fits_cpu = sum(other.cpu for other in here) + cpu <= quantities.number(allocatable.get("cpu"))
    return fits_cpu and sum(other.memory for other in here) + memory <= quantities.number(allocatable.get("memory"))


def _load(host: Obj, placed: Iterable[Placed]) -> float:
    used = sum(other.memory for other in placed if other.host == host["metadata"]["name"])
    return used / (quantities.number(host["status"]["allocatable"].get("memory")) or 1)


def _domains_with_match(
    term: Obj, vm: Obj, placed: Iterable[Placed], hosts: Mapping[str, Mapping[str, str]]
) -> dict[str, int]:
    """Number of VMs selected by a term in each of its topology domains."""
    namespaces = term.get("namespaces") or [vm["metadata"]["namespace"]]
    counts: dict[str, int] = {}
    for other in placed:
        domain = hosts.get(other.host, {}).get(term["topologyKey"])
        if domain is not None and other.namespace in namespaces and selects(term.get("labelSelector"), other.labels):
            counts[domain] = counts.get(domain, 0) + 1
    return counts
