"""Host selection for a VM, as the Kubernetes scheduler does it for the VM's Pod.

Modelled: node selector, required and preferred node affinity, required and preferred pod
anti-affinity of the new VM, CPU, memory, huge pages and devices, the CPU manager, taints,
unschedulable and NotReady hosts. Not modelled: pod affinity, topology spread, and the anti-affinity
of running VMs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from caphv.api.hosts import is_ready
from caphv.api.object import Obj, at, dict_at, labels_of, list_at
from sandbox.harvester import kinds, quantities

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"


@dataclass(frozen=True, slots=True)
class Placement:
    """A VM on a host, with the CPUs, bytes of memory and devices that it uses there."""

    host: str
    namespace: str
    labels: Mapping[str, str]
    cpu: float
    memory: float
    devices: Counter[str] = field(default_factory=Counter)


def choose_host(vm: Obj, hosts: Iterable[Obj], placements: Iterable[Placement]) -> str:
    """Return the name of the host for a VirtualMachine; empty if none fits."""
    spec = vm["spec"]["template"]["spec"]
    placements = list(placements)

    # Filter, as the scheduler does before it scores.
    candidates = [
        host for host in hosts if is_usable(host, spec) and matches_host(spec, labels_of(host))
    ]
    domains = {host["metadata"]["name"]: labels_of(host) for host in candidates}
    feasible = [host for host in candidates if not _lacking(spec, host, placements)]
    anti_affinity = dict_at(spec, "affinity", "podAntiAffinity")
    for term in anti_affinity.get(_REQUIRED) or ():
        taken = _count_by_domain(term, vm, placements, domains)
        feasible = [
            host for host in feasible if labels_of(host).get(term["topologyKey"]) not in taken
        ]
    if not feasible:
        return ""

    # Score by preferences, then by load. Names break ties, so that a run can be repeated.
    penalties = []
    for entry in anti_affinity.get(_PREFERRED) or ():
        term = entry["podAffinityTerm"]
        taken = _count_by_domain(term, vm, placements, domains)
        penalties.append((entry["weight"], term["topologyKey"], taken))

    def cost(host: Obj) -> tuple[float, float, str]:
        labels = labels_of(host)
        penalty = sum(
            weight * taken.get(labels.get(key, ""), 0) for weight, key, taken in penalties
        )
        return (
            penalty - _preference_weight(spec, labels),
            _memory_load(host, placements),
            host["metadata"]["name"],
        )

    return str(min(feasible, key=cost)["metadata"]["name"])


def explain_no_host(vm: Obj, hosts: Iterable[Obj], placements: Iterable[Placement]) -> str:
    """Return why no host can run a VM, as kube-scheduler reports it.

    Each host counts for the first filter that rejects it. A missing device counts as an
    insufficient one.
    """
    spec = vm["spec"]["template"]["spec"]
    hosts = list(hosts)
    placements = list(placements)
    reasons: Counter[str] = Counter()
    for host in hosts:
        # A host without another reason has a VM that this one avoids.
        reasons.update(_rejections(spec, host, placements) or [_ANTI_AFFINITY])
    listed = sorted(f"{count} {reason}" for reason, count in reasons.items())
    return f"0/{len(hosts)} nodes are available: {', '.join(listed)}."


def unpermitted_devices(vm: Obj, hosts: Iterable[Obj]) -> list[str]:
    """Return the devices of a VM that no host offers, so that KubeVirt creates no Pod.

    A device that was enabled once stays with the number 0 in `status.allocatable`.
    """
    domain = dict_at(vm, "spec", "template", "spec", "domain")
    offered = {name for host in hosts for name in dict_at(host, "status", "allocatable")}
    requested = list_at(domain, "devices", "hostDevices")
    return sorted({str(device["deviceName"]) for device in requested} - offered)


def is_usable(host: Obj, spec: Obj | None = None) -> bool:
    """Return whether a host is Ready, not cordoned, and has only taints that `spec` tolerates."""
    if not is_ready(host) or at(host, "spec", "unschedulable"):
        return False

    tolerations = (spec or {}).get("tolerations") or ()
    for taint in list_at(host, "spec", "taints"):
        # Ignore the taints for Nodes that are not ready, because the condition was checked above.
        if taint["effect"] == "PreferNoSchedule" or taint["key"].startswith("node.kubernetes.io/"):
            continue
        if not any(_tolerates(toleration, taint) for toleration in tolerations):
            return False
    return True


def matches(expressions: Sequence[Obj], labels: Mapping[str, str]) -> bool:
    """Return whether labels match all expressions `{key, operator, values}` of a selector."""
    return all(_matches_expression(entry, labels) for entry in expressions)


def selects(selector: Obj | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects labels. A missing selector selects nothing."""
    if selector is None:
        return False
    equalities = selector.get("matchLabels") or {}
    return all(labels.get(name) == value for name, value in equalities.items()) and matches(
        selector.get("matchExpressions") or (), labels
    )


