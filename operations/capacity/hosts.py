"""Compute the room that the hosts of a Harvester have for further VMs. No I/O.

Requests of Pods count, as they do for the scheduler. Every 15 seconds Harvester writes the sum of
the requests of a host's Pods to an annotation of the host, which also covers VMs in namespaces that
an identity may not read. Without the annotation only the visible VMs count. Hosts may then have
less room than computed, but never more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from caphv.api.hostresources import HUGEPAGES, requested_devices
from caphv.api.hosts import accepts_machines, blocking_taints, is_ready
from caphv.api.names import POD_REQUESTS_ANNOTATION
from caphv.api.object import Obj, annotations_of, at, dict_at, text_at
from caphv.api.quantity import quantity, readable
from caphv.api.virtualmachine import ENDED_PHASES, devices_of
from caphv.runtime.text import TextError, load_json
from operations.read.objects import HarvesterObjects


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

        A core for QEMU is included. Huge pages do not count as memory, but as a resource like
        devices.
        """
        cpu = spec.get("cpuMax") or spec.get("cpu")
        memory = spec.get("memoryMax") or spec.get("memory")
        size = cls.of(cpu, None if spec.get("hugepages") else memory)
        return size + _QEMU_CORE if spec.get("isolateEmulatorThread") is True else size

    def __bool__(self) -> bool:
        return bool(self.cpu or self.memory)

    def __str__(self) -> str:
        return f"{readable(self.cpu)} CPU and {readable(self.memory, 'B')}"

    def __sub__(self, other: Size) -> Size:
        return Size(self.cpu - other.cpu, self.memory - other.memory)

    def __add__(self, other: Size) -> Size:
        return Size(self.cpu + other.cpu, self.memory + other.memory)

    def __or__(self, other: Size) -> Size:
        return Size(max(self.cpu, other.cpu), max(self.memory, other.memory))

    def fits(self, room: Size) -> bool:
        """Return whether it fits into a room."""
        return self.cpu <= room.cpu and self.memory <= room.memory


# With `isolateEmulatorThread`, QEMU has a core of its own.
_QEMU_CORE = Size(cpu=Decimal(1))


