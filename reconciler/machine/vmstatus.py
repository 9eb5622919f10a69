"""Derive addresses of a machine and the state of its VM from VirtualMachine and instance."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from caphv.api import names
from caphv.api.hosts import is_ready
from caphv.api.interfaceaddresses import Address, address_of, is_host
from caphv.api.object import Obj, annotations_of, at, being_deleted, list_at, text_at
from caphv.api.plaintext import plain
from caphv.api.virtualmachine import claims_of
from reconciler.harvester.topology import why_no_host


class VmPhase(Enum):
    """States of a VM that a machine distinguishes."""

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
    """Phase, a message for the user, the host (empty for none), and Harvester's reason.

    `over_quota` is whether Harvester has stopped the VM because of a quota.
    """

    phase: VmPhase
    message: str
    host: str = ""
    detail: str = ""
    over_quota: bool = False


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
    VmPhase.DELETING: "the VirtualMachine is being deleted",
    VmPhase.STARTING: "the VM is starting",
    VmPhase.RUNNING: "the VM is running",
    VmPhase.RESTARTING: "the VM is restarting",
    VmPhase.STOPPING: "the VM is stopping",
    VmPhase.STOPPED: "the VM is stopped: start it on Harvester",
    VmPhase.PAUSED: (
        "the VM is paused: unpause it on Harvester, where a storage problem may have stopped it"
    ),
    VmPhase.UNSCHEDULABLE: "no host of Harvester can run the VM",
    VmPhase.FAILED: "the VM cannot start: check its events and volumes on Harvester",
    VmPhase.CRASHED: (
        "the instance of the VM has failed and Harvester starts it again: check its events and its "
        "host"
    ),
    VmPhase.UNKNOWN: "the host of the VM does not answer: check the host on Harvester",
}
_ADVICE_ON_HOST = {
    VmPhase.CRASHED: (
        "the instance of the VM has failed and Harvester starts it again: check its events and "
        "host {host}"
    ),
    VmPhase.UNKNOWN: "the host of the VM does not answer: check on Harvester {host}",
}
_FREE_ROOM = "free CPU or memory, or change its affinity"
# Phases of a VM that should run but does not, possibly because of a volume.
_NEEDS_VOLUMES = (VmPhase.STARTING, VmPhase.UNSCHEDULABLE, VmPhase.FAILED)

# Conditions that explain why a VM does not run, the best explanations first.
_EXPLANATIONS = (
    ("Paused", "True"),
    ("PodScheduled", "False"),
    ("Failure", "True"),
    ("Synchronized", "False"),
    ("Ready", "False"),
)

_OVER_QUOTA = (
    "Harvester stopped the VM because the quota of its namespace is used up: raise it, or delete "
    "VMs there, and start the VM; Harvester says"
)
MAX_QUOTA_TEXT = 512
"""A message repeats at most so many characters of Harvester's text about a quota."""


def addresses(vmi: Obj, endpoint: str = "") -> list[dict[str, str]]:
    """Return `status.addresses` of the machine from its instance, in a stable order.

    The first NIC comes first, with its primary address before others. The result has no duplicates,
    no addresses that are unreachable from elsewhere (link-local, the loopback interface), and no
    addresses of networks inside the guest (bridges of a CNI do not have the name of a NIC).

    :param endpoint: address of the control plane's endpoint. It is no address of a machine while
        kube-vip in the guest holds it, next to the primary address of a NIC
    """
    interfaces = list_at(vmi, "status", "interfaces")
    nics = [interface for interface in interfaces if interface.get("name")]
    if not nics:
        nics = [interface for interface in interfaces if interface.get("interfaceName") != "lo"]

    reachable: dict[str, None] = {}
    for nic in sorted(nics, key=_nic_order):
        reachable |= dict.fromkeys(_nic_addresses(nic, endpoint))
    return typed_addresses(reachable)


def typed_addresses(texts: Iterable[str]) -> list[dict[str, str]]:
    """Return entries of `status.addresses`: each address as external, then each as internal.

    The contract requires external addresses. RKE2's `registrationMethod: internal-only-ips` waits
    for an internal address, and a VM does not know which of its networks are internal.
    """
    addresses = list(texts)
    return [
        {"type": kind, "address": address}
        for kind in ("ExternalIP", "InternalIP")
        for address in addresses
    ]


