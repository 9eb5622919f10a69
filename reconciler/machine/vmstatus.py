"""Addresses of a machine and the state of its VM, from VirtualMachine and VirtualMachineInstance."""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from caphv.api import names
from caphv.api.object import Obj, annotations_of, being_deleted
from caphv.api.plaintext import plain
from reconciler.machine.volumes import claims_of


class VmPhase(Enum):
    """State of a VM, as far as a machine depends on it."""

    MISSING = "missing"
    DELETING = "deleting"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    PAUSED = "paused"
    UNSCHEDULABLE = "unschedulable"
    FAILED = "failed"
    CRASHED = "crashed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class VmState:
    """Phase, a message for the user, and the host, empty for none."""

    phase: VmPhase
    message: str
    host: str = ""


PHASES = {
    "Running": VmPhase.RUNNING,
    "Migrating": VmPhase.RUNNING,
    "Provisioning": VmPhase.STARTING,
    "Starting": VmPhase.STARTING,
    "WaitingForVolumeBinding": VmPhase.STARTING,
    "WaitingForReceiver": VmPhase.STARTING,
    "Stopping": VmPhase.STOPPING,
    "Stopped": VmPhase.STOPPED,
    "Paused": VmPhase.PAUSED,
    "Terminating": VmPhase.DELETING,
    "ErrorUnschedulable": VmPhase.UNSCHEDULABLE,
    "ErrorPvcNotFound": VmPhase.FAILED,
    "ErrorDataVolumeNotFound": VmPhase.FAILED,
    "DataVolumeError": VmPhase.FAILED,
    "ErrImagePull": VmPhase.FAILED,
    "ImagePullBackOff": VmPhase.FAILED,
    "CrashLoopBackOff": VmPhase.CRASHED,
    "Unknown": VmPhase.UNKNOWN,
}
"""Phase for each `printableStatus` of KubeVirt."""

_ADVICE = {
    VmPhase.MISSING: "the VirtualMachine does not exist on Harvester",
    VmPhase.DELETING: "the VirtualMachine is being deleted",
    VmPhase.STARTING: "the VM is starting",
    VmPhase.RUNNING: "the VM is running",
    VmPhase.RESTARTING: "the VM is restarting",
    VmPhase.STOPPING: "the VM is stopping",
    VmPhase.STOPPED: "the VM is stopped: start it on Harvester",
    VmPhase.PAUSED: "the VM is paused: unpause it on Harvester, where a storage problem may have stopped it",
    VmPhase.UNSCHEDULABLE: "no host of Harvester can run the VM: free CPU or memory, or change its affinity",
    VmPhase.FAILED: "the VM cannot start: check its events and volumes on Harvester",
    VmPhase.CRASHED: "the instance of the VM has failed and Harvester starts it again: check its events and its host",
    VmPhase.UNKNOWN: "the host of the VM does not answer: check the host on Harvester",
}
# Phases of a VM that does not run although it should, which a volume may explain.
_NEEDS_VOLUMES = (VmPhase.STARTING, VmPhase.UNSCHEDULABLE, VmPhase.FAILED)

_OVER_QUOTA = (
    "Harvester stopped the VM because the quota of its namespace is used up: raise it, or delete VMs there, and start "
    "the VM; Harvester says"
)
LONGEST_QUOTA = 512
"""Characters of Harvester's words about a quota that a message repeats."""


def addresses(vmi: Obj) -> list[dict[str, str]]:
    """Return `status.addresses` of the machine from its VirtualMachineInstance, in an order that does not change.

    First NIC first, its primary address before others; without duplicates, and without addresses that are not reachable
    from elsewhere (link-local, the loopback interface) or belong to networks inside the guest (bridges of a CNI have no
    NIC's name).
    """
    interfaces = (vmi.get("status") or {}).get("interfaces") or []
    nics = [interface for interface in interfaces if interface.get("name")] or [
        interface for interface in interfaces if interface.get("interfaceName") != "lo"
    ]
    found = dict.fromkeys(address for nic in sorted(nics, key=_nic_order) for address in _of_interface(nic))
    return typed_addresses(found)


def typed_addresses(found: Iterable[str]) -> list[dict[str, str]]:
    """Return addresses as `status.addresses` has them: external ones, as in the contract, then the same as internal.

    A VM does not know which of its networks are internal, and RKE2's `registrationMethod: internal-only-ips` waits for
    an address of this type.
    """
    addresses = list(found)
    return [{"type": kind, "address": address} for kind in ("ExternalIP", "InternalIP") for address in addresses]


def _nic_order(interface: Obj) -> tuple[int, str]:
    name = str(interface.get("name") or interface.get("interfaceName") or "")
    # A few digits only: the name comes from Harvester, and `int` refuses thousands of them.
    digits = name[-9:]
    digits = digits[len(digits.rstrip("0123456789")) :]
    return int(digits or 0), name


def _of_interface(interface: Obj) -> Iterator[str]:
    primary = _usable(interface.get("ipAddress"))
    others = filter(None, map(_usable, interface.get("ipAddresses") or ()))
    if primary:
        yield str(primary)
    yield from map(str, sorted(others, key=lambda address: (address.version, int(address))))


