"""Find out why no host of Harvester can run a VM: a device, huge pages or pinned CPUs. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from caphv.api.hostresources import HUGEPAGES, requested_devices
from caphv.api.hosts import accepts_machines, blocking_taints, has_cpu_manager, is_ready
from caphv.api.object import Obj, at, dict_at, key_of
from caphv.api.quantity import in_gibibytes, quantity
from caphv.api.virtualmachine import devices_in_use

# kube-scheduler names each reason with the number of hosts, separates reasons by commas, and ends
# them with a full stop.
_INSUFFICIENT = re.compile(r"\b([0-9]{1,6}) Insufficient ([^\s,]+)")
# KubeVirt creates no Pod for such a VM (v1.8.3 pkg/virt-controller/services/renderresources.go,
# `validatePermittedHostDevices`).
_NOT_PERMITTED = re.compile(r"(?:HostDevice|GPU) (\S+) is not permitted in permittedHostDevices")
# More hosts do not help a reader.
_MAX_HOSTS = 8


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why no host can run a VM.

    :param message: what is not free, on which hosts it exists, and what to do
    :param devices: whether devices are missing
    """

    message: str
    devices: bool


@dataclass(frozen=True, slots=True)
class _Host:
    """A host with its devices and huge pages, as far as the account sees.

    :param amounts: what it has in all, by the name of the resource
    :param free: what no visible VM uses; huge pages as if no VM used any
    :param reachable: whether the scheduler compares its resources with those that a VM requests
    :param accepts: whether it takes new VMs
    :param pins: whether its CPU manager is enabled
    """

    name: str
    amounts: Mapping[str, int]
    free: Mapping[str, int]
    reachable: bool
    accepts: bool
    pins: bool

    def has(self, name: str, count: int) -> bool:
        """Return whether so many of a resource are free."""
        return self.free.get(name, 0) >= count


def find_shortage(
    spec: Obj, hosts: Iterable[Obj], instances: Iterable[Obj], explanation: str
) -> Shortage | None:
    """Return what no host has free for a VM that finds none; None for other causes.

    :param spec: the spec of its HarvesterMachine
    :param hosts: hosts of Harvester, with devices and huge pages in their `status.allocatable`
    :param instances: those that the account sees
    :param explanation: the reason of kube-scheduler, empty if it is not known
    """
    surveyed = _survey(hosts, instances)
    # The text has the number of hosts that lack a resource.
    insufficient = {
        name.rstrip("."): int(number) for number, name in _INSUFFICIENT.findall(explanation)
    }
    requested = requested_devices(spec)
    devices = list(_missing_devices(requested, surveyed, insufficient))
    others = [
        *_missing_pages(spec, surveyed, insufficient),
        *_missing_cpu_manager(spec, surveyed, requested),
    ]
    if not devices and not others:
        return None
    return Shortage("; ".join([*devices, *others]), devices=bool(devices))


def find_refusal(spec: Obj, explanation: str) -> Shortage | None:
    """Return which requested devices KubeVirt refuses to give a VM; None if it refuses none.

    :param spec: the spec of its HarvesterMachine
    :param explanation: why KubeVirt creates no Pod for the VM, empty if it is not known
    """
    refused = set(_NOT_PERMITTED.findall(explanation)) & requested_devices(spec).keys()
    if not refused:
        return None
    message = (
        f"{', '.join(sorted(refused))} is not enabled on Harvester: enable such a device there "
        "(PCIDevice, vGPU or USBDevice), or request another one"
    )
    return Shortage(message, devices=True)


def _survey(hosts: Iterable[Obj], instances: Iterable[Obj]) -> list[_Host]:
    """Return the hosts with what they have and what is free there, sorted."""
    in_use = devices_in_use(instances)
    surveyed = []
    for obj in sorted(hosts, key=key_of):
        name = key_of(obj).name
        amounts = {
            resource: int(quantity(amount) or 0)
            for resource, amount in dict_at(obj, "status", "allocatable").items()
        }
        used = in_use.get(name, Counter())
        free = {resource: max(0, amount - used[resource]) for resource, amount in amounts.items()}
        is_closed = at(obj, "spec", "unschedulable") or any(blocking_taints(obj))
        reachable = is_ready(obj) and not is_closed
        accepts = reachable and accepts_machines(obj)
        pins = has_cpu_manager(obj)
        surveyed.append(_Host(name, amounts, free, reachable, accepts, pins))
    return surveyed