def matches_host(spec: Obj, labels: Mapping[str, str]) -> bool:
    """Return whether labels of a host match a VM's node selector and required affinity."""
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    # KubeVirt gives the Pod a selector (pkg/virt-controller/services/nodeselectorrenderer.go).
    is_pinned = at(spec, "domain", "cpu", "dedicatedCpuPlacement")
    if is_pinned and labels.get(kinds.CPU_MANAGER) != "true":
        return False

    required = at(spec, "affinity", "nodeAffinity", _REQUIRED)
    # One matching term is enough. A term without expressions selects nothing.
    return required is None or any(
        term.get("matchExpressions") and matches(term["matchExpressions"], labels)
        for term in required.get("nodeSelectorTerms") or ()
    )


def _matches_expression(entry: Obj, labels: Mapping[str, str]) -> bool:
    value = labels.get(entry["key"])
    values = list(entry.get("values") or ())
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
    # A toleration without key or effect tolerates all keys or effects.
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("value", "") == taint.get("value", ""))


def _preference_weight(spec: Obj, labels: Mapping[str, str]) -> float:
    """Return the weight of the preferred node affinity for a host with these labels."""
    return sum(
        entry["weight"]
        for entry in list_at(spec, "affinity", "nodeAffinity", _PREFERRED)
        if matches(entry["preference"].get("matchExpressions") or (), labels)
    )


def _rejections(spec: Obj, host: Obj, placements: Iterable[Placement]) -> list[str]:
    """Return the reasons why a host cannot run a VM, regardless of the VMs that it avoids."""
    if at(host, "spec", "unschedulable"):
        return ["node(s) were unschedulable"]
    if not is_usable(host, spec):
        return ["node(s) had untolerated taint(s)"]
    if not matches_host(spec, labels_of(host)):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return [f"Insufficient {name}" for name in _lacking(spec, host, placements)]


def _lacking(spec: Obj, host: Obj, placements: Iterable[Placement]) -> list[str]:
    """Return the names of the resources of which a host has not enough for a VM."""
    used: Counter[str] = Counter()
    cpu, memory = quantities.demand(spec)
    for other in placements:
        if other.host == host["metadata"]["name"]:
            cpu += other.cpu
            memory += other.memory
            used += other.devices

    needed = {"cpu": cpu, "memory": memory}
    needed |= {name: used[name] + count for name, count in quantities.devices(spec).items()}
    allocatable = host["status"].get("allocatable") or {}
    return [
        name
        for name, amount in needed.items()
        if amount > quantities.parse_quantity(allocatable.get(name))
    ]


def _memory_load(host: Obj, placements: Iterable[Placement]) -> float:
    used = sum(other.memory for other in placements if other.host == host["metadata"]["name"])
    return used / (quantities.parse_quantity(host["status"]["allocatable"].get("memory")) or 1)


def _count_by_domain(
    term: Obj, vm: Obj, placements: Iterable[Placement], hosts: Mapping[str, Mapping[str, str]]
) -> dict[str, int]:
    """Return the number of VMs that a term selects, by topology domain."""
    # A term without namespaces refers to the namespace of the Pod.
    namespaces = term.get("namespaces") or [vm["metadata"]["namespace"]]
    counts: dict[str, int] = {}
    for other in placements:
        domain = hosts.get(other.host, {}).get(term["topologyKey"])
        if (
            domain is not None
            and other.namespace in namespaces
            and selects(term.get("labelSelector"), other.labels)
        ):
            counts[domain] = counts.get(domain, 0) + 1
    return counts
