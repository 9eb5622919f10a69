"""Decide whether a VM that has to leave its host could start on another one: pure.

The scheduler decides about CPU and memory. Here are the reasons for which it would find no host at
all, so that no guest is stopped that could not start again: devices, huge pages, pinned CPUs,
affinity, and hosts that take no VMs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from caphv.api.hostresources import HUGEPAGES
from caphv.api.hosts import accepts_machines, blocking_taints, has_cpu_manager, is_ready
from caphv.api.names import CPU_MANAGER_LABEL
from caphv.api.object import Obj, at, dict_at, key_of, labels_of, list_at
from caphv.api.plaintext import plain
from caphv.api.quantity import quantity
from caphv.api.virtualmachine import (
    READ_WRITE_MANY,
    claims_of,
    devices_in_use,
    devices_of,
    has_pinned_cpus,
)
from reconciler.machine.placement import REQUIRED, admits_host

_LONGEST_REASON = 64
_LOCAL = "so a disk may be local to this host; stop and start it yourself, or delete its Machine"
_NO_CPU_MANAGER = (
    f"no other host that takes VMs has its CPU manager enabled (label {CPU_MANAGER_LABEL}=true), "
    "which its pinned CPUs need; enable it on one, or delete the Machine"
)
INSTANCE = ("spec", "template", "spec")


def obstacle(vm: Obj, source: str, hosts: Iterable[Obj], instances: Iterable[Obj]) -> str:
    """Return why a VM finds no other host; empty if there is one.

    :param source: the host that it leaves
    :param hosts: Nodes of Harvester, with their status
    :param instances: those whose devices are in use
    """
    spec = dict_at(vm, *INSTANCE)
    usable = _usable_hosts(spec, source, hosts)
    if not usable:
        return "no other host is ready and takes VMs; end a maintenance or an evacuation"

    subject = "no other host"
    if has_pinned_cpus(spec):
        # Harvester adds this to the required affinity, which no user wrote there.
        usable = [host for host in usable if has_cpu_manager(host)]
        if not usable:
            return _NO_CPU_MANAGER
        subject = "no other host with its CPU manager enabled"

    suitable = [host for host in usable if _selects(spec, host)]
    if not suitable:
        return _describe_affinity(spec, subject)
    if at(spec, "domain", "memory", "hugepages"):
        pages, memory = _pages_of(spec)
        suitable = [host for host in suitable if _has(host, pages, memory)]
        if not suitable:
            return (
                f"{subject} has {memory} of {pages}; reserve such pages at the boot of one, or "
                "delete the Machine"
            )

    if at(spec, "affinity", "podAffinity", REQUIRED) or at(
        spec, "affinity", "podAntiAffinity", REQUIRED
    ):
        # It depends on Pods of other teams, which the provider may not read.
        return (
            "its affinity requires a host with or without certain other VMs, which is not checked; "
            "make it a preference, stop and start it yourself, or delete the Machine"
        )

    return _describe_devices(spec, suitable, instances, subject)


def _describe_affinity(spec: Obj, subject: str) -> str:
    """Return that no host which could run an instance is one that its affinity admits."""
    if has_pinned_cpus(spec):
        return (
            f"its affinity or node selector admits {subject}; enable it on a host that they admit, "
            "change them, or delete the Machine"
        )
    return "its affinity or node selector requires this host; change it, or delete the Machine"


def _describe_devices(
    spec: Obj, hosts: Iterable[Obj], instances: Iterable[Obj], subject: str
) -> str:
    """Return that no host has the devices of an instance free; empty if one has."""
    needs = devices_of(spec)
    in_use = devices_in_use(instances)
    # The scheduler may give any device to one that has no host yet.
    pending = in_use.get("", Counter())
    for host in hosts:
        if not needs - _free(host, in_use.get(key_of(host).name, Counter()) + pending):
            return ""
    wanted = ", ".join(f"{count} {name}" for name, count in sorted(needs.items()))
    return f"{subject} has {wanted} free; enable the device there, or stop a VM that uses it"


def describe_missing_cpu_manager(vm: Obj, source: str, hosts: Sequence[Obj]) -> str:
    """Return why pinned CPUs keep a VM from each other host; empty if another reason does, or none.

    Harvester would migrate the VM, but finds no target.
    """
    spec = dict_at(vm, *INSTANCE)
    if not has_pinned_cpus(spec):
        return ""
    usable = _usable_hosts(spec, source, hosts)
    return _NO_CPU_MANAGER if usable and not any(map(has_cpu_manager, usable)) else ""


def describe_local_disks(vm: Obj, instance: Obj | None) -> str:
    """Return why an instance without host devices might start on no other host; empty if it would.

    KubeVirt does not say which disks are local to a host: those of some storage classes are, while
    others only do not allow two hosts at a time.
    """
    if devices_of(at(vm, *INSTANCE)):
        return ""  # the reason why it cannot migrate
    for condition in list_at(instance, "status", "conditions"):
        if (condition.get("type"), condition.get("status")) == ("LiveMigratable", "False"):
            reason = plain(str(condition.get("reason") or "no reason"), _LONGEST_REASON)
            return f"KubeVirt cannot migrate it ({reason}), {_LOCAL}"
    return ""


def describe_bound_claims(vm: Obj, claims: Iterable[Obj]) -> str:
    """Return which disk of a VM may be local to its host; empty if all can move.

    :param claims: PersistentVolumeClaims of its namespace
    """
    used = claims_of(vm)
    for claim in claims:
        name, modes = key_of(claim).name, list_at(claim, "spec", "accessModes")
        if name in used and READ_WRITE_MANY not in modes:
            return f"disk {name} is not {READ_WRITE_MANY}, {_LOCAL}"
    return ""


def _usable_hosts(spec: Obj, source: str, hosts: Iterable[Obj]) -> list[Obj]:
    """Return the hosts but one that are ready and take VMs, as far as an instance tolerates it."""
    return [
        host
        for host in hosts
        if key_of(host).name != source
        and accepts_machines(host)
        and is_ready(host)
        and _tolerates(spec, host)
    ]


def _pages_of(spec: Obj) -> tuple[str, str]:
    """Return the resource of the huge pages of an instance, and the memory that it has of them."""
    domain = spec["domain"]
    # Without a size of the guest, that of the Pod counts.
    memory = at(domain, "memory", "guest") or at(domain, "resources", "requests", "memory")
    return f"{HUGEPAGES}{at(domain, 'memory', 'hugepages', 'pageSize')}", str(memory or 1)


def _has(host: Obj, resource: str, amount: str) -> bool:
    """Return whether a host has so much of a resource in all, used or not."""
    in_all = quantity(at(host, "status", "allocatable", resource)) or 0
    return in_all >= (quantity(amount) or 0)


def _free(host: Obj, in_use: Counter[str]) -> Counter[str]:
    """Return the devices of a host that no instance uses."""
    allocatable = dict_at(host, "status", "allocatable")
    return Counter({name: int(quantity(amount) or 0) for name, amount in allocatable.items()}) - (
        in_use
    )


def _tolerates(spec: Obj, host: Obj) -> bool:
    """Return whether an instance tolerates all taints of a host that keep Pods from it."""
    tolerations = spec.get("tolerations") or ()
    return all(
        any(_is_tolerated(taint, toleration) for toleration in tolerations)
        for taint in blocking_taints(host)
    )


def _is_tolerated(taint: Obj, toleration: Obj) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    is_any = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return is_any
    has_value = (toleration.get("value") or "") == (taint.get("value") or "")
    return toleration["key"] == taint.get("key") and (is_any or has_value)


def _selects(spec: Obj, host: Obj) -> bool:
    """Return whether node selector and required affinity of an instance admit a host."""
    selector, labels = spec.get("nodeSelector") or {}, labels_of(host)
    if any(labels.get(name) != value for name, value in selector.items()):
        return False
    return admits_host(dict_at(spec, "affinity", "nodeAffinity"), host)
