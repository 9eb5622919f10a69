"""Changes that Harvester makes to a VirtualMachine at admission. Pure and idempotent; applied at each update.

Sources, and differences between releases: docs/simulators.md, with records of real ones in tests/observed/harvester.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from caphv.api.object import Obj, annotations_of
from sandbox.harvester import kinds, quantities
from sandbox.harvester.releases import NEWEST_STABLE, MaxSockets, Release, release_named

TERMINATION_GRACE_SECONDS = 120
RESERVED_MEMORY = 100 * 1024**2
LEAST_MEMORY = 10 * 1024**2
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_CPU_MANAGER = "cpumanager"


@dataclass(frozen=True, slots=True)
class VmNetwork:
    """What Harvester reads of a NetworkAttachmentDefinition.

    `cluster_network` is that of its label, empty for none. With `overlay_dhcp`, it is an overlay network of Kube-OVN
    with a DHCP server.
    """

    cluster_network: str = ""
    overlay_dhcp: bool = False


NetworkReader = Callable[[str], VmNetwork]
_NEWEST = release_named(NEWEST_STABLE)


def _management_network(_name: str) -> VmNetwork:
    return VmNetwork(kinds.MANAGEMENT_NETWORK)


@dataclass(frozen=True, slots=True)
class MutationSettings:
    """Settings of Harvester that its mutator reads, and how it finds networks by `<namespace>/<name>` or name.

    Overcommits are percentages. Without `overhead_ratio`, as with setting `additional-guest-memory-overhead-ratio: 0`,
    guests get 100 MiB less than the limit of their VM. `guards_vms`: whether new VMs get the finalizer of the load
    balancer controller, because it runs and its release has one.
    """

    cpu_overcommit: int = 1600
    memory_overcommit: int = 150
    overhead_ratio: bool = True
    guards_vms: bool = False
    release: Release = _NEWEST
    network: NetworkReader = _management_network


def mutated(vm: Obj, old: Obj | None, settings: MutationSettings) -> Obj:
    """Return the VM as Harvester stores it; `old` is the VM before an update, None for a new one."""
    vm = copy.deepcopy(vm)
    if old is None:
        finalizers = vm["metadata"].setdefault("finalizers", [])
        # Controllers add these a moment later in requests of their own; adding them here saves two per VM.
        added = [kinds.VM_FINALIZER, *([kinds.VM_GUARD] if settings.guards_vms else [])]
        finalizers += [name for name in added if name not in finalizers]
    else:
        _restart_strategy(vm, old)
    spec = vm["spec"]["template"].get("spec")
    if not spec:
        return vm

    if old is None or _limits(old) != _limits(vm):
        _resources(spec["domain"], settings)
    _topology(spec["domain"])
    _affinity(spec, settings)
    spec.setdefault("terminationGracePeriodSeconds", TERMINATION_GRACE_SECONDS)
    if settings.release.assigns_macs:
        _macs(vm)
    if settings.release.managed_tap:
        _bindings(spec, settings.network)
    return vm


def guest_memory(vm: Obj, settings: MutationSettings) -> int | None:
    """Return the bytes that the guest of a VM gets, None for a VM without a limit of memory."""
    limit = _limits(vm)["memory"]
    if not limit:
        return None
    return int(limit) - (0 if settings.overhead_ratio else RESERVED_MEMORY)


def needs_resources(vm: Obj, old: Obj | None) -> bool:
    """Whether Harvester computes memory and requests of a VM: for a new one, or with other limits."""
    return old is None or _limits(old) != _limits(vm)


def new_mac() -> str:
    """Return a random MAC address of those that are locally administered."""
    # The second bit of the first byte marks them.
    return ":".join(f"{byte:02x}" for byte in (0x02, *random.randbytes(5)))


def interfaces_of(spec: Obj) -> list[Obj]:
    """Return the interfaces in the spec of a VM's instance."""
    return ((spec.get("domain") or {}).get("devices") or {}).get("interfaces") or []


def _restart_strategy(vm: Obj, old: Obj) -> None:
    if old["spec"].get("runStrategy") == "Halted" and vm["spec"].get("runStrategy") not in (None, "Halted"):
        vm["spec"]["runStrategy"] = annotations_of(vm).get(kinds.RUN_STRATEGY) or "RerunOnFailure"


