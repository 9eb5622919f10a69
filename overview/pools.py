"""Owners of the entries of IPPools, and which entries leaked: pure decisions.

An address that is released while it is in use gives two machines one address, so an entry is released only
when its mark names this management cluster, the machine or cluster in it no longer exists, and nothing uses
the address. What the Go provider or a person wrote carries no mark: it is listed, with what is known of it, and stays.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from caphv.api import ippool, names, resources
from caphv.api.object import Key, Obj, annotations_of, key_of


class Verdict(StrEnum):
    """What is known of an entry."""

    HELD = "held"
    LEAKED = "leaked"
    """This management cluster made it, its machine or cluster does not exist, and nothing uses the address."""
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
    """Entries of one pool, and what is wrong with its own books."""

    harvester: str
    name: str
    total: int
    available: int
    expected: int
    """What `available` should be by its entries."""
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
        return bool(self.leaked or self.stray_marks or self.error or self.available != self.expected)


@dataclass(slots=True)
class Owners:
    """Everything that may hold an address, as far as it could be read.

    `management_cluster` is the uid of its namespace kube-system, empty when that may not be read.
    `namespaces` are those whose HarvesterMachines and HarvesterClusters were read, None for all. `vms_complete` says
    that all that may use an address was read in all namespaces on Harvester.
    """

    management_cluster: str
    machines: dict[Key, Obj] = field(default_factory=dict)
    namespaces: frozenset[str] | None = None
    vms: list[Obj] = field(default_factory=list)
    instances: list[Obj] = field(default_factory=list)
    services: list[Obj] = field(default_factory=list)
    load_balancers: list[Obj] = field(default_factory=list)
    balancers: dict[Key, Key] = field(default_factory=dict)
    """The HarvesterCluster of each load balancer, which reserves its address before anything of it exists."""
    vms_complete: bool = True

    def sees(self, key: Key) -> bool:
        """Whether an owner of this id was read, so that an absent one does not exist.

        The id of a load balancer has its namespace on Harvester, which does not tell that of its cluster.
        """
        if self.namespaces is None:
            return True
        return key.namespace in self.namespaces and not key.name.endswith(f"-{names.LOAD_BALANCER_SUFFIX}")


def audit(pools: Iterable[Obj], owners: Owners, harvester: str) -> tuple[PoolReport, ...]:
    """Return a report on each pool, by name."""
    return tuple(_report(pool, owners, harvester) for pool in sorted(pools, key=key_of))


def repair(pool: Obj, report: PoolReport) -> Obj | None:
    """Return the one write that releases what leaked, and corrects the pool's books; None when nothing is wrong.

    Its resourceVersion makes it fail as a whole if the pool was written since.
    """
    if report.error or not report.wrong:
        return None
    released = {entry.address: entry.id for entry in report.leaked}
    status = pool.get("status") or {}
    left = {address: each for address, each in ippool.allocated(pool).items() if address not in released}
    marks = {ippool.mark_name(address): None for address in released if ippool.mark(pool, address)}
    marks |= dict.fromkeys(report.stray_marks)
    patch: Obj = {
        "metadata": {"resourceVersion": pool["metadata"]["resourceVersion"]},
        "status": {"available": _expected({**pool, "status": {**status, "allocated": left}})},
    }
    if marks:
        patch["metadata"]["annotations"] = marks
    if released:
        patch["status"] |= {"allocated": dict.fromkeys(released), "allocatedHistory": released}
    return patch


def _report(pool: Obj, owners: Owners, harvester: str) -> PoolReport:
    status = pool.get("status") or {}
    allocated = ippool.allocated(pool)
    name = str(pool["metadata"]["name"])
    available = int(status.get("available") or 0)
    try:
        total, expected = ippool.pool_capacity(pool), _expected(pool)
    except ippool.InvalidPoolError as error:
        return PoolReport(harvester, name, 0, available, available, error=str(error))
    known = {ippool.mark_name(address) for address in allocated}
    marks = (each for each in annotations_of(pool) if each.startswith(names.ADDRESS_HOLDER_PREFIX))
    stray = tuple(sorted(each for each in marks if each not in known and _ours(annotations_of(pool)[each], owners)))
    entries = tuple(
        _entry(pool, address, identity, owners) for address, identity in sorted(allocated.items(), key=_order)
    )
    return PoolReport(harvester, name, total, available, expected, entries, stray)


def _entry(pool: Obj, address: str, identity: str, owners: Owners) -> Entry:
    mark, name = ippool.mark(pool, address), str(pool["metadata"]["name"])
    if mark and owners.management_cluster and not _ours(mark, owners):
        return Entry(name, address, identity, Verdict.FOREIGN, detail=f"of management cluster {mark}…")
    namespace, _, owner_name = identity.partition("/")
    owner, created, detail = _owner(Key(namespace, owner_name), address, owners)
    if owner:
        return Entry(name, address, identity, Verdict.HELD, owner, created, detail)
    if user := _user(address, identity, owners):
        return Entry(name, address, identity, Verdict.IN_USE, user, detail="its owner no longer exists")
    verdict, detail = _without_owner(Key(namespace, owner_name), mark, owners)
    return Entry(name, address, identity, verdict, detail=detail)


def _owner(key: Key, address: str, owners: Owners) -> tuple[str, str, str]:
    """The object that an entry names, the time of its creation, and what is odd about it; empty when there is none."""
    machine = owners.machines.get(key)
    if machine is not None:
        own = str((machine.get("status") or {}).get("allocatedIPAddress") or "")
        odd = f"the machine uses {own}" if own not in ("", address) else ""
        return f"HarvesterMachine {key}", str(machine["metadata"].get("creationTimestamp") or ""), odd
    for kind, objs in ((resources.LOAD_BALANCERS.kind, owners.load_balancers), ("Service", owners.services)):
        found = next((obj for obj in objs if key_of(obj) == key), None)
        if found is not None:
            return f"{kind} {key}", str(found["metadata"].get("creationTimestamp") or ""), ""
    if key in owners.balancers:
        return f"HarvesterCluster {owners.balancers[key]}", "", "its load balancer does not exist yet"
    return "", "", ""


def _without_owner(key: Key, mark: str, owners: Owners) -> tuple[Verdict, str]:
    """Whether an entry without a visible owner has certainly leaked."""
    if not mark:
        return Verdict.UNRECORDED, "no machine, load balancer or Service that is seen has this name"
    if not owners.management_cluster:
        return Verdict.UNKNOWN, "the uid of this management cluster, of namespace kube-system, is not seen"
    if not owners.sees(key):
        return Verdict.UNKNOWN, "HarvesterMachines and HarvesterClusters of all namespaces are not seen"
    if not owners.vms_complete:
        return Verdict.UNKNOWN, "VMs of all namespaces are not seen: give --harvester-kubeconfig"
    return Verdict.LEAKED, "its HarvesterMachine or load balancer no longer exists"


def _expected(pool: Obj) -> int:
    """What `available` should be. Where Harvester counted the ranges otherwise than we do, its total holds."""
    total = (pool.get("status") or {}).get("total")
    free = ippool.free_count(pool)
    return free if total is None else free + int(total) - ippool.pool_capacity(pool)


def _ours(mark: str, owners: Owners) -> bool:
    return bool(mark and owners.management_cluster.startswith(mark))


def _user(address: str, identity: str, owners: Owners) -> str:
    """What uses an address whose owner no longer exists: a VM that was left behind, or a Service."""
    record = f"{resources.HARVESTER_MACHINES.kind}/{identity}"
    for vm in owners.vms:
        if annotations_of(vm).get(names.OWNER_ANNOTATION) == record:
            return f"VirtualMachine {key_of(vm)}"
    for instance in owners.instances:
        for interface in (instance.get("status") or {}).get("interfaces") or ():
            if address in (interface.get("ipAddress"), *(interface.get("ipAddresses") or ())):
                return f"VirtualMachineInstance {key_of(instance)}"
    for service in owners.services:
        ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
        if address == (service.get("spec") or {}).get("loadBalancerIP") or any(
            address == each.get("ip") for each in ingress
        ):
            return f"Service {key_of(service)}"
    return ""


def _order(item: tuple[str, str]) -> tuple[int, int, str]:
    try:
        address = ipaddress.ip_address(item[0])
    except ValueError:
        return 0, 0, item[0]
    return address.version, int(address), ""
