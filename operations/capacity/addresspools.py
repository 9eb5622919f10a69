"""Find the owners of entries in IPPools, and the entries that leaked. No I/O.

Releasing an address that is in use would give it to two machines. An entry is therefore released
only if its mark names this management cluster, the machine or cluster in it no longer exists, and
nothing uses the address. An entry of the Go provider or of a person has no mark. It is listed, and
stays.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from caphv.api import ippool, names, resources
from caphv.api.interfaces import harvester_pools
from caphv.api.object import Key, Obj, annotations_of, at, dict_at, key_of, list_at, text_at

_CONFIGS = ("vmNetworkConfig", "loadBalancerConfig")


class Verdict(StrEnum):
    """Whether an address or another object has an owner."""

    HELD = "held"
    LEAKED = "leaked"
    """This management cluster has created it, its owner does not exist, and nothing uses it."""
    IN_USE = "in use"
    """Its owner does not exist, but something uses it."""
    FOREIGN = "foreign"
    """Another management cluster has created it."""
    UNRECORDED = "unrecorded"
    """It has no record of its creator: the Go provider, Harvester, or a person."""
    UNKNOWN = "unknown"
    """Its owner may exist where the account may not read."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reason."""

    verdict: Verdict
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An allocated address of a pool.

    :param id: the owner that the pool names
    :param owner: kind and name of the owner, or of what uses the address; empty without any
    :param created: when the owner was created; empty without one
    :param detail: the reason for the verdict
    """

    pool: str
    address: str
    id: str
    verdict: Verdict
    owner: str = ""
    created: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReport:
    """Entries of one pool, and errors in its counts and marks.

    :param available: the number of free addresses in its status
    :param expected: the value that `available` should have, according to the entries
    :param stray_marks: names of annotations that mark addresses which are not allocated
    :param error: why its ranges are invalid; empty if they are valid
    """

    harvester: str
    name: str
    total: int
    available: int
    expected: int
    entries: tuple[Entry, ...] = ()
    stray_marks: tuple[str, ...] = ()
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

    :param management_cluster: the uid of its namespace kube-system; empty if that cannot be read
    :param namespaces: where HarvesterMachines and HarvesterClusters were read; None for everywhere
    :param balancers: the HarvesterCluster of each load balancer, whose address is reserved before
        the load balancer exists
    :param vms_complete: all possible users of addresses were read in all namespaces on Harvester
    """

    management_cluster: str
    machines: dict[Key, Obj] = field(default_factory=dict)
    namespaces: frozenset[str] | None = None
    vms: list[Obj] = field(default_factory=list)
    instances: list[Obj] = field(default_factory=list)
    services: list[Obj] = field(default_factory=list)
    load_balancers: list[Obj] = field(default_factory=list)
    balancers: dict[Key, Key] = field(default_factory=dict)
    vms_complete: bool = True

    def sees(self, key: Key) -> bool:
        """Return whether an owner with this id would have been read if it existed."""
        if self.namespaces is None:
            return True

        # The id of a load balancer names a namespace on Harvester. Its cluster may be in any
        # namespace of the management cluster.
        return key.namespace in self.namespaces and not key.name.endswith(
            f"-{names.LOAD_BALANCER_SUFFIX}"
        )


def audit(pools: Iterable[Obj], owners: Owners, harvester: str) -> tuple[PoolReport, ...]:
    """Return a report on each pool, sorted by name."""
    return tuple(_report(pool, owners, harvester) for pool in sorted(pools, key=key_of))


