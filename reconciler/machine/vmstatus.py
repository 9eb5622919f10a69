"""Addresses of a machine and the state of its VM, from VirtualMachine and VirtualMachineInstance."""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from caphv.api import names
from caphv.api.object import Obj, annotations_of
from caphv.api.plaintext import plain


class VmPhase(Enum):
    """State of a VM, as far as a machine depends on it."""

    MISSING = "missing"
    DELETING = "deleting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    PAUSED = "paused"
    UNSCHEDULABLE = "unschedulable"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class VmState:
    """Phase, a message for the user, and the host, empty for none."""

    phase: VmPhase
    message: str
    host: str = ""


_PHASES = {
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
    "CrashLoopBackOff": VmPhase.FAILED,
    "Unknown": VmPhase.UNKNOWN,
}

_ADVICE = {
    VmPhase.MISSING: "the VirtualMachine does not exist on Harvester",
    VmPhase.DELETING: "the VirtualMachine is being deleted",
    VmPhase.STARTING: "the VM is starting",
    VmPhase.RUNNING: "the VM is running",
    VmPhase.STOPPING: "the VM is stopping",
    VmPhase.STOPPED: "the VM is stopped: start it on Harvester",
    VmPhase.PAUSED: "the VM is paused: unpause it on Harvester, where a storage problem may have stopped it",
    VmPhase.UNSCHEDULABLE: "no host of Harvester can run the VM: free CPU or memory, or change its affinity",
    VmPhase.FAILED: "the VM cannot start: check its events and volumes on Harvester",
    VmPhase.UNKNOWN: "the host of the VM does not answer: check the host on Harvester",
}


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
    return [{"type": "ExternalIP", "address": address} for address in found]


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


def vm_state(vm: Obj | None, vmi: Obj | None) -> VmState:
    """Sum up a VirtualMachine and its instance; either may be missing."""
    host = str(((vmi or {}).get("status") or {}).get("nodeName") or "")
    phase, status = _phase(vm, vmi)
    message = _ADVICE[phase]
    quota = annotations_of(vm).get(names.INSUFFICIENT_QUOTA_ANNOTATION) if vm and phase is VmPhase.STOPPED else None
    if quota:
        message = f"{_OVER_QUOTA}: {plain(quota, LONGEST_QUOTA)}"
    if status and status not in ("Running", "Starting", "Stopped", "Stopping", "Paused"):
        message = f"{message} ({status})"
    if phase not in (VmPhase.RUNNING, VmPhase.MISSING) and (detail := _detail(vm, vmi)):
        message = f"{message}; Harvester says: {detail}"
    return VmState(phase, message, host)


def _phase(vm: Obj | None, vmi: Obj | None) -> tuple[VmPhase, str]:
    """Return the phase and the word of KubeVirt that says so."""
    if vm is None:
        return VmPhase.MISSING, ""
    if vm["metadata"].get("deletionTimestamp"):
        return VmPhase.DELETING, ""
    printable = str((vm.get("status") or {}).get("printableStatus") or "")
    instance = str(((vmi or {}).get("status") or {}).get("phase") or "")
    phase = _PHASES.get(printable, VmPhase.STARTING if not printable else VmPhase.UNKNOWN)
    if instance == "Unknown" or paused(vmi or {}):
        return (VmPhase.UNKNOWN if instance == "Unknown" else VmPhase.PAUSED), printable
    # The status of the VM follows its instance; where the two differ the instance is newer.
    if phase is VmPhase.RUNNING and instance != "Running":
        return VmPhase.STARTING, ""
    if phase is VmPhase.STARTING and instance == "Running":
        return VmPhase.RUNNING, ""
    return phase, printable


def paused(vmi: Obj) -> bool:
    """Whether the instance is paused, by a user or because of disk errors. The status of its VM follows later."""
    conditions = (vmi.get("status") or {}).get("conditions") or ()
    return any((condition.get("type"), condition.get("status")) == ("Paused", "True") for condition in conditions)


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