def _nic_order(interface: Obj) -> tuple[int, str]:
    """Return the sort key of a NIC: the number at the end of its name, so that 10 follows 9."""
    name = str(interface.get("name") or interface.get("interfaceName") or "")
    # Use only a few digits, because the name comes from Harvester, and `int` refuses thousands.
    digits = name[-9:]
    digits = digits[len(digits.rstrip("0123456789")) :]
    return int(digits or 0), name


def _nic_addresses(interface: Obj, endpoint: str) -> Iterator[str]:
    """Yield the usable addresses of a NIC: the primary address, then all in a stable order.

    `endpoint` is yielded only as the primary address.
    """
    primary = _usable(interface.get("ipAddress"))
    if primary:
        yield str(primary)
    usable = filter(None, map(_usable, interface.get("ipAddresses") or ()))
    for address in sorted(usable, key=lambda address: (address.version, int(address))):
        if str(address) != endpoint:
            yield str(address)


def _usable(text: object) -> Address | None:
    """Return the address in a text, None if it is invalid or not reachable from elsewhere.

    The guest's agent writes the text. A zone, as in `fe80::1%eth0`, may have any characters, which
    would act as commands where an address becomes part of a script.
    """
    address = address_of(text.partition("/")[0]) if isinstance(text, str) else None
    if address is None or not is_host(address) or address.is_link_local:
        return None
    return address


def vm_state(
    vm: Obj,
    vmi: Obj | None,
    claims: Mapping[str, str] | None = None,
    hosts: Iterable[Obj] = (),
) -> VmState:
    """Sum up a VirtualMachine and its instance.

    :param vmi: the instance, None if the VM does not run
    :param claims: phases of the existing PersistentVolumeClaims by name; None to report nothing
        about volumes
    :param hosts: hosts of Harvester, which may be the cause
    """
    phase, status = _phase(vm, vmi)
    host = text_at(vmi, "status", "nodeName")
    message = _explain(vm, phase, host, claims, hosts)
    # Add KubeVirt's status, unless it says the same as the message.
    if status and status not in ("Running", "Starting", "Stopped", "Stopping", "Paused"):
        message = f"{message} ({status})"
    detail = ""
    if phase not in (VmPhase.RUNNING, VmPhase.RESTARTING):
        detail = _detail(vm, vmi)
        message = f"{message}; Harvester says: {detail}" if detail else message

    return VmState(
        phase,
        message,
        host=host,
        detail=detail,
        over_quota=phase is VmPhase.STOPPED and bool(_quota_message(vm)),
    )


def _explain(
    vm: Obj,
    phase: VmPhase,
    host: str,
    claims: Mapping[str, str] | None,
    hosts: Iterable[Obj],
) -> str:
    """Return what a phase means for the user, with its most specific cause.

    :param host: name of the VM's host, empty for none
    :param hosts: see `vm_state`; an iterator will do, because only one cause reads them
    """
    if phase is VmPhase.STOPPED and (quota := _quota_message(vm)):
        return f"{_OVER_QUOTA}: {plain(quota, MAX_QUOTA_TEXT)}"

    unbound = ""
    if claims is not None and phase in _NEEDS_VOLUMES:
        unbound = ", ".join(_unbound_claims(vm, claims))
    if unbound:
        # The scheduler only says "unbound immediate PersistentVolumeClaims", which suggests a lack
        # of hosts.
        return (
            f"the VM waits for its volumes: {unbound}; check them and their StorageClass "
            "on Harvester"
        )

    if phase is VmPhase.UNSCHEDULABLE:
        # The scheduler only counts hosts "that had untolerated taint(s)".
        return f"{_ADVICE[phase]}: {why_no_host(hosts) or _FREE_ROOM}"
    if phase in _ADVICE_ON_HOST and host:
        return _ADVICE_ON_HOST[phase].format(host=describe_host(host, hosts))
    return _ADVICE[phase]


def _quota_message(vm: Obj) -> str:
    """Return Harvester's message about the quota for which it has stopped a VM; empty for none."""
    return annotations_of(vm).get(names.INSUFFICIENT_QUOTA_ANNOTATION, "")