@dataclass(frozen=True, slots=True)
class Host:
    """A host that accepts VMs, with its total and its requested resources.

    :param all_pods: the requests of all its Pods were counted, not only those of visible VMs
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
    """Return the hosts that are ready and accept VMs, sorted by name."""
    requests_by_host: dict[str, Size] = {}
    for instance in running_instances(harvester):
        name = text_at(instance, "status", "nodeName")
        size = requests_of(instance.get("spec") or {})
        requests_by_host[name] = requests_by_host.get(name, Size()) + size

    hosts = []
    for obj in harvester.hosts:
        if not (is_ready(obj) and accepts_machines(obj)) or any(blocking_taints(obj)):
            continue

        name = str(obj["metadata"]["name"])
        total = _size_of(dict_at(obj, "status", "allocatable"))
        pods = _pod_requests(obj)
        # Take the larger of both, because the annotation lacks VMs that have just started.
        used = requests_by_host.get(name, Size()) | (pods or Size())
        hosts.append(Host(name, total, used, all_pods=pods is not None))
    return sorted(hosts, key=lambda host: host.name)


def running_instances(harvester: HarvesterObjects) -> Iterator[Obj]:
    """Yield the instances that use resources of their host."""
    for instance in harvester.instances:
        # An ended instance still names its host until it is deleted, but uses nothing there.
        if at(instance, "status", "phase") not in ENDED_PHASES:
            yield instance


def free_devices(harvester: HarvesterObjects) -> dict[str, Counter[str]]:
    """Return the devices that no visible VM uses, by resource, for each host that accepts VMs.

    Bytes of huge pages are included, with a name such as `hugepages-1Gi`.
    """
    in_use: dict[str, Counter[str]] = {}
    for instance in running_instances(harvester):
        name = text_at(instance, "status", "nodeName")
        in_use[name] = in_use.get(name, Counter()) + _devices_of_instance(instance)

    usable = {host.name for host in hosts_of(harvester)}
    free = {}
    for obj in harvester.hosts:
        name = str(obj["metadata"]["name"])
        if name in usable:
            allocatable = dict_at(obj, "status", "allocatable")
            devices = {
                resource: int(quantity(amount) or 0)
                for resource, amount in allocatable.items()
                if "/" in resource or resource.startswith(HUGEPAGES)
            }
            free[name] = Counter(devices) - in_use.get(name, Counter())
    return free


def devices_of_machine(spec: Mapping[str, Any]) -> Counter[str]:
    """Return the devices of a HarvesterMachine, and bytes of its huge pages, by resource."""
    devices = requested_devices(spec)
    if page_size := spec.get("hugepages"):
        devices[f"{HUGEPAGES}{page_size}"] = int(quantity(spec.get("memory")) or 0)
    return devices


def _devices_of_instance(instance: Obj) -> Counter[str]:
    """Return the devices of a VM, and bytes of its huge pages, by resource."""
    spec = instance.get("spec") or {}
    devices = devices_of(spec)
    if page_size := at(spec, "domain", "memory", "hugepages", "pageSize"):
        guest = at(spec, "domain", "memory", "guest")
        devices[f"{HUGEPAGES}{page_size}"] = int(quantity(guest) or 0)
    return devices


def count_without_devices(
    free: Mapping[str, Counter[str]], machines: Iterable[Mapping[str, int]]
) -> int:
    """Return how many machines find no host that has all their devices free.

    :param free: free devices by host and resource
    :param machines: the devices of each machine, by resource
    """
    remaining = {name: Counter(devices) for name, devices in free.items()}
    unplaced = 0
    # Place machines with the most devices first, each on the host with the fewest that suffice.
    for devices in sorted(machines, key=lambda needed: sum(needed.values()), reverse=True):
        needed = Counter(devices)
        fitting = [name for name, room in remaining.items() if not needed - room]
        if not fitting:
            unplaced += 1
            continue
        best = min(fitting, key=lambda name: sum(remaining[name][device] for device in needed))
        remaining[best] -= needed
    return unplaced


def requests_of(spec: Obj) -> Size:
    """Return the requests of a VirtualMachineInstance, else its limits, else its guest's size.

    Huge pages do not count as memory (kubevirt v1.8.3, `WithHugePages` in
    `pkg/virt-controller/services/renderresources.go`).
    """
    domain = spec.get("domain") or {}
    limits = dict_at(domain, "resources", "limits")
    amounts = {**limits, **dict_at(domain, "resources", "requests")}
    memory = amounts.get("memory", at(domain, "memory", "guest"))
    has_pages = at(domain, "memory", "hugepages", "pageSize")
    size = Size.of(amounts.get("cpu", at(domain, "cpu", "cores")), None if has_pages else memory)
    return size + _QEMU_CORE if at(domain, "cpu", "isolateEmulatorThread") else size


@dataclass(frozen=True, slots=True)
class Overcommit:
    """The shares of its limits that a VM requests; None if no VM shows the share."""

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
        # A share such as 2/3 is periodic. Without rounding, a VM could be slightly larger than the
        # room that it fills.
        return Size(round(cpu, 6), round(memory, 6))


def overcommit_of(instances: Iterable[Obj]) -> Overcommit:
    """Return the largest shares of their limits that VMs request.

    Harvester divides limits by its setting `overcommit-config`, which an identity may not read.
    Some VMs, for example those with dedicated CPUs, request more than others.
    """
    cpu = []
    memory = []
    for instance in instances:
        resources = at(instance, "spec", "domain", "resources")
        limits = _size_of(dict_at(resources, "limits"))
        requests = _size_of(dict_at(resources, "requests"))
        if requests.cpu and limits.cpu:
            cpu.append(requests.cpu / limits.cpu)
        if requests.memory and limits.memory:
            memory.append(requests.memory / limits.memory)
    return Overcommit(max(cpu, default=None), max(memory, default=None))


def _size_of(amounts: Obj) -> Size:
    return Size.of(amounts.get("cpu"), amounts.get("memory"))


def count_homeless(hosts: Iterable[Host], sizes: Sequence[Size]) -> int:
    """Return how many VMs find no host, as an estimate.

    The largest VM is placed first, each on the host with the most free memory. Another order might
    place more.
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
    """Return the requests of a host's Pods by Harvester's annotation; None without it."""
    try:
        requests = load_json(annotations_of(host).get(POD_REQUESTS_ANNOTATION) or "")
    except TextError:
        return None
    return _size_of(requests) if isinstance(requests, dict) else None
