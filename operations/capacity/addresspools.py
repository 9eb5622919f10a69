"""Find the owners of the entries of IPPools, and the entries that leaked: pure decisions.

Releasing an address that is in use would give one address to two machines. So an entry is released
only when its mark names this management cluster, the machine or cluster in it no longer exists, and
nothing uses the address. An entry of the Go provider or of a person has no mark. It is listed with
all that is known of it, and stays.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from caphv.api import ippool, names, resources
from caphv.api.object import Key, Obj, annotations_of, at, key_of, list_at, text_at


class Verdict(StrEnum):
    """The state of an entry, as far as it is known."""

    HELD = "held"
    LEAKED = "leaked"
    """This management cluster made it, its owner does not exist, and nothing uses the address."""
    IN_USE = "in use"
    """Its owner does not exist, but a VM or a Service has the address."""
    FOREIGN = "foreign"
    """Another management cluster made it."""
    UNRECORDED = "unrecorded"
    """Nothing says who made it: the Go provider, Harvester, or a person."""
    UNKNOWN = "unknown"
    """Its owner may exist where the user may not read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An allocated address of a pool; `created` is the time of its owner, where that exists."""

    pool: str
    address: str
    id: str
    verdict: Verdict
    owner: str = ""
    created: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PoolReport:
    """Entries of one pool, and errors in its own counts and marks."""

    harvester: str
    name: str
    total: int
    available: int
    expected: int
    """The value that `available` should have, according to the entries."""
    entries: tuple[Entry, ...] = ()
    stray_marks: tuple[str, ...] = ()
    """Marks of addresses that are not allocated, by name of the annotation."""
    error: str = ""

    @property
    def leaked(self) -> tuple[Entry, ...]:
        """Entries that may be released."""
        return tuple(entry for entry in self.entries if entry.verdict is Verdict.LEAKED)

    @property
    def wrong(self) -> bool:
        """Whether a repair would change something."""
        return bool(
            self.leaked or self.stray_marks or self.error or self.available != self.expected
        )


@dataclass(slots=True)
class Owners:
    """Everything that may hold an address, as far as it could be read.

    `management_cluster` is the uid of its namespace kube-system, empty when that may not be read.
    `namespaces` names the namespaces in which HarvesterMachines and HarvesterClusters were read,
    None for all. `vms_complete` says that all possible users of addresses were read in all
    namespaces on Harvester.
    """

    management_cluster: str
    machines: dict[Key, Obj] = field(default_factory=dict)
    namespaces: frozenset[str] | None = None
    vms: list[Obj] = field(default_factory=list)
    instances: list[Obj] = field(default_factory=list)
    services: list[Obj] = field(default_factory=list)
    load_balancers: list[Obj] = field(default_factory=list)
    balancers: dict[Key, Key] = field(default_factory=dict)
    """The HarvesterCluster of each load balancer, whose address is reserved before it exists."""
    vms_complete: bool = True

    def sees(self, key: Key) -> bool:
        """Whether an owner of this id was read, so that an absent one does not exist."""
        if self.namespaces is None:
            return True

        # The id of a load balancer names a namespace on Harvester. Its cluster may be in any
        # namespace of the management cluster.
        return key.namespace in self.namespaces and not key.name.endswith(
            f"-{names.LOAD_BALANCER_SUFFIX}"
        )


def audit(pools: Iterable[Obj], owners: Owners, harvester: str) -> tuple[PoolReport, ...]:
    """Return a report on each pool, by name."""
    return tuple(_report(pool, owners, harvester) for pool in sorted(pools, key=key_of))


def repair(pool: Obj, report: PoolReport) -> Obj | None:
    """Return the patch that releases leaked entries and corrects the counts, None without any."""
    if report.error or not report.wrong:
        return None

    released = {entry.address: entry.id for entry in report.leaked}
    remaining = {
        address: identity
        for address, identity in ippool.allocated(pool).items()
        if address not in released
    }
    status = {**(pool.get("status") or {}), "allocated": remaining}
    # With its resourceVersion, the patch fails as a whole if the pool was written since.
    patch: Obj = {
        "metadata": {"resourceVersion": pool["metadata"]["resourceVersion"]},
        "status": {"available": _expected_available({**pool, "status": status})},
    }

    marks = {ippool.mark_name(address): None for address in released if ippool.mark(pool, address)}
    marks |= dict.fromkeys(report.stray_marks)
    if marks:
        patch["metadata"]["annotations"] = marks
    # Harvester keeps a history when it releases an address, by which an id gets its former address
    # again.
    if released:
        patch["status"] |= {"allocated": dict.fromkeys(released), "allocatedHistory": released}
    return patch


def _report(pool: Obj, owners: Owners, harvester: str) -> PoolReport:
    """Return the report on a pool; if its ranges are invalid, the report has only the error."""
    name = str(pool["metadata"]["name"])
    available = int(at(pool, "status", "available") or 0)
    try:
        total, expected = ippool.pool_capacity(pool), _expected_available(pool)
    except ippool.InvalidPoolError as error:
        return PoolReport(harvester, name, 0, available, available, error=str(error))

    allocated = ippool.allocated(pool)
    entries = tuple(
        _entry(pool, address, identity, owners)
        for address, identity in sorted(allocated.items(), key=_sort_key)
    )

    # Other management clusters remove their own marks.
    valid_marks = {ippool.mark_name(address) for address in allocated}
    stray_marks = tuple(
        sorted(
            mark
            for mark, cluster in annotations_of(pool).items()
            if mark.startswith(names.ADDRESS_HOLDER_PREFIX)
            and mark not in valid_marks
            and _is_ours(cluster, owners)
        )
    )
    return PoolReport(harvester, name, total, available, expected, entries, stray_marks)


def _entry(pool: Obj, address: str, identity: str, owners: Owners) -> Entry:
    """Return the entry of an allocated address.

    :param pool: the IPPool
    :param address: the address
    :param identity: the owner that the pool names
    :param owners: everything that may hold an address
    """
    name = str(pool["metadata"]["name"])
    # A mark is the beginning of the uid of a management cluster.
    mark = ippool.mark(pool, address)
    if mark and owners.management_cluster and not _is_ours(mark, owners):
        detail = f"of management cluster {mark}…"
        return Entry(name, address, identity, Verdict.FOREIGN, detail=detail)

    namespace, _, owner_name = identity.partition("/")
    key = Key(namespace, owner_name)
    owner, created, detail = _owner(key, address, owners)
    if owner:
        return Entry(name, address, identity, Verdict.HELD, owner, created, detail)
    if user := _user(address, identity, owners):
        detail = "its owner no longer exists"
        return Entry(name, address, identity, Verdict.IN_USE, user, detail=detail)

    verdict, detail = _verdict(key, mark, owners)
    return Entry(name, address, identity, verdict, detail=detail)


def _owner(key: Key, address: str, owners: Owners) -> tuple[str, str, str]:
    """Return the object that an entry names, its time of creation, and an oddity of it.

    All three are empty when no such object exists.
    """
    # The name of a machine of the Go provider may look like the id of an interface.
    is_whole = key in owners.machines
    owner = key if is_whole else Key(key.namespace, ippool.machine_holder(key.name))
    machine = owners.machines.get(owner)
    if machine is not None:
        used = _used_addresses(machine, of_interfaces=owner != key)
        odd = f"the machine uses {', '.join(used)}" if used and address not in used else ""
        return f"HarvesterMachine {owner}", _creation_time(machine), odd

    for obj in owners.load_balancers:
        if key_of(obj) == key:
            return f"{resources.LOAD_BALANCERS.kind} {key}", _creation_time(obj), ""
    for obj in owners.services:
        if key_of(obj) == key:
            return f"Service {key}", _creation_time(obj), ""

    cluster = owners.balancers.get(key)
    if cluster is not None:
        return f"HarvesterCluster {cluster}", "", "its load balancer does not exist yet"
    return "", "", ""


def _used_addresses(machine: Obj, *, of_interfaces: bool) -> list[str]:
    """Return the addresses of IPPools in a machine's status: its own, or those of interfaces."""
    if of_interfaces:
        return [
            text_at(entry, "address") for entry in list_at(machine, "status", "interfaceAddresses")
        ]
    address = text_at(machine, "status", "allocatedIPAddress")
    return [address] if address else []