def repair(pool: Obj, report: PoolReport) -> Obj | None:
    """Return the patch that releases leaked entries and corrects counts; None without any."""
    if report.error or not report.wrong:
        return None

    released = {entry.address: entry.id for entry in report.leaked}
    remaining = {
        address: identity
        for address, identity in ippool.allocated(pool).items()
        if address not in released
    }
    status = {**(pool.get("status") or {}), "allocated": remaining}
    # With the resourceVersion, the patch fails as a whole if the pool was modified since.
    patch: Obj = {
        "metadata": {"resourceVersion": pool["metadata"]["resourceVersion"]},
        "status": {"available": _expected_available({**pool, "status": status})},
    }

    marks = {ippool.mark_name(address): None for address in released if ippool.mark(pool, address)}
    marks |= dict.fromkeys(report.stray_marks)
    if marks:
        patch["metadata"]["annotations"] = marks
    # Like Harvester, record the released addresses in the history, by which an id gets its former
    # address again.
    if released:
        patch["status"] |= {"allocated": dict.fromkeys(released), "allocatedHistory": released}
    return patch


def used_pools(clusters: Sequence[Obj], machines: Sequence[Obj]) -> set[str]:
    """Return the names of IPPools that clusters name or create, or that machines have addresses of.

    :param clusters: HarvesterClusters of one Harvester
    :param machines: HarvesterMachines of these and of other clusters
    """
    used: set[str] = set()
    for obj in (*clusters, *machines):
        for config in _CONFIGS:
            used.update(ippool.referenced_pools(dict_at(obj, "spec", config)))
        # A machine keeps its address when its cluster names other pools.
        used.update(ippool.referenced_pools({"ipPoolRef": at(obj, "status", "allocatedPoolRef")}))
        used.update(
            str(entry.get("pool")) for entry in list_at(obj, "status", "interfaceAddresses")
        )
        used.update(name for _, _, name in harvester_pools(dict_at(obj, "spec")))

    suffixes = {"vmNetworkConfig": names.VM_POOL_SUFFIX, "loadBalancerConfig": names.POOL_SUFFIX}
    for cluster in clusters:
        for config, suffix in suffixes.items():
            if at(cluster, "spec", config, "ipPool"):
                used.update(names.generated_names(cluster, suffix))
    return used


def _report(pool: Obj, owners: Owners, harvester: str) -> PoolReport:
    """Return the report on a pool. If its ranges are invalid, the report has no entries."""
    name = str(pool["metadata"]["name"])
    available = int(at(pool, "status", "available") or 0)
    try:
        total = ippool.pool_capacity(pool)
        expected = _expected_available(pool)
    except ippool.InvalidPoolError as error:
        # Without valid ranges, no count can be expected, so none is reported as wrong.
        return PoolReport(
            harvester=harvester,
            name=name,
            total=0,
            available=available,
            expected=available,
            error=str(error),
        )

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
    return PoolReport(
        harvester=harvester,
        name=name,
        total=total,
        available=available,
        expected=expected,
        entries=entries,
        stray_marks=stray_marks,
    )


def _entry(pool: Obj, address: str, identity: str, owners: Owners) -> Entry:
    """Return the entry of an allocated address.

    :param pool: the IPPool
    :param address: the address
    :param identity: the owner that the pool names
    :param owners: everything that may hold an address
    """
    entry = Entry(
        pool=str(pool["metadata"]["name"]),
        address=address,
        id=identity,
        verdict=Verdict.HELD,
    )
    # A mark is the beginning of the uid of a management cluster.
    mark = ippool.mark(pool, address)
    if mark and owners.management_cluster and not _is_ours(mark, owners):
        detail = f"of management cluster {mark}…"
        return replace(entry, verdict=Verdict.FOREIGN, detail=detail)

    namespace, _, owner_name = identity.partition("/")
    key = Key(namespace, owner_name)
    if owner := _find_owner(key, address, owners):
        return replace(entry, owner=owner.name, created=owner.created, detail=owner.detail)
    if user := _find_user(address, identity, owners):
        detail = "its owner no longer exists"
        return replace(entry, verdict=Verdict.IN_USE, owner=user, detail=detail)

    judgement = _check_ownerless(key, mark, owners)
    return replace(entry, verdict=judgement.verdict, detail=judgement.detail)


