"""Find out why no host of Harvester can run a VM: a device, huge pages or pinned CPUs. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from caphv.api.hostresources import requested_devices
from caphv.api.names import CPU_MANAGER_LABEL
from caphv.api.object import Obj, at, key_of, labels_of
from caphv.api.quantity import quantity
from caphv.api.virtualmachine import devices_of
from reconciler.harvester.topology import accepts_machines

_HUGEPAGES = "hugepages-"
# kube-scheduler separates its reasons by commas, and ends them with a full stop.
_INSUFFICIENT = re.compile(r"Insufficient ([^\s,]+)")
# More hosts do not help a reader.
_MOST_HOSTS = 8


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why no host can run a VM.

    :param message: what is not free, on which hosts it exists, and what to do
    :param devices: whether devices are missing
    """

    message: str
    devices: bool


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a host has of a resource, and how much of it is free as far as the account sees."""

    host: str
    amount: int
    free: int
    accepts: bool

    def has(self, count: int) -> bool:
        """Return whether the host takes a VM with so many of them."""
        return self.accepts and self.free >= count


def find_shortage(
    spec: Obj, hosts: Iterable[Obj], instances: Iterable[Obj], explanation: str
) -> Shortage | None:
    """Return what no host has free for a VM that finds none; None for other causes.

    :param spec: the spec of its HarvesterMachine
    :param hosts: hosts of Harvester, with devices and huge pages in their `status.allocatable`
    :param instances: those that the account sees
    :param explanation: the reason of kube-scheduler, empty if it is not known
    """
    sorted_hosts = sorted(hosts, key=key_of)
    insufficient = {name.rstrip(".") for name in _INSUFFICIENT.findall(explanation)}
    devices = list(_missing_devices(spec, sorted_hosts, instances, insufficient))
    others = [
        *_missing_pages(spec, sorted_hosts, insufficient),
        *_missing_cpu_manager(spec, sorted_hosts),
    ]
    if not devices and not others:
        return None
    return Shortage("; ".join([*devices, *others]), devices=bool(devices))


def _missing_devices(
    spec: Obj, hosts: Sequence[Obj], instances: Iterable[Obj], insufficient: set[str]
) -> Iterator[str]:
    """Yield a message for each device that no host has free."""
    requested = requested_devices(spec)
    if not requested:
        return

    in_use: dict[str, Counter[str]] = {}
    for instance in instances:
        host = str(at(instance, "status", "nodeName") or "")
        in_use[host] = in_use.get(host, Counter()) + devices_of(instance.get("spec") or {})

    for name, count in sorted(requested.items()):
        offers = _offers(name, hosts, in_use)
        if name in insufficient or not any(offer.has(count) for offer in offers):
            yield _describe_device(name, count, offers)


def _offers(name: str, hosts: Iterable[Obj], in_use: Mapping[str, Counter[str]]) -> list[_Offer]:
    """Return the hosts that have a device."""
    offers = []
    for host in hosts:
        amount = int(quantity(at(host, "status", "allocatable", name)) or 0)
        if amount > 0:
            host_name = key_of(host).name
            free = max(0, amount - in_use.get(host_name, Counter())[name])
            offers.append(_Offer(host_name, amount, free, accepts_machines(host)))
    return offers


def _describe_device(name: str, count: int, offers: Sequence[_Offer]) -> str:
    """Say on which hosts a device exists, and how many of it are free there."""
    if not offers:
        return (
            f"no host of Harvester offers {name}: enable such a device there (PCIDevice, vGPU or "
            "USBDevice), or correct the resource name"
        )

    places = [
        f"{offer.host} has {offer.free} of {offer.amount} free"
        + ("" if offer.accepts else " but takes no VMs")
        for offer in offers
    ]
    message = f"no host of Harvester has {count} {name} free: {_shorten(places)}"
    if any(offer.has(count) for offer in offers):
        # Other teams' VMs are in namespaces that the account may not read.
        message += ", not counting VMs that the account does not see"
    return f"{message}; delete or stop a VM that uses it, or enable another one"


def _missing_pages(spec: Obj, hosts: Sequence[Obj], insufficient: set[str]) -> Iterator[str]:
    """Yield a message if no host has the huge pages of the VM."""
    if not spec.get("hugepages"):
        return

    resource = f"{_HUGEPAGES}{spec['hugepages']}"
    amounts = [
        f"{key_of(host).name} has {amount} in all"
        for host in hosts
        if quantity(amount := at(host, "status", "allocatable", resource))
    ]
    if not amounts:
        yield f"no host of Harvester offers {resource}: reserve such pages at the boot of a host"
    elif resource in insufficient:
        yield (
            f"no host of Harvester has {spec.get('memory')} of {resource} free: "
            f"{_shorten(amounts)}; delete or stop a VM that uses them, or reserve more"
        )


def _missing_cpu_manager(spec: Obj, hosts: Iterable[Obj]) -> Iterator[str]:
    """Yield a message if no host can pin CPUs."""
    enabled = any(labels_of(host).get(CPU_MANAGER_LABEL) == "true" for host in hosts)
    if spec.get("cpuPinning") and not enabled:
        yield (
            "no host of Harvester has its CPU manager enabled, which cpuPinning needs: enable it "
            "on a host"
        )


def _shorten(places: Sequence[str]) -> str:
    """Join a list, without the end of a long one."""
    shown = ", ".join(places[:_MOST_HOSTS])
    others = len(places) - _MOST_HOSTS
    return f"{shown}, and {others} further hosts" if others > 0 else shown
