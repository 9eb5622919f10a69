"""Plan the evacuation of a host of Harvester, with the checks before. No I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from caphv.api import evacuation, names
from caphv.api.clusterapi import paused
from caphv.api.counting import counted, name_some
from caphv.api.hosts import accepts_machines, has_cpu_manager, is_ready
from caphv.api.labels import cluster_label
from caphv.api.names import EVACUATE_ANNOTATION, ConditionType, Reason
from caphv.api.object import Key, Obj, annotations_of, at, dict_at, key_of, labels_of, text_at
from caphv.api.virtualmachine import (
    devices_in_use,
    devices_of,
    free_devices,
    has_pinned_cpus,
    is_bound_to_host,
    is_shut_down_for_maintenance,
    migrates_when_evicted,
)
from operations.change.changes import Change, ChangeError, Patch, Plan, patch_of
from operations.change.clusterprogress import ClusterProgress
from operations.read.objects import condition_of
from operations.status.check import Check, Result, ok


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMachines:
    """The machines of a cluster on a host, by what happens to them during an evacuation.

    :param moves: the provider stops them and starts them on another host
    :param stays: they stay, because KubeVirt cannot migrate them and a disk may be local
    :param stops: Harvester shuts them down for maintenance, as a label of their VMs requests
    :param migrates: Harvester migrates them
    :param restarts: an eviction stops and starts them without a drain of their Nodes
    :param pinned: they stay, because they have pinned CPUs and no other host has its CPU manager
        enabled
    :param lacking: they stay, because no other host is known to have their devices free
    :param paused: the cluster is paused, so the provider moves none of them
    """

    cluster: Key
    moves: tuple[str, ...] = ()
    migrates: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    paused: bool = False


def find_host(hosts: Iterable[Obj], name: str) -> Obj:
    """Return a host by name. Raises `ChangeError` with the names of all hosts."""
    by_name = {key_of(host).name: host for host in hosts}
    if name not in by_name:
        raise ChangeError([f"no host {name} on Harvester; its hosts: {', '.join(sorted(by_name))}"])
    return {"apiVersion": "v1", "kind": "Node", **by_name[name]}


def machines_on(
    host: str, hosts: Iterable[Obj], clusters: Mapping[Key, bool], instances: Collection[Obj]
) -> list[HostMachines]:
    """Return the machines of each cluster on a host.

    :param host: name of the host
    :param hosts: all hosts of its Harvester
    :param clusters: the clusters on its Harvester, and whether they are paused
    :param instances: the VirtualMachineInstances that can be read
    """
    others = _other_hosts(host, hosts)
    can_pin = any(map(has_cpu_manager, others))
    in_use = devices_in_use(instances)
    free = [free_devices(other, in_use.get(key_of(other).name, Counter())) for other in others]
    by_label: dict[str, list[Obj]] = defaultdict(list)
    for instance in instances:
        if at(instance, "status", "nodeName") == host:
            by_label[labels_of(instance).get(names.CLUSTER_LABEL, "")].append(instance)

    host_machines = []
    for cluster, is_paused in sorted(clusters.items()):
        fields: dict[str, list[str]] = defaultdict(list)
        for instance in by_label.get(cluster_label(cluster), ()):
            fields[_field_of(instance, free, can_pin=can_pin)].append(key_of(instance).name)
        sorted_fields = {name: tuple(sorted(machines)) for name, machines in fields.items()}
        host_machines.append(HostMachines(cluster=cluster, **sorted_fields, paused=is_paused))
    return host_machines


def _other_hosts(name: str, hosts: Iterable[Obj]) -> list[Obj]:
    """Return the other hosts that are ready and accept VMs."""
    return [
        other
        for other in hosts
        if key_of(other).name != name and is_ready(other) and accepts_machines(other)
    ]


def _field_of(instance: Obj, free: Iterable[Counter[str]], *, can_pin: bool) -> str:
    """Return the field of `HostMachines` to which an instance belongs.

    Several fields may suit; the first one in this order is right.

    :param free: the free devices of each other host
    :param can_pin: another host has its CPU manager enabled
    """
    spec = dict_at(instance, "spec")
    lacks_host = has_pinned_cpus(spec) and not can_pin
    if needs := devices_of(spec):
        if lacks_host:
            return "pinned"
        return "moves" if any(needs <= devices for devices in free) else "lacking"
    if is_bound_to_host(instance):
        return "stays"
    if is_shut_down_for_maintenance(instance):
        return "stops"
    if lacks_host:
        return "pinned"
    return "migrates" if migrates_when_evicted(instance) else "restarts"


def plan_evacuation(
    host: Obj, hosts: Iterable[Obj], machines: Sequence[HostMachines], value: str | None
) -> Plan:
    """Return the plan to set or remove the annotation of a host.

    :param host: the host, as `find_host` returns it
    :param hosts: all hosts of its Harvester
    :param machines: the machines on the host
    :param value: the value of the annotation; None to remove it
    """
    name = key_of(host).name
    present = annotations_of(host).get(EVACUATE_ANNOTATION)
    patches: tuple[Patch, ...] = ()
    if present != value:
        change = Change(
            object=f"Host {name}",
            field=f"annotation {EVACUATE_ANNOTATION}",
            before=present or "",
            after=value or "(removed)",
        )
        body = {"metadata": {"annotations": {EVACUATE_ANNOTATION: value}}}
        patches = (patch_of(host, body, [change]),)
    checks = tuple(_checks(host, hosts, machines)) if value else ()
    return Plan(Key("", name), patches, checks)


def progress_of(harvester_cluster: Obj | None, host: str, *, cancel: bool) -> ClusterProgress:
    """Return the progress of a cluster with the evacuation of a host, or with its cancellation."""
    condition = condition_of(harvester_cluster, ConditionType.HOSTS_EVACUATED)
    message = text_at(condition, "message")
    is_true = condition.get("status") == "True"
    if condition.get("reason") == Reason.EVACUATION_BLOCKED:
        return ClusterProgress(done=False, blocked=True, text=message)

    # A condition that is true names the hosts that machines have left.
    is_listed = host in evacuation.hosts_left(message)
    if cancel:
        is_done = not condition or (is_true and not is_listed)
        return ClusterProgress(done=is_done, blocked=False, text="done" if is_done else message)
    return ClusterProgress(
        done=is_true and is_listed, blocked=False, text=message or "waiting for the provider"
    )


def clusters_on(
    clusters: Iterable[Obj], harvester_clusters: Mapping[Key, Obj], uid: str
) -> dict[Key, bool]:
    """Return the Clusters on a Harvester, and whether each is paused.

    :param harvester_clusters: HarvesterClusters by namespace and name
    :param uid: the uid of the Harvester's namespace kube-system
    """
    is_paused = {}
    for cluster in clusters:
        name = text_at(cluster, "spec", "infrastructureRef", "name")
        infrastructure = harvester_clusters.get(Key(key_of(cluster).namespace, name))
        if infrastructure and at(infrastructure, "status", "harvester", "uid") == uid:
            is_paused[key_of(cluster)] = paused(cluster, infrastructure)
    return is_paused


def _checks(host: Obj, hosts: Iterable[Obj], machines: Sequence[HostMachines]) -> Iterator[Check]:
    """Yield checks of what an evacuation will do, and of what prevents it."""
    subject = f"Host {key_of(host).name}"
    others = _other_hosts(key_of(host).name, hosts)
    if others:
        yield ok("hosts", subject, f"{counted(len(others), 'other host')} ready for its VMs")
    else:
        remedy = "End a maintenance or an evacuation, or start a host"
        yield Check(
            "hosts", subject, Result.ERROR, message="no other host takes VMs", remedy=remedy
        )

    for group in machines:
        yield from _machine_checks(subject, group)


def _machine_checks(subject: str, machines: HostMachines) -> Iterator[Check]:
    """Yield a check for each group of machines of a cluster on the host."""

    def warning(message: str, group: tuple[str, ...], remedy: str) -> Check:
        text = f"{machines.cluster}{message}: {name_some(group)}"
        return Check("machines", subject, Result.WARNING, message=text, remedy=remedy)

    def report(message: str, group: tuple[str, ...]) -> Check:
        return ok("machines", subject, f"{machines.cluster}{message}: {name_some(group)}")

    if machines.paused and machines.moves:
        remedy = "End the pause, or stop these VMs yourself"
        yield warning(" is paused, so these stay", machines.moves, remedy)
    elif machines.moves:
        yield report(": stopped and started elsewhere, one at a time", machines.moves)
    if machines.pinned:
        message = (
            ": these have pinned CPUs, and no other host that takes VMs has its CPU manager "
            f"enabled (label {names.CPU_MANAGER_LABEL}=true), so they stay"
        )
        remedy = "Enable the CPU manager of another host on Harvester"
        yield warning(message, machines.pinned, remedy)
    if machines.lacking:
        message = ": no other host has the devices of these free, so they stay"
        remedy = "Enable the devices on another host, or stop a VM that uses them there"
        yield warning(message, machines.lacking, remedy)
    if machines.stays:
        message = (
            ": KubeVirt cannot migrate these, and a disk may be local to the host, so they stay"
        )
        remedy = "Stop and start them yourself, or replace their Machines"
        yield warning(message, machines.stays, remedy)
    if machines.stops:
        message = f": Harvester shuts these down, as label {names.MAINTENANCE_STRATEGY_LABEL} asks"
        yield report(message, machines.stops)
    if machines.migrates:
        yield report(": left to Harvester, which migrates", machines.migrates)
    if machines.restarts:
        message = (
            ": their eviction strategy takes effect with their next restart, so Harvester stops "
            "and starts them without a drain"
        )
        remedy = "Restart them before, or replace their Machines"
        yield warning(message, machines.restarts, remedy)