@dataclass(frozen=True, slots=True)
class _FoundOwner:
    """The object that an entry names.

    :param name: its kind, namespace and name
    :param created: when it was created; empty if it does not exist yet
    :param detail: what does not match the entry; empty if everything does
    """

    name: str
    created: str
    detail: str = ""


def _find_owner(key: Key, address: str, owners: Owners) -> _FoundOwner | None:
    """Return the object that an entry names; None if it does not exist."""
    # The name of a machine of the Go provider may look like the id of an interface.
    machine_key = key
    if key not in owners.machines:
        machine_key = Key(key.namespace, ippool.machine_holder(key.name))
    machine = owners.machines.get(machine_key)
    if machine is not None:
        used = _used_addresses(machine, of_interfaces=machine_key != key)
        detail = f"the machine uses {', '.join(used)}" if used and address not in used else ""
        return _FoundOwner(f"HarvesterMachine {machine_key}", _creation_time(machine), detail)

    for obj in owners.load_balancers:
        if key_of(obj) == key:
            return _FoundOwner(f"{resources.LOAD_BALANCERS.kind} {key}", _creation_time(obj))
    for obj in owners.services:
        if key_of(obj) == key:
            return _FoundOwner(f"Service {key}", _creation_time(obj))

    cluster = owners.balancers.get(key)
    if cluster is None:
        return None
    return _FoundOwner(f"HarvesterCluster {cluster}", "", "its load balancer does not exist yet")


def _used_addresses(machine: Obj, *, of_interfaces: bool) -> list[str]:
    """Return the addresses of IPPools in the status of a machine.

    :param of_interfaces: whether to return the addresses of its interfaces instead of its own
    """
    if of_interfaces:
        return [
            text_at(entry, "address") for entry in list_at(machine, "status", "interfaceAddresses")
        ]
    address = text_at(machine, "status", "allocatedIPAddress")
    return [address] if address else []


def _creation_time(obj: Obj) -> str:
    return str(obj["metadata"].get("creationTimestamp") or "")


def _check_ownerless(key: Key, mark: str, owners: Owners) -> Judgement:
    """Return the judgement on an entry without a visible owner.

    :param key: namespace and name of the owner
    :param mark: the management cluster that the mark of the address names; empty without a mark
    """
    if not mark:
        reason = "no machine, load balancer or Service that is seen has this name"
        return Judgement(Verdict.UNRECORDED, reason)

    # Each of these gaps in what was read could hide the owner or a user of the address.
    if not owners.management_cluster:
        reason = "the uid of this management cluster, of namespace kube-system, is not seen"
        return Judgement(Verdict.UNKNOWN, reason)
    if not owners.sees(key):
        reason = "HarvesterMachines and HarvesterClusters of all namespaces are not seen"
        return Judgement(Verdict.UNKNOWN, reason)
    if not owners.vms_complete:
        reason = "VMs of all namespaces are not seen: give --harvester-kubeconfig"
        return Judgement(Verdict.UNKNOWN, reason)

    return Judgement(Verdict.LEAKED, "its HarvesterMachine or load balancer no longer exists")


def _expected_available(pool: Obj) -> int:
    """Return the value that `available` should have."""
    free = ippool.free_count(pool)
    total = at(pool, "status", "total")
    if total is None:
        return free

    # Harvester may count the addresses of a range differently than `ippool`, and its total counts.
    used = ippool.pool_capacity(pool) - free
    return int(total) - used


def _is_ours(mark: str, owners: Owners) -> bool:
    return bool(mark and owners.management_cluster.startswith(mark))


def _find_user(address: str, identity: str, owners: Owners) -> str:
    """Return the VM or Service that uses an address whose owner no longer exists."""
    # A stopped VM has no instance that shows its address, but its record names the machine.
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
    """Return a key that sorts addresses by number, after invalid addresses."""
    try:
        address = ipaddress.ip_address(item[0])
    except ValueError:
        return 0, 0, item[0]
    return address.version, int(address), ""