def _exceeds_visible(
    name: str, count: int, hosts: Iterable[_Host], insufficient: Mapping[str, int]
) -> bool:
    """Return whether more hosts lack a resource than the account sees, because of others' VMs.

    The scheduler also counts hosts that have no such resource at all.
    """
    visible = sum(host.reachable and not host.has(name, count) for host in hosts)
    return insufficient.get(name, 0) > visible


def _missing_devices(
    requested: Mapping[str, int], hosts: Sequence[_Host], insufficient: Mapping[str, int]
) -> Iterator[str]:
    """Yield a message for each device that no host has free, else if no host has all of them."""
    is_complete = True
    for name, count in sorted(requested.items()):
        exists = any(host.accepts and host.has(name, count) for host in hosts)
        is_hidden = exists and _exceeds_visible(name, count, hosts, insufficient)
        if not exists or is_hidden:
            is_complete = False
            yield _describe_device(name, count, hosts, is_hidden=is_hidden)

    if requested and is_complete and not _fitting(requested, hosts):
        listed = ", ".join(f"{count} {name}" for name, count in sorted(requested.items()))
        places = [
            f"{host.name} has {', '.join(f'{host.free[name]} {name}' for name in offered)} free"
            for host in hosts
            if (offered := [name for name in sorted(requested) if host.free.get(name)])
        ]
        yield (
            f"no host of Harvester has all of {listed} free: {_shorten(places)}; delete or stop "
            "VMs that use them, or request devices of one host"
        )


def _fitting(requested: Mapping[str, int], hosts: Iterable[_Host]) -> list[_Host]:
    """Return the hosts that take VMs and have all devices free."""
    return [
        host
        for host in hosts
        if host.accepts and all(host.has(name, count) for name, count in requested.items())
    ]


def _describe_device(name: str, count: int, hosts: Iterable[_Host], *, is_hidden: bool) -> str:
    """Say on which hosts a device exists, and how many of it are free there."""
    places = [
        f"{host.name} has {host.free[name]} of {host.amounts[name]} free"
        + ("" if host.accepts else " but takes no VMs")
        for host in hosts
        if host.amounts.get(name)
    ]
    if not places:
        return (
            f"no host of Harvester offers {name}: enable such a device there (PCIDevice, vGPU or "
            "USBDevice), or correct the resource name"
        )

    message = f"no host of Harvester has {count} {name} free: {_shorten(places)}"
    if is_hidden:
        # Other teams' VMs are in namespaces that the account may not read.
        message += ", not counting VMs that the account does not see"
    return f"{message}; delete or stop a VM that uses it, or enable another one"


def _missing_pages(
    spec: Obj, hosts: Sequence[_Host], insufficient: Mapping[str, int]
) -> Iterator[str]:
    """Yield a message if no host has the huge pages of the VM."""
    if not spec.get("hugepages"):
        return

    resource = f"{HUGEPAGES}{spec['hugepages']}"
    size = int(quantity(spec.get("memory")) or 0)
    places = [
        f"{host.name} has {in_gibibytes(amount)} in all"
        + ("" if host.accepts else " but takes no VMs")
        for host in hosts
        if (amount := host.amounts.get(resource))
    ]
    if not places:
        yield f"no host of Harvester offers {resource}: reserve such pages at the boot of a host"
        return

    exists = any(host.accepts and host.has(resource, size) for host in hosts)
    if not exists or _exceeds_visible(resource, size, hosts, insufficient):
        yield (
            f"no host of Harvester has {spec.get('memory')} of {resource} free: "
            f"{_shorten(places)}; delete or stop a VM that uses them, or reserve more"
        )


def _missing_cpu_manager(
    spec: Obj, hosts: Sequence[_Host], requested: Mapping[str, int]
) -> Iterator[str]:
    """Yield a message if no host that has the devices can pin CPUs."""
    if not spec.get("cpuPinning"):
        return

    if not any(host.accepts and host.pins for host in hosts):
        closed = [host.name for host in hosts if host.pins]
        note = f" ({_shorten(closed)}: enabled, but takes no VMs)" if closed else ""
        yield (
            f"no host of Harvester has its CPU manager enabled{note}, which cpuPinning needs: "
            "enable it on a host"
        )
        return

    fitting = _fitting(requested, hosts) if requested else []
    if fitting and not any(host.pins for host in fitting):
        yield (
            "no host of Harvester that has the devices free has its CPU manager enabled, which "
            f"cpuPinning needs: enable it on {_shorten([host.name for host in fitting])}"
        )


def _shorten(places: Sequence[str]) -> str:
    """Join a list, without the end of a long one."""
    shown = ", ".join(places[:_MAX_HOSTS])
    others = len(places) - _MAX_HOSTS
    return f"{shown}, and {others} further hosts" if others > 0 else shown
