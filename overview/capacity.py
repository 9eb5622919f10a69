"""What is free on a Harvester: hosts and zones, addresses, quotas of namespaces, and storage: pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from caphv.api.names import ZONE_LABEL
from caphv.api.object import Obj, key_of, labels_of
from caphv.api.quantity import quantity
from overview.details import pools_of
from overview.hostcapacity import Host, Size, hosts_of
from overview.model import Pool
from overview.objects import HarvesterObjects

_PERCENT_BY_DEFAULT = 100


@dataclass(frozen=True, slots=True)
class Room:
    """CPUs and bytes of memory of a host, a zone or all hosts, by the requests of Pods."""

    name: str
    hosts: int
    cpu: float
    cpu_free: float
    memory: int
    memory_free: int
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Quota:
    """One limit of a ResourceQuota: CPUs, bytes or a number."""

    namespace: str
    name: str
    resource: str
    hard: float
    used: float

    @property
    def free(self) -> float:
        """What is left; negative when a limit was lowered below what is used."""
        return self.hard - self.used


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes that Longhorn may schedule for replicas, over-provisioning included."""

    total: int
    free: int


@dataclass(slots=True)
class CapacityObjects:
    """What was read of one Harvester. `all_vms` says that instances of all namespaces are in it."""

    harvester: HarvesterObjects
    quotas: list[Obj] = field(default_factory=list)
    disks: list[Obj] = field(default_factory=list)
    """Longhorn's Nodes."""
    over_provisioning: int = _PERCENT_BY_DEFAULT
    all_vms: bool = False


@dataclass(frozen=True, slots=True)
class Capacity:
    """What is free on one Harvester. Without `all_vms`, hosts may have less room than it says."""

    harvester: str
    total: Room
    hosts: tuple[Room, ...] = ()
    zones: tuple[Room, ...] = ()
    pools: tuple[Pool, ...] = ()
    quotas: tuple[Quota, ...] = ()
    storage: Storage | None = None
    all_vms: bool = True


def capacity_of(found: CapacityObjects) -> Capacity:
    """Return what is free on a Harvester; hosts that take no VMs do not count."""
    zones = {str(obj["metadata"]["name"]): labels_of(obj).get(ZONE_LABEL, "") for obj in found.harvester.hosts}
    hosts = hosts_of(found.harvester)
    by_zone: dict[str, list[Host]] = defaultdict(list)
    for host in hosts:
        by_zone[zones.get(host.name, "")].append(host)
    return Capacity(
        found.harvester.server,
        _room("all hosts", hosts),
        tuple(_room(host.name, [host], zones.get(host.name, "")) for host in hosts),
        tuple(_room(zone, members) for zone, members in sorted(by_zone.items()) if zone),
        pools_of(found.harvester),
        tuple(_quotas(found.quotas)),
        _storage(found.disks, found.over_provisioning),
        found.all_vms or all(host.all_pods for host in hosts),
    )


def _room(name: str, hosts: Iterable[Host], zone: str = "") -> Room:
    members = list(hosts)
    total = sum((host.total for host in members), Size())
    free = sum((host.free for host in members), Size())
    return Room(name, len(members), float(total.cpu), float(free.cpu), int(total.memory), int(free.memory), zone)


def _quotas(quotas: Iterable[Obj]) -> Iterator[Quota]:
    for obj in sorted(quotas, key=key_of):
        hard = (obj.get("spec") or {}).get("hard") or {}
        used = (obj.get("status") or {}).get("used") or {}
        for resource in sorted(hard):
            limit, taken = quantity(hard[resource]), quantity(used.get(resource, 0))
            if limit is not None:
                yield Quota(*key_of(obj), resource, float(limit), float(taken or 0))


def _storage(nodes: Iterable[Obj], percent: int) -> Storage | None:
    total = free = Decimal(0)
    seen = False
    for node in nodes:
        specs = (node.get("spec") or {}).get("disks") or {}
        for name, status in ((node.get("status") or {}).get("diskStatus") or {}).items():
            spec = specs.get(name) or {}
            if not spec.get("allowScheduling", True):
                continue
            seen = True
            usable = Decimal(int(status.get("storageMaximum") or 0) - int(spec.get("storageReserved") or 0))
            room = usable * percent / 100
            total += room
            free += room - int(status.get("storageScheduled") or 0)
    return Storage(int(total), int(free)) if seen else None
