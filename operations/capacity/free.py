"""Compute the free capacity of a Harvester: hosts, zones, addresses, quotas, storage. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from caphv.api.names import ZONE_LABEL
from caphv.api.object import Obj, at, dict_at, key_of, labels_of
from caphv.api.quantity import quantity
from operations.capacity.hosts import Host, Size, hosts_of
from operations.read.objects import HarvesterObjects
from operations.status.details import pools_of
from operations.status.model import AddressPool

# Longhorn's default of storage-over-provisioning-percentage.
_DEFAULT_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """CPUs and bytes of memory of a host, a zone or all hosts, by the requests of Pods.

    :param hosts: the number of hosts
    :param zone: the zone of a host; empty without one
    """

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
        """The unused amount; negative if the limit was lowered below the use."""
        return self.hard - self.used


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes that Longhorn may schedule for replicas, including over-provisioning."""

    total: int
    free: int


@dataclass(slots=True)
class CapacityObjects:
    """Objects of one Harvester.

    :param disks: Longhorn's Nodes, which list their disks
    :param over_provisioning: by how many percent of a disk Longhorn schedules replicas
    :param all_vms: instances of all namespaces were read
    """

    harvester: HarvesterObjects
    quotas: list[Obj] = field(default_factory=list)
    disks: list[Obj] = field(default_factory=list)
    over_provisioning: int = _DEFAULT_PERCENT
    all_vms: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The free capacity of one Harvester.

    :param harvester: its URL
    :param all_vms: the VMs of all namespaces were counted. Otherwise, hosts may have less room.
    """

    harvester: str
    total: Room
    hosts: tuple[Room, ...] = ()
    zones: tuple[Room, ...] = ()
    pools: tuple[AddressPool, ...] = ()
    quotas: tuple[Quota, ...] = ()
    storage: Storage | None = None
    all_vms: bool = True


def capacity_of(objects: CapacityObjects) -> Capacity:
    """Return the free capacity of a Harvester, without hosts that accept no VMs."""
    harvester = objects.harvester
    zones = {
        str(obj["metadata"]["name"]): labels_of(obj).get(ZONE_LABEL, "") for obj in harvester.hosts
    }
    hosts = hosts_of(harvester)
    by_zone: dict[str, list[Host]] = defaultdict(list)
    for host in hosts:
        by_zone[zones.get(host.name, "")].append(host)

    return Capacity(
        harvester=harvester.server,
        total=_room("all hosts", hosts),
        hosts=tuple(_room(host.name, [host], zones.get(host.name, "")) for host in hosts),
        zones=tuple(_room(zone, members) for zone, members in sorted(by_zone.items()) if zone),
        pools=pools_of(harvester),
        quotas=tuple(_quotas(objects.quotas)),
        storage=_storage(objects.disks, objects.over_provisioning),
        all_vms=objects.all_vms or all(host.all_pods for host in hosts),
    )


def _room(name: str, hosts: Sequence[Host], zone: str = "") -> Room:
    """Add up the total and the free resources of hosts."""
    total = sum((host.total for host in hosts), Size())
    free = sum((host.free for host in hosts), Size())
    return Room(
        name=name,
        hosts=len(hosts),
        cpu=float(total.cpu),
        cpu_free=float(free.cpu),
        memory=int(total.memory),
        memory_free=int(free.memory),
        zone=zone,
    )


def _quotas(quotas: Iterable[Obj]) -> Iterator[Quota]:
    """Yield the limits of ResourceQuotas that are valid quantities."""
    for obj in sorted(quotas, key=key_of):
        limits = dict_at(obj, "spec", "hard")
        used = dict_at(obj, "status", "used")
        for resource in sorted(limits):
            limit = quantity(limits[resource])
            amount = quantity(used.get(resource, 0))
            if limit is not None:
                yield Quota(*key_of(obj), resource, float(limit), float(amount or 0))


def _storage(nodes: Iterable[Obj], percent: int) -> Storage | None:
    """Return the bytes that Longhorn may schedule on disks of its Nodes; None without any disk.

    :param nodes: Longhorn's Nodes
    :param percent: see `CapacityObjects.over_provisioning`
    """
    total = free = Decimal(0)
    has_disks = False
    for node in nodes:
        if at(node, "spec", "allowScheduling") is False:
            continue
        specs = dict_at(node, "spec", "disks")
        for name, status in dict_at(node, "status", "diskStatus").items():
            spec = specs.get(name) or {}
            if not spec.get("allowScheduling", True):
                continue

            # Longhorn's scheduler applies the percentage to the bytes that are not reserved.
            has_disks = True
            maximum = int(status.get("storageMaximum") or 0)
            reserved = int(spec.get("storageReserved") or 0)
            room = Decimal(maximum - reserved) * percent / 100
            total += room
            free += room - int(status.get("storageScheduled") or 0)
    return Storage(int(total), int(free)) if has_disks else None