def _limits(vm: Obj) -> dict[str, float]:
    domain = (vm["spec"]["template"].get("spec") or {}).get("domain") or {}
    limits = (domain.get("resources") or {}).get("limits") or {}
    return {name: quantities.number(limits.get(name)) for name in ("cpu", "memory")}


def _resources(domain: Obj, settings: MutationSettings) -> None:
    resources = domain.setdefault("resources", {})
    limits = resources.get("limits") or {}
    requests = dict(resources.get("requests") or {})

    if "cpu" in limits:
        requests["cpu"] = f"{int(quantities.number(limits['cpu']) * 1000) * 100 // settings.cpu_overcommit}m"
    if "memory" in limits:
        limit = int(quantities.number(limits["memory"]))
        requests["memory"] = f"{limit * 100 // settings.memory_overcommit // 1024**2}Mi"
        guest = limit - (0 if settings.overhead_ratio else RESERVED_MEMORY)
        domain.setdefault("memory", {})["guest"] = str(limits["memory"]) if guest == limit else str(guest)
        cpu = domain.setdefault("cpu", {})
        if settings.release.max_sockets is not MaxSockets.UNSET:
            sockets = cpu.get("sockets") or 1
            cpu["maxSockets"] = sockets if settings.release.max_sockets is MaxSockets.SOCKETS else 1
    if requests:
        resources["requests"] = requests


def _topology(domain: Obj) -> None:
    cpu = domain.setdefault("cpu", {})
    for name in ("cores", "sockets", "threads"):
        cpu[name] = cpu.get(name) or 1


def _macs(vm: Obj) -> None:
    # Harvester notes there what KubeVirt gave to the instance.
    observed = json.loads(annotations_of(vm).get(kinds.MAC_ADDRESSES) or "{}")
    for nic in interfaces_of(vm["spec"]["template"]["spec"]):
        if not nic.get("macAddress") and nic["name"] not in observed:
            nic["macAddress"] = new_mac()


def _affinity(spec: Obj, settings: MutationSettings) -> None:
    """Require hosts with the cluster networks of the VM in each of the user's terms.

    Before, keys that Harvester sets itself are removed from them, and then all terms without expressions.
    """
    affinity = spec.setdefault("affinity", {})
    node: Obj = dict(affinity.get("nodeAffinity") or {})
    required = node.pop(_REQUIRED, None) or {}
    terms = [
        {**term, "matchExpressions": expressions}
        for term in required.get("nodeSelectorTerms") or ()
        if (expressions := _kept_expressions(term, settings.release))
    ]

    networks = [(entry.get("multus") or {}).get("networkName") for entry in spec.get("networks") or ()]
    for name in dict.fromkeys(settings.network(name).cluster_network for name in networks if name):
        demand = {"key": f"{kinds.NETWORK_GROUP}/{name}", "operator": "In", "values": ["true"]}
        terms = terms or ([{"matchExpressions": []}] if name else [])
        for term in terms if name else ():
            term["matchExpressions"].append(demand)

    if terms:
        node[_REQUIRED] = {**required, "nodeSelectorTerms": terms}
    affinity.pop("nodeAffinity", None)
    if terms or node.get(_PREFERRED):
        affinity["nodeAffinity"] = node


def _kept_expressions(term: Obj, release: Release) -> list[Obj]:
    """The expressions of a term without keys that Harvester sets itself."""
    return [
        entry
        for entry in term.get("matchExpressions") or ()
        if not entry["key"].startswith(kinds.NETWORK_GROUP)
        and not (entry["key"] == _CPU_MANAGER and release.drops_cpu_manager)
    ]


def _bindings(spec: Obj, network: NetworkReader) -> None:
    """Bind interfaces in overlay networks with DHCP by `managedtap`, and others by a bridge again."""
    names = {entry["name"]: (entry.get("multus") or {}).get("networkName") for entry in spec.get("networks") or ()}
    for nic in interfaces_of(spec):
        name = names.get(nic["name"])
        if not name:
            continue
        if network(name).overlay_dhcp:
            nic.pop("bridge", None)
            nic.pop("masquerade", None)
            nic.setdefault("binding", {"name": kinds.MANAGED_TAP})
        else:
            if (nic.get("binding") or {}).get("name") == kinds.MANAGED_TAP:
                del nic["binding"]
            nic.setdefault("bridge", {})
