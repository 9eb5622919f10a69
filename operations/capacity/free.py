"""Count what is free on a Harvester: hosts and zones, addresses, quotas and storage. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from caphv.api.names import ZONE_LABEL
from caphv.api.object import Obj, dict_at, key_of, labels_of
from caphv.api.quantity import quantity
from operations.capacity.hosts import Host, Size, hosts_of
from operations.read.objects import HarvesterObjects
from operations.status.details import pools_of
from operations.status.model import AddressPool

# Longhorn's default of storage-over-provisioning-percentage.
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
        """The unused rest; negative when the limit was lowered below the use."""
        return self.hard - self.used


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes that Longhorn may schedule for replicas, over-provisioning included."""

    total: int
    free: int


@dataclass(slots=True)
class CapacityObjects:
    """Objects of one Harvester; `all_vms` says that instances of all namespaces were read."""

    harvester: HarvesterObjects
    quotas: list[Obj] = field(default_factory=list)
    disks: list[Obj] = field(default_factory=list)
    """Longhorn's Nodes."""
    over_provisioning: int = _PERCENT_BY_DEFAULT
    all_vms: bool = False


@dataclass(frozen=True, slots=True)
class Capacity:
    """The free capacity of one Harvester; without `all_vms`, hosts may have less room than that."""

    harvester: str
    total: Room
    hosts: tuple[Room, ...] = ()
    zones: tuple[Room, ...] = ()
    pools: tuple[AddressPool, ...] = ()
    quotas: tuple[Quota, ...] = ()
    storage: Storage | None = None
    all_vms: bool = True


def capacity_of(objects: CapacityObjects) -> Capacity:
    """Return the free capacity of a Harvester; hosts that take no VMs do not count."""
    harvester = objects.harvester
    zones = {
        str(obj["metadata"]["name"]): labels_of(obj).get(ZONE_LABEL, "") for obj in harvester.hosts
    }
    hosts = hosts_of(harvester)
    by_zone: dict[str, list[Host]] = defaultdict(list)
    for host in hosts:
        by_zone[zones.get(host.name, "")].append(host)

    return Capacity(
        harvester.server,
        _room("all hosts", hosts),
        tuple(_room(host.name, [host], zones.get(host.name, "")) for host in hosts),
        tuple(_room(zone, members) for zone, members in sorted(by_zone.items()) if zone),
        pools_of(harvester),
        tuple(_quotas(objects.quotas)),
        _storage(objects.disks, objects.over_provisioning),
        objects.all_vms or all(host.all_pods for host in hosts),
    )


def _room(name: str, hosts: Sequence[Host], zone: str = "") -> Room:
    """Add up the total and the free resources of hosts."""
    total = sum((host.total for host in hosts), Size())
    free = sum((host.free for host in hosts), Size())
    cpu, cpu_free = float(total.cpu), float(free.cpu)
    return Room(name, len(hosts), cpu, cpu_free, int(total.memory), int(free.memory), zone)


def _quotas(quotas: Iterable[Obj]) -> Iterator[Quota]:
    """Yield the limits of ResourceQuotas that are valid quantities."""
    for obj in sorted(quotas, key=key_of):
        hard, used = dict_at(obj, "spec", "hard"), dict_at(obj, "status", "used")
        for resource in sorted(hard):
            limit, amount = quantity(hard[resource]), quantity(used.get(resource, 0))
            if limit is not None:
                yield Quota(*key_of(obj), resource, float(limit), float(amount or 0))


def _storage(nodes: Iterable[Obj], percent: int) -> Storage | None:
    """Return the bytes that Longhorn may schedule on disks of its Nodes; None without any disk."""
    total = free = Decimal(0)
    has_disks = False
    for node in nodes:
        specs, statuses = dict_at(node, "spec", "disks"), dict_at(node, "status", "diskStatus")
        for name, status in statuses.items():
            spec = specs.get(name) or {}
            if not spec.get("allowScheduling", True):
                continue

            # Longhorn's scheduler applies the percentage to the bytes that are not reserved.
            has_disks = True
            maximum, reserved = status.get("storageMaximum"), spec.get("storageReserved")
            room = Decimal(int(maximum or 0) - int(reserved or 0)) * percent / 100
            total += room
            free += room - int(status.get("storageScheduled") or 0)
    return Storage(int(total), int(free)) if has_disks else None