def _creation_time(obj: Obj) -> str:
    return str(obj["metadata"].get("creationTimestamp") or "")


def _verdict(key: Key, mark: str, owners: Owners) -> tuple[Verdict, str]:
    """Return the verdict on an entry without a visible owner, and the reason."""
    if not mark:
        reason = "no machine, load balancer or Service that is seen has this name"
        return Verdict.UNRECORDED, reason

    # An object that may not be read may exist, so that each of these gaps could hide the owner or a
    # user of the address.
    if not owners.management_cluster:
        reason = "the uid of this management cluster, of namespace kube-system, is not seen"
        return Verdict.UNKNOWN, reason
    if not owners.sees(key):
        reason = "HarvesterMachines and HarvesterClusters of all namespaces are not seen"
        return Verdict.UNKNOWN, reason
    if not owners.vms_complete:
        return Verdict.UNKNOWN, "VMs of all namespaces are not seen: give --harvester-kubeconfig"

    return Verdict.LEAKED, "its HarvesterMachine or load balancer no longer exists"


def _expected_available(pool: Obj) -> int:
    """Return the value that `available` should have."""
    free = ippool.free_count(pool)
    total = at(pool, "status", "total")
    if total is None:
        return free

    # Harvester may count the addresses of a range differently than `ippool`. Its total is right.
    used = ippool.pool_capacity(pool) - free
    return int(total) - used


def _is_ours(mark: str, owners: Owners) -> bool:
    return bool(mark and owners.management_cluster.startswith(mark))


def _user(address: str, identity: str, owners: Owners) -> str:
    """Return the user of an address whose owner no longer exists: a leftover VM, or a Service."""
    # A VM that is shut down has no instance that shows its address, but it names its machine.
    record = f"{resources.HARVESTER_MACHINES.kind}/{identity}"
    for vm in owners.vms:
        if annotations_of(vm).get(names.OWNER_ANNOTATION) == record:
            return f"VirtualMachine {key_of(vm)}"

    for instance in owners.instances:
        for interface in list_at(instance, "status", "interfaces"):
            if address in (interface.get("ipAddress"), *(interface.get("ipAddresses") or ())):
                return f"VirtualMachineInstance {key_of(instance)}"

    for service in owners.services:
        ingress = list_at(service, "status", "loadBalancer", "ingress")
        addresses = [at(service, "spec", "loadBalancerIP"), *(entry.get("ip") for entry in ingress)]
        if address in addresses:
            return f"Service {key_of(service)}"
    return ""


def _sort_key(item: tuple[str, str]) -> tuple[int, int, str]:
    """Return a key that sorts addresses by number, and invalid addresses before them."""
    try:
        address = ipaddress.ip_address(item[0])
    except ValueError:
        return 0, 0, item[0]
    return address.version, int(address), ""