def describe_host(name: str, hosts: Iterable[Obj]) -> str:
    """Return the name of a host, and whether it is not ready."""
    return f"{name}, which is not ready" if is_host_down(name, hosts) else name


def is_host_down(name: str, hosts: Iterable[Obj]) -> bool:
    """Return whether a host of this name exists and is not ready."""
    return any(host["metadata"]["name"] == name and not is_ready(host) for host in hosts)


def _unbound_claims(vm: Obj, claims: Mapping[str, str]) -> Iterator[str]:
    """Name the claims of a VM that do not exist or are not bound, with their phase."""
    for name in sorted(claims_of(vm)):
        phase = claims.get(name, "does not exist") or "Pending"
        if phase != "Bound":
            yield f"PersistentVolumeClaim {name} ({phase})"


def _phase(vm: Obj, vmi: Obj | None) -> tuple[VmPhase, str]:
    """Return the phase, and the status that KubeVirt prints (empty if it contradicts the phase)."""
    if being_deleted(vm):
        return VmPhase.DELETING, ""

    printable = text_at(vm, "status", "printableStatus")
    if instance_phase := _instance_phase(vmi):
        return instance_phase, printable

    phase = PHASES.get(printable, VmPhase.UNKNOWN) if printable else VmPhase.STARTING
    if phase in (VmPhase.STOPPING, VmPhase.STOPPED) and _restarts(vm, vmi):
        # A new VM is "Stopped", too, until KubeVirt has created its first instance.
        return (VmPhase.STARTING if vmi is None else VmPhase.RESTARTING), printable

    # If the status of the VM and its instance differ, the instance is newer.
    runs = at(vmi, "status", "phase") == "Running"
    if phase in (VmPhase.RUNNING, VmPhase.STARTING) and runs is not (phase is VmPhase.RUNNING):
        return (VmPhase.RUNNING if runs else VmPhase.STARTING), ""
    return phase, printable


def _instance_phase(vmi: Obj | None) -> VmPhase | None:
    """Return the phase that an instance alone determines, None for none.

    The status of the VM shows it only later.
    """
    if vmi is None:
        return None
    phase = at(vmi, "status", "phase")
    if phase == "Unknown":
        return VmPhase.UNKNOWN
    if is_paused(vmi):
        return VmPhase.PAUSED
    # KubeVirt deletes a failed instance at once, to start the VM again.
    return VmPhase.CRASHED if phase == "Failed" else None


def _restarts(vm: Obj, vmi: Obj | None) -> bool:
    """Return whether KubeVirt, or an evacuation, will restart a VM that is stopping or stopped."""
    if names.EVACUATED_STRATEGY_ANNOTATION in annotations_of(vm):
        return True
    strategy = at(vm, "spec", "runStrategy")
    if strategy != "RerunOnFailure":
        return bool(strategy == "Always")

    # After a guest has shut itself down, its instance has succeeded and the VM stays stopped.
    has_succeeded = at(vmi, "status", "phase") == "Succeeded"
    return vmi is None or not has_succeeded or being_deleted(vmi)


def is_paused(vmi: Obj) -> bool:
    """Return whether the instance is paused, by a user or because of disk errors.

    The status of its VM shows that only later.
    """
    return _has_true_condition(vmi, "Paused")


def is_agent_connected(vmi: Obj) -> bool:
    """Return whether the guest agent answers. KubeVirt removes the condition while it does not."""
    return _has_true_condition(vmi, "AgentConnected")


def _has_true_condition(vmi: Obj, kind: str) -> bool:
    return any(
        (condition.get("type"), condition.get("status")) == (kind, "True")
        for condition in list_at(vmi, "status", "conditions")
    )


def _detail(vm: Obj, vmi: Obj | None) -> str:
    """Return the message of the condition that explains best why the VM does not run."""
    conditions = [*list_at(vmi, "status", "conditions"), *list_at(vm, "status", "conditions")]
    for explanation in _EXPLANATIONS:
        for condition in conditions:
            message = condition.get("message")
            if message and (condition.get("type"), condition.get("status")) == explanation:
                return str(message)
    return ""