def _usable(text: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address((text or "").partition("/")[0])
    except ValueError:
        return None
    unusable = address.is_link_local or address.is_unspecified or address.is_multicast
    return None if unusable else address


def vm_state(vm: Obj | None, vmi: Obj | None, claims: Mapping[str, str] | None = None) -> VmState:
    """Sum up a VirtualMachine and its instance.

    :param vm: None if it does not exist
    :param vmi: None if the VM does not run
    :param claims: phases of the existing PersistentVolumeClaims by name; None to say nothing about volumes
    """
    host = str(((vmi or {}).get("status") or {}).get("nodeName") or "")
    phase, status = _phase(vm, vmi)
    message = _ADVICE[phase]

    waits_for_volume = ""
    if vm is not None and claims is not None and phase in _NEEDS_VOLUMES:
        waits_for_volume = ", ".join(_unbound(vm, claims))
    if waits_for_volume:
        # The scheduler only says "unbound immediate PersistentVolumeClaims", which no free host would help.
        message = f"the VM waits for its volumes: {waits_for_volume}; check them and their StorageClass on Harvester"

    quota = annotations_of(vm).get(names.INSUFFICIENT_QUOTA_ANNOTATION) if vm and phase is VmPhase.STOPPED else None
    if quota:
        message = f"{_OVER_QUOTA}: {plain(quota, LONGEST_QUOTA)}"

    if status and status not in ("Running", "Starting", "Stopped", "Stopping", "Paused"):
        message = f"{message} ({status})"
    if phase not in (VmPhase.RUNNING, VmPhase.RESTARTING, VmPhase.MISSING) and (detail := _detail(vm, vmi)):
        message = f"{message}; Harvester says: {detail}"
    return VmState(phase, message, host)


def _unbound(vm: Obj, claims: Mapping[str, str]) -> Iterator[str]:
    """Name the claims of a VM that do not exist or are not bound, with their phase."""
    for name in sorted(claims_of(vm)):
        phase = claims.get(name, "does not exist") or "Pending"
        if phase != "Bound":
            yield f"PersistentVolumeClaim {name} ({phase})"


def _phase(vm: Obj | None, vmi: Obj | None) -> tuple[VmPhase, str]:
    """Return the phase and the word of KubeVirt that says so."""
    if vm is None:
        return VmPhase.MISSING, ""
    if being_deleted(vm):
        return VmPhase.DELETING, ""

    printable = str((vm.get("status") or {}).get("printableStatus") or "")
    if ended := _phase_of_instance(vmi or {"metadata": {}}):
        return ended, printable

    phase = PHASES.get(printable, VmPhase.STARTING if not printable else VmPhase.UNKNOWN)
    if phase in (VmPhase.STOPPING, VmPhase.STOPPED) and _restarts(vm, vmi):
        # A new VM is "Stopped", too, until KubeVirt has created its first instance.
        return (VmPhase.RESTARTING if vmi is not None else VmPhase.STARTING), printable

    # The status of the VM follows its instance; where the two differ the instance is newer.
    runs = vmi is not None and vmi["status"].get("phase") == "Running"
    if phase in (VmPhase.RUNNING, VmPhase.STARTING) and runs is not (phase is VmPhase.RUNNING):
        return (VmPhase.RUNNING if runs else VmPhase.STARTING), ""
    return phase, printable


def _phase_of_instance(vmi: Obj) -> VmPhase | None:
    """Return the phase in which an instance alone puts its VM, whose status follows later; None for none."""
    phase = (vmi.get("status") or {}).get("phase")
    if phase == "Unknown":
        return VmPhase.UNKNOWN
    if paused(vmi):
        return VmPhase.PAUSED
    # KubeVirt deletes it at once, to start the VM again.
    return VmPhase.CRASHED if phase == "Failed" else None


def _restarts(vm: Obj, vmi: Obj | None) -> bool:
    """Whether KubeVirt starts a VM again that is stopping or has stopped.

    With `RerunOnFailure` it does not after the guest has shut itself down, which leaves an instance that succeeded.
    """
    strategy = (vm.get("spec") or {}).get("runStrategy")
    shut_down = vmi is not None and vmi["status"].get("phase") == "Succeeded" and not being_deleted(vmi)
    return strategy == "Always" or (strategy == "RerunOnFailure" and not shut_down)


def paused(vmi: Obj) -> bool:
    """Whether the instance is paused, by a user or because of disk errors. The status of its VM follows later."""
    conditions = (vmi.get("status") or {}).get("conditions") or ()
    return any((condition.get("type"), condition.get("status")) == ("Paused", "True") for condition in conditions)


def agent_connected(vmi: Obj) -> bool:
    """Whether the guest agent answers. KubeVirt removes the condition while it does not."""
    conditions = (vmi.get("status") or {}).get("conditions") or ()
    return any(
        (condition.get("type"), condition.get("status")) == ("AgentConnected", "True") for condition in conditions
    )


def _detail(vm: Obj | None, vmi: Obj | None) -> str:
    """Return the message of the condition that explains best why the VM does not run."""
    wanted = (
        ("Paused", "True"),
        ("PodScheduled", "False"),
        ("Failure", "True"),
        ("Synchronized", "False"),
        ("Ready", "False"),
    )
    conditions = [
        condition
        for obj in (vmi, vm)
        for condition in ((obj or {}).get("status") or {}).get("conditions") or ()
        if condition.get("message")
    ]
    for kind, status in wanted:
        for condition in conditions:
            if (condition.get("type"), condition.get("status")) == (kind, status):
                return str(condition["message"])
    return ""
