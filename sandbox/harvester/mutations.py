"""Changes that Harvester makes to a VirtualMachine at admission.

The changes are pure and idempotent, and are applied at each update. docs/simulators.md has the
sources and the differences between releases. tests/observed/harvester has records of real ones.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from caphv.api.object import Obj, annotations_of, at, dict_at, list_at
from sandbox.harvester import hotplug, kinds, quantities
from sandbox.harvester.releases import NEWEST_STABLE, MaxSockets, Release, release_named

TERMINATION_GRACE_SECONDS = 120
RESERVED_MEMORY = 100 * 1024**2
MIN_MEMORY = 10 * 1024**2
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class VmNetwork:
    """A VM network, with the facts that Harvester reads from its NetworkAttachmentDefinition.

    :param cluster_network: the cluster network in the label, empty for none
    :param overlay_dhcp: whether this is an overlay network of Kube-OVN with a DHCP server
    """

    cluster_network: str = ""
    overlay_dhcp: bool = False


NetworkReader = Callable[[str], VmNetwork]
_NEWEST = release_named(NEWEST_STABLE)


def _management_network(_name: str) -> VmNetwork:
    return VmNetwork(kinds.MANAGEMENT_NETWORK)


@dataclass(frozen=True, slots=True)
class MutationSettings:
    """Settings of Harvester that its mutator reads.

    :param cpu_overcommit: the overcommit of CPUs in percent
    :param memory_overcommit: the overcommit of memory in percent
    :param overhead_ratio: False for `additional-guest-memory-overhead-ratio: 0`, with which guests
        get 100 MiB less than the limit of their VM
    :param guards_vms: whether new VMs get the finalizer of the load balancer controller, which
        requires that the controller runs and that its release has a finalizer
    :param network: returns a network by `<namespace>/<name>` or by name
    """

    cpu_overcommit: int = 1600
    memory_overcommit: int = 150
    overhead_ratio: bool = True
    guards_vms: bool = False
    release: Release = _NEWEST
    network: NetworkReader = _management_network

    def guest_memory(self, limit: int) -> int:
        """Return the bytes of memory of a guest whose VM has this limit."""
        return limit if self.overhead_ratio else limit - RESERVED_MEMORY


def mutate(vm: Obj, old: Obj | None, settings: MutationSettings) -> Obj:
    """Return the VM as Harvester stores it.

    `old` is the VM before an update, None for a new one.
    """
    vm = copy.deepcopy(vm)
    if old is None:
        # Controllers of a real Harvester add the finalizers a moment later. Adding them here saves
        # three requests for each VM.
        names = [kinds.VM_FINALIZER, kinds.VM_CLEANUP]
        if settings.guards_vms:
            names.append(kinds.VM_GUARD)
        finalizers = vm["metadata"].setdefault("finalizers", [])
        finalizers += [name for name in names if name not in finalizers]
    else:
        _set_start_strategy(vm, old)

    spec = vm["spec"]["template"].get("spec")
    if not spec:
        return vm

    if needs_resources(vm, old):
        _set_resources(spec["domain"], settings, keeps_maxima=hotplug.is_enabled(vm))
    cpu = spec["domain"].setdefault("cpu", {})
    for name in ("cores", "sockets", "threads"):
        cpu[name] = cpu.get(name) or 1

    if settings.release.moves_gpus:
        _move_gpus(spec["domain"])
    _set_affinity(spec, settings)
    spec.setdefault("terminationGracePeriodSeconds", TERMINATION_GRACE_SECONDS)
    if settings.release.assigns_macs:
        _set_macs(vm)
    if settings.release.managed_tap:
        _set_bindings(spec, settings.network)
    return vm


def guest_memory(vm: Obj, settings: MutationSettings) -> int | None:
    """Return the bytes of memory of a VM's guest, None for a VM without a memory limit."""
    limit = _limits(vm)["memory"]
    return settings.guest_memory(int(limit)) if limit else None


def needs_resources(vm: Obj, old: Obj | None) -> bool:
    """Return whether Harvester computes the memory and requests of a VM.

    Harvester does so for a new VM and for a VM whose limits change.
    """
    return old is None or _limits(old) != _limits(vm)


def new_mac() -> str:
    """Return a random, locally administered MAC address."""
    # The second bit of the first byte marks a locally administered address.
    return ":".join(f"{byte:02x}" for byte in (0x02, *random.randbytes(5)))


def interfaces_of(spec: Obj) -> list[Obj]:
    """Return the interfaces in the spec of a VM's instance."""
    return list_at(spec, "domain", "devices", "interfaces")


def _set_start_strategy(vm: Obj, old: Obj) -> None:
    """Start a VM that was Halted with the strategy in its annotation, even against the request."""
    was_halted = old["spec"].get("runStrategy") == "Halted"
    if was_halted and vm["spec"].get("runStrategy") not in (None, "Halted"):
        vm["spec"]["runStrategy"] = annotations_of(vm).get(kinds.RUN_STRATEGY) or "RerunOnFailure"


def _limits(vm: Obj) -> dict[str, float]:
    limits = dict_at(vm, "spec", "template", "spec", "domain", "resources", "limits")
    return {name: quantities.parse_quantity(limits.get(name)) for name in ("cpu", "memory")}


