"""Which room the hosts of a Harvester have for further VMs: pure.

Counted is what Pods request, as the scheduler does. Harvester writes the sum of a host's Pods to an annotation of the
host every 15 seconds, so an identity that may see only its own namespaces knows about the VMs of others, too. Without
the annotation the VMs that are seen count, and the answer is an upper bound; a host that is full by it is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from caphv.api.names import MAINTENANCE_ANNOTATION, POD_REQUESTS_ANNOTATION, WITNESS_LABEL
from caphv.api.object import Obj, annotations_of, labels_of
from caphv.api.quantity import quantity
from caphv.runtime.text import TextError, load_json
from overview.details import host_ready
from overview.objects import HarvesterObjects

_GIB = Decimal(1024) ** 3


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """CPUs and bytes of memory."""

    cpu: Decimal = Decimal(0)
    memory: Decimal = Decimal(0)

    @classmethod
    def of(cls, cpu: object, memory: object) -> Size:
        """Read two quantities; what is none counts as 0."""
        return cls(quantity(cpu) or Decimal(0), quantity(memory) or Decimal(0))

    def __bool__(self) -> bool:
        return bool(self.cpu or self.memory)

    def __str__(self) -> str:
        return f"{_short(self.cpu)} CPU and {_short(self.memory / _GIB)} GiB"

    def __sub__(self, other: Size) -> Size:
        return Size(self.cpu - other.cpu, self.memory - other.memory)

    def __add__(self, other: Size) -> Size:
        return Size(self.cpu + other.cpu, self.memory + other.memory)

    def __or__(self, other: Size) -> Size:
        return Size(max(self.cpu, other.cpu), max(self.memory, other.memory))

    def fits(self, room: Size) -> bool:
        """Whether it fits into a room."""
        return self.cpu <= room.cpu and self.memory <= room.memory


@dataclass(frozen=True, slots=True)
class Host:
    """A host that takes VMs, with what it has and what VMs on it request; `all_pods`: what all of its Pods do."""

    name: str
    total: Size
    used: Size
    all_pods: bool = False

    @property
    def free(self) -> Size:
        """What is left."""
        return self.total - self.used


def hosts_of(harvester: HarvesterObjects) -> list[Host]:
    """Return the hosts that take VMs: ready, not cordoned, not in maintenance, and no witness."""
    used: dict[str, Size] = {}
    for instance in harvester.instances:
        host = str((instance.get("status") or {}).get("nodeName") or "")
        used[host] = used.get(host, Size()) + requested(instance.get("spec") or {})
    found = []
    for obj in harvester.hosts:
        closed = (obj.get("spec") or {}).get("unschedulable") or MAINTENANCE_ANNOTATION in annotations_of(obj)
        if closed or labels_of(obj).get(WITNESS_LABEL) == "true" or not host_ready(obj):
            continue
        total = (obj.get("status") or {}).get("allocatable") or {}
        name = str(obj["metadata"]["name"])
        pods = _pod_requests(obj)
        # VMs that started since the annotation was written are not in it.
        taken = used.get(name, Size()) | (pods or Size())
        found.append(Host(name, Size.of(total.get("cpu"), total.get("memory")), taken, pods is not None))
    return sorted(found, key=lambda host: host.name)


def requested(spec: Obj) -> Size:
    """Return what a VirtualMachineInstance requests of its host: requests, else limits, else the guest's size."""
    domain = spec.get("domain") or {}
    resources = domain.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    cpu, memory = domain.get("cpu") or {}, domain.get("memory") or {}
    return Size.of(wanted.get("cpu", cpu.get("cores")), wanted.get("memory", memory.get("guest")))


@dataclass(frozen=True, slots=True)
class Overcommit:
    """Which shares of its limits a VM requests of its host; None where no VM shows it."""

    cpu: Decimal | None = None
    memory: Decimal | None = None

    @property
    def known(self) -> bool:
        """Whether VMs show both shares."""
        return self.cpu is not None and self.memory is not None

    def requests(self, limits: Size) -> Size:
        """What VMs with these limits request; all of it where no VM shows the share."""
        # Rounded: a share such as 2/3 has no last digit, and would make VMs a trace larger than the room they fill.
        return Size(round(limits.cpu * (self.cpu or 1), 6), round(limits.memory * (self.memory or 1), 6))


def overcommit_of(instances: Iterable[Obj]) -> Overcommit:
    """Return the largest shares that VMs show: some, for example with dedicated CPUs, request more than others.

    Harvester divides limits by its setting `overcommit-config`, which an identity may not read.
    """
    cpu, memory = [], []
    for instance in instances:
        resources = ((instance.get("spec") or {}).get("domain") or {}).get("resources") or {}
        found = (resources.get(kind) or {} for kind in ("limits", "requests"))
        limits, requests = (Size.of(each.get("cpu"), each.get("memory")) for each in found)
        cpu += [requests.cpu / limits.cpu] if requests.cpu and limits.cpu else []
        memory += [requests.memory / limits.memory] if requests.memory and limits.memory else []
    return Overcommit(max(cpu, default=None), max(memory, default=None))


def unplaced(hosts: Iterable[Host], sizes: Sequence[Size]) -> int:
    """Return how many VMs find no host, the largest first, each on the host with the most memory left."""
    free = {host.name: host.free for host in hosts}
    left = 0
    for size in sorted(sizes, reverse=True):
        fitting = [name for name, room in free.items() if size.fits(room)]
        if not fitting:
            left += 1
            continue
        best = max(fitting, key=lambda name: free[name].memory)
        free[best] = free[best] - size
    return left


def _pod_requests(host: Obj) -> Size | None:
    try:
        wanted = load_json(annotations_of(host).get(POD_REQUESTS_ANNOTATION) or "")
    except TextError:
        return None
    return Size.of(wanted.get("cpu"), wanted.get("memory")) if isinstance(wanted, dict) else None


def _short(number: Decimal) -> str:
    return f"{number:.1f}".removesuffix(".0")
