"""Decide whether a VM that must leave its host could start on another one. No I/O.

A guest that could not start again must not be stopped. The scheduler decides about CPU and memory.
This module finds the reasons why no other host qualifies at all: devices, huge pages, pinned CPUs,
affinity, and hosts that accept no VMs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

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
    free_devices,
    has_pinned_cpus,
)
from reconciler.machine.placement import REQUIRED, admits_host

_MAX_REASON = 64
_LOCAL = "so a disk may be local to this host; stop and start it yourself, or delete its Machine"
_NO_CPU_MANAGER = (
    f"no other host that takes VMs has its CPU manager enabled (label {CPU_MANAGER_LABEL}=true), "
    "which its pinned CPUs need; enable it on one, or delete the Machine"
)
INSTANCE = ("spec", "template", "spec")


def describe_obstacle(vm: Obj, source: str, hosts: Iterable[Obj], instances: Iterable[Obj]) -> str:
    """Return why a VM cannot start on any other host; empty if it can.

    :param source: the host that it leaves
    :param hosts: Nodes of Harvester, with their status
    :param instances: the instances whose devices are in use
    """
    spec = dict_at(vm, *INSTANCE)
    usable = _usable_hosts(spec, source, hosts)
    if not usable:
        return "no other host is ready and takes VMs; end a maintenance or an evacuation"

    subject = "no other host"
    if has_pinned_cpus(spec):
        # Harvester adds this requirement to the affinity, so the user's affinity is not to blame.
        usable = [host for host in usable if has_cpu_manager(host)]
        if not usable:
            return _NO_CPU_MANAGER
        subject = "no other host with its CPU manager enabled"

    suitable = [host for host in usable if _admits(spec, host)]
    if not suitable:
        return _describe_affinity(spec, subject)
    if at(spec, "domain", "memory", "hugepages"):
        pages = _pages_of(spec)
        suitable = [host for host in suitable if _has_capacity(host, pages)]
        if not suitable:
            return (
                f"{subject} has {pages.amount} of {pages.resource}; reserve such pages at the boot "
                "of one, or delete the Machine"
            )

    if at(spec, "affinity", "podAffinity", REQUIRED) or at(
        spec, "affinity", "podAntiAffinity", REQUIRED
    ):
        # Whether it can be met depends on Pods of other teams, which the provider may not read.
        return (
            "its affinity requires a host with or without certain other VMs, which is not checked; "
            "make it a preference, stop and start it yourself, or delete the Machine"
        )

    return _describe_devices(spec, suitable, instances, subject)


def _describe_affinity(spec: Obj, subject: str) -> str:
    """Return the text for an affinity that admits none of the usable hosts."""
    if has_pinned_cpus(spec):
        return (
            f"its affinity or node selector admits {subject}; enable it on a host that they admit, "
            "change them, or delete the Machine"
        )
    return "its affinity or node selector requires this host; change it, or delete the Machine"


def _describe_devices(
    spec: Obj, hosts: Iterable[Obj], instances: Iterable[Obj], subject: str
) -> str:
    """Return that no host has enough free devices for an instance; empty if one has."""
    needs = devices_of(spec)
    in_use = devices_in_use(instances)
    # Instances without a host are listed under "". The scheduler may place them on any host.
    pending = in_use.get("", Counter())
    for host in hosts:
        if not needs - free_devices(host, in_use.get(key_of(host).name, Counter()) + pending):
            return ""
    devices = ", ".join(f"{count} {name}" for name, count in sorted(needs.items()))
    return f"{subject} has {devices} free; enable the device there, or stop a VM that uses it"


def describe_missing_cpu_manager(vm: Obj, source: str, hosts: Sequence[Obj]) -> str:
    """Return that a VM with pinned CPUs has no other host with a CPU manager; empty if it has.

    Harvester would try to migrate such a VM, and find no target. If no other host is usable at all,
    the CPU manager is not the reason.
    """
    spec = dict_at(vm, *INSTANCE)
    if not has_pinned_cpus(spec):
        return ""
    usable = _usable_hosts(spec, source, hosts)
    return _NO_CPU_MANAGER if usable and not any(map(has_cpu_manager, usable)) else ""


def describe_local_disks(vm: Obj, instance: Obj | None) -> str:
    """Return that a disk of an instance may be local to its host; empty if none may be.

    KubeVirt only reports that it cannot migrate an instance. If host devices do not explain that,
    its disks are either local to the host, or allow no second host at the same time.
    """
    if devices_of(at(vm, *INSTANCE)):
        return ""
    for condition in list_at(instance, "status", "conditions"):
        if (condition.get("type"), condition.get("status")) == ("LiveMigratable", "False"):
            reason = plain(str(condition.get("reason") or "no reason"), _MAX_REASON)
            return f"KubeVirt cannot migrate it ({reason}), {_LOCAL}"
    return ""


def describe_bound_claims(vm: Obj, claims: Iterable[Obj]) -> str:
    """Return that a disk of a VM may be local to its host; empty if all can move.

    :param claims: PersistentVolumeClaims of its namespace
    """
    used = claims_of(vm)
    for claim in claims:
        name = key_of(claim).name
        if name in used and READ_WRITE_MANY not in list_at(claim, "spec", "accessModes"):
            return f"disk {name} is not {READ_WRITE_MANY}, {_LOCAL}"
    return ""


def _usable_hosts(spec: Obj, source: str, hosts: Iterable[Obj]) -> list[Obj]:
    """Return all hosts except the source that are ready and accept VMs with these tolerations."""
    return [
        host
        for host in hosts
        if key_of(host).name != source
        and accepts_machines(host)
        and is_ready(host)
        and _tolerates(spec, host)
    ]


class _Pages(NamedTuple):
    """A resource of huge pages, such as `hugepages-2Mi`, and how much of it a guest needs."""

    resource: str
    amount: str


def _pages_of(spec: Obj) -> _Pages:
    """Return the huge pages of an instance that has some."""
    domain = spec["domain"]
    # Without a guest size, the memory request of the Pod counts.
    memory = at(domain, "memory", "guest") or at(domain, "resources", "requests", "memory")
    size = at(domain, "memory", "hugepages", "pageSize")
    return _Pages(f"{HUGEPAGES}{size}", str(memory or 1))


def _has_capacity(host: Obj, pages: _Pages) -> bool:
    """Return whether a host has enough huge pages in total, used or not."""
    total = quantity(at(host, "status", "allocatable", pages.resource)) or 0
    return total >= (quantity(pages.amount) or 0)


def _tolerates(spec: Obj, host: Obj) -> bool:
    """Return whether an instance tolerates all taints of a host that keep Pods from it."""
    tolerations = spec.get("tolerations") or ()
    return all(
        any(_is_tolerated(taint, toleration) for toleration in tolerations)
        for taint in blocking_taints(host)
    )


def _is_tolerated(taint: Obj, toleration: Obj) -> bool:
    """Return whether a toleration matches a taint, as the scheduler decides it."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    accepts_any_value = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return accepts_any_value
    has_value = (toleration.get("value") or "") == (taint.get("value") or "")
    return toleration["key"] == taint.get("key") and (accepts_any_value or has_value)


def _admits(spec: Obj, host: Obj) -> bool:
    """Return whether node selector and required affinity of an instance admit a host."""
    selector = spec.get("nodeSelector") or {}
    labels = labels_of(host)
    if any(labels.get(name) != value for name, value in selector.items()):
        return False
    return admits_host(dict_at(spec, "affinity", "nodeAffinity"), host)
