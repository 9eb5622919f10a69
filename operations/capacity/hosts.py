"""Count the room that the hosts of a Harvester have for further VMs: pure.

Requests of Pods count, as they do for the scheduler. Every 15 seconds Harvester writes the sum of a
host's Pods to an annotation of the host, so that even an identity that sees only its own namespaces
knows about the VMs of others. Without the annotation only the visible VMs count. Hosts may then
have less room than the answer says, but never more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from caphv.api.names import MAINTENANCE_ANNOTATION, POD_REQUESTS_ANNOTATION, WITNESS_LABEL
from caphv.api.object import Obj, annotations_of, at, labels_of
from caphv.api.quantity import quantity
from caphv.api.virtualmachine import devices_of
from caphv.runtime.text import TextError, load_json
from operations.read.objects import HarvesterObjects
from operations.status.details import is_host_ready

_GIB = Decimal(1024) ** 3


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """CPUs and bytes of memory."""

    cpu: Decimal = Decimal(0)
    memory: Decimal = Decimal(0)

    @classmethod
    def of(cls, cpu: object, memory: object) -> Size:
        """Parse two quantities; an invalid one counts as 0."""
        return cls(quantity(cpu) or Decimal(0), quantity(memory) or Decimal(0))

    @classmethod
    def of_machine(cls, spec: Mapping[str, Any]) -> Size:
        """Return the limits of the VM of a HarvesterMachine, which are its maxima.

        QEMU on a core of its own counts, too.
        """
        size = cls.of(
            spec.get("cpuMax") or spec.get("cpu"), spec.get("memoryMax") or spec.get("memory")
        )
        return size + cls(Decimal(1)) if spec.get("isolateEmulatorThread") is True else size

    def __bool__(self) -> bool:
        return bool(self.cpu or self.memory)

    def __str__(self) -> str:
        return f"{_format_number(self.cpu)} CPU and {_format_number(self.memory / _GIB)} GiB"

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
    """A host that takes VMs, with its total and its requested resources.

    `all_pods` says that the requests of all its Pods count, not only those of the visible VMs.
    """

    name: str
    total: Size
    used: Size
    all_pods: bool = False

    @property
    def free(self) -> Size:
        """The room for further VMs."""
        return self.total - self.used


def hosts_of(harvester: HarvesterObjects) -> list[Host]:
    """Return the hosts that take VMs: ready, not cordoned, not in maintenance, and no witness."""
    requests_by_host: dict[str, Size] = {}
    for instance in harvester.instances:
        name = str(at(instance, "status", "nodeName") or "")
        size = requests_of(instance.get("spec") or {})
        requests_by_host[name] = requests_by_host.get(name, Size()) + size

    hosts = []
    for obj in harvester.hosts:
        if at(obj, "spec", "unschedulable") or MAINTENANCE_ANNOTATION in annotations_of(obj):
            continue
        if labels_of(obj).get(WITNESS_LABEL) == "true" or not is_host_ready(obj):
            continue

        name = str(obj["metadata"]["name"])
        total = _size_of(at(obj, "status", "allocatable") or {})
        pods = _pod_requests(obj)
        # The annotation lacks the VMs that started since Harvester wrote it.
        used = requests_by_host.get(name, Size()) | (pods or Size())
        hosts.append(Host(name, total, used, all_pods=pods is not None))
    return sorted(hosts, key=lambda host: host.name)


def free_devices(harvester: HarvesterObjects) -> Counter[str]:
    """Return the devices of all hosts that take VMs and that no visible VM uses, by resource."""
    in_use: dict[str, Counter[str]] = {}
    for instance in harvester.instances:
        name = str(at(instance, "status", "nodeName") or "")
        in_use[name] = in_use.get(name, Counter()) + devices_of(instance.get("spec") or {})

    usable = {host.name for host in hosts_of(harvester)}
    free: Counter[str] = Counter()
    for obj in harvester.hosts:
        name = str(obj["metadata"]["name"])
        if name in usable:
            allocatable = at(obj, "status", "allocatable") or {}
            devices = {
                resource: int(quantity(amount) or 0)
                for resource, amount in allocatable.items()
                if "/" in resource
            }
            free += Counter(devices) - in_use.get(name, Counter())
    return free


def requests_of(spec: Obj) -> Size:
    """Return the requests of a VirtualMachineInstance, else its limits, else its guest's size."""
    domain = spec.get("domain") or {}
    limits, requests = at(domain, "resources", "limits"), at(domain, "resources", "requests")
    amounts = {**(limits or {}), **(requests or {})}
    return Size.of(
        amounts.get("cpu", at(domain, "cpu", "cores")),
        amounts.get("memory", at(domain, "memory", "guest")),
    )


@dataclass(frozen=True, slots=True)
class Overcommit:
    """Which shares of its limits a VM requests of its host; None where no VM shows it."""

    cpu: Decimal | None = None
    memory: Decimal | None = None

    @property
    def is_known(self) -> bool:
        """Whether VMs show both shares."""
        return self.cpu is not None and self.memory is not None

    def requests(self, limits: Size) -> Size:
        """Return the requests of VMs with these limits: the full limits if no share is known."""
        cpu = limits.cpu * (self.cpu or 1)
        memory = limits.memory * (self.memory or 1)
        # A share such as 2/3 has no last digit. Without rounding, a VM could be a trace larger than
        # the room that it fills.
        return Size(round(cpu, 6), round(memory, 6))


def overcommit_of(instances: Iterable[Obj]) -> Overcommit:
    """Return the largest shares of their limits that VMs request.

    Some VMs, for example those with dedicated CPUs, request more than others. Harvester divides
    limits by its setting `overcommit-config`, which an identity may not read.
    """
    cpu, memory = [], []
    for instance in instances:
        resources = at(instance, "spec", "domain", "resources")
        limits = _size_of(at(resources, "limits") or {})
        requests = _size_of(at(resources, "requests") or {})
        if requests.cpu and limits.cpu:
            cpu.append(requests.cpu / limits.cpu)
        if requests.memory and limits.memory:
            memory.append(requests.memory / limits.memory)
    return Overcommit(max(cpu, default=None), max(memory, default=None))


def _size_of(amounts: Obj) -> Size:
    return Size.of(amounts.get("cpu"), amounts.get("memory"))


def count_homeless(hosts: Iterable[Host], sizes: Sequence[Size]) -> int:
    """Return how many VMs find no host.

    The largest VM is placed first, each on the host with the most free memory. This is an estimate:
    another order might place more.
    """
    free = {host.name: host.free for host in hosts}
    homeless = 0
    for size in sorted(sizes, reverse=True):
        fitting = [name for name, room in free.items() if size.fits(room)]
        if not fitting:
            homeless += 1
            continue

        best = max(fitting, key=lambda name: free[name].memory)
        free[best] = free[best] - size
    return homeless


def _pod_requests(host: Obj) -> Size | None:
    """Return the requests of a host's Pods, by Harvester's annotation; None without one."""
    try:
        requests = load_json(annotations_of(host).get(POD_REQUESTS_ANNOTATION) or "")
    except TextError:
        return None
    return _size_of(requests) if isinstance(requests, dict) else None


def _format_number(number: Decimal) -> str:
    return f"{number:.1f}".removesuffix(".0")