def _set_resources(domain: Obj, settings: MutationSettings, *, keeps_maxima: bool) -> None:
    resources = domain.setdefault("resources", {})
    limits = resources.get("limits") or {}
    requests = dict(resources.get("requests") or {})

    # KubeVirt refuses pinned CPUs if requests and limits differ.
    is_pinned = bool(at(domain, "cpu", "dedicatedCpuPlacement"))
    if "cpu" in limits:
        millis = int(quantities.parse_quantity(limits["cpu"]) * 1000)
        share = 100 if is_pinned else settings.cpu_overcommit
        requests["cpu"] = f"{millis * 100 // share}m"

    if "memory" in limits:
        limit = int(quantities.parse_quantity(limits["memory"]))
        requests["memory"] = f"{limit * 100 // settings.memory_overcommit // 1024**2}Mi"
        if is_pinned:
            requests["memory"] = limits["memory"]
        elif quantities.devices({"domain": domain}):
            # The memory of a guest with devices cannot be swapped out.
            requests["memory"] = str(settings.guest_memory(limit))

        if not (keeps_maxima and settings.release.keeps_maxima):
            _set_guest(domain, limits, settings)

    if requests:
        resources["requests"] = requests


def _move_gpus(domain: Obj) -> None:
    """Request GPUs as host devices (pcidevices `pkg/webhook/vm.go`, `convertGPUsToHostDevices`)."""
    devices = domain.get("devices") or {}
    for gpu in devices.pop("gpus", None) or ():
        device = {"name": gpu["name"], "deviceName": gpu["deviceName"]}
        devices.setdefault("hostDevices", []).append(device)


def _set_guest(domain: Obj, limits: Obj, settings: MutationSettings) -> None:
    """Set memory and sockets of a guest that cannot grow (`generateMemoryPatch`)."""
    limit = int(quantities.parse_quantity(limits["memory"]))
    guest = settings.guest_memory(limit)
    # Keep the notation of a limit that is not reduced.
    memory = str(limits["memory"]) if guest == limit else str(guest)
    domain.setdefault("memory", {})["guest"] = memory

    cpu = domain.setdefault("cpu", {})
    match settings.release.max_sockets:
        case MaxSockets.ONE:
            cpu["maxSockets"] = 1
        case MaxSockets.SOCKETS:
            cpu["maxSockets"] = cpu.get("sockets") or 1


def _set_macs(vm: Obj) -> None:
    # Harvester records in the annotation the addresses that KubeVirt gave to the instance.
    recorded = json.loads(annotations_of(vm).get(kinds.MAC_ADDRESSES) or "{}")
    for nic in interfaces_of(vm["spec"]["template"]["spec"]):
        if not nic.get("macAddress") and nic["name"] not in recorded:
            nic["macAddress"] = new_mac()


def _set_affinity(spec: Obj, settings: MutationSettings) -> None:
    """Require hosts with the cluster networks of the VM in each of the user's terms."""
    affinity = spec.setdefault("affinity", {})
    node_affinity: Obj = dict(affinity.get("nodeAffinity") or {})
    required = node_affinity.pop(_REQUIRED, None) or {}

    # Remove the expressions of an earlier mutation, and then all terms without expressions.
    terms = [
        {**term, "matchExpressions": expressions}
        for term in required.get("nodeSelectorTerms") or ()
        if (expressions := _user_expressions(term, settings.release))
    ]

    # Harvester 1.9 keeps this expression, so that it comes before those of the networks.
    if at(spec, "domain", "cpu", "dedicatedCpuPlacement"):
        requirement = {"key": kinds.CPU_MANAGER, "operator": "In", "values": ["true"]}
        terms = terms or [{"matchExpressions": []}]
        for term in terms:
            if requirement not in term["matchExpressions"]:
                term["matchExpressions"].append(requirement)

    # Networks may share a cluster network. A network without a label adds nothing.
    names = [at(entry, "multus", "networkName") for entry in spec.get("networks") or ()]
    cluster_networks = dict.fromkeys(
        settings.network(name).cluster_network for name in names if name
    )
    for name in filter(None, cluster_networks):
        terms = terms or [{"matchExpressions": []}]
        for term in terms:
            term["matchExpressions"].append(
                {"key": f"{kinds.NETWORK_GROUP}/{name}", "operator": "In", "values": ["true"]}
            )

    if terms:
        node_affinity[_REQUIRED] = {**required, "nodeSelectorTerms": terms}
    affinity.pop("nodeAffinity", None)
    if terms or node_affinity.get(_PREFERRED):
        affinity["nodeAffinity"] = node_affinity


def _user_expressions(term: Obj, release: Release) -> list[Obj]:
    """Return the expressions of a term whose keys Harvester does not set itself."""
    return [
        entry
        for entry in term.get("matchExpressions") or ()
        if not entry["key"].startswith(kinds.NETWORK_GROUP)
        and not (entry["key"] == kinds.CPU_MANAGER and release.drops_cpu_manager)
    ]


def _set_bindings(spec: Obj, network: NetworkReader) -> None:
    """Bind interfaces in overlay networks with DHCP by `managedtap`, and others by a bridge."""
    networks = {
        entry["name"]: at(entry, "multus", "networkName") for entry in spec.get("networks") or ()
    }
    for nic in interfaces_of(spec):
        name = networks.get(nic["name"])
        if not name:
            continue

        if network(name).overlay_dhcp:
            nic.pop("bridge", None)
            nic.pop("masquerade", None)
            nic.setdefault("binding", {"name": kinds.MANAGED_TAP})
        else:
            if at(nic, "binding", "name") == kinds.MANAGED_TAP:
                del nic["binding"]
            nic.setdefault("bridge", {})
