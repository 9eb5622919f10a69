"""Plan to empty a host of Harvester, with the checks before, and its progress: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from caphv.api import evacuation, names
from caphv.api.clusterapi import paused
from caphv.api.counting import counted, name_some
from caphv.api.hosts import accepts_machines, has_cpu_manager, is_ready
from caphv.api.labels import cluster_label
from caphv.api.names import EVACUATE_ANNOTATION, ConditionType, Reason
from caphv.api.object import Key, Obj, annotations_of, at, dict_at, key_of, labels_of, text_at
from caphv.api.virtualmachine import (
    devices_of,
    has_pinned_cpus,
    is_bound_to_host,
    is_shut_down_for_maintenance,
    migrates_when_evicted,
)
from operations.change.changes import Change, ChangeError, Patch, Plan, patch_of
from operations.change.clusterprogress import ClusterProgress
from operations.read.objects import condition_of
from operations.status.check import Check, Result, ok


@dataclass(frozen=True, slots=True)
class HostMachines:
    """The machines of a cluster on a host, by what happens to them when it is emptied.

    :param moves: they are stopped and started on another host
    :param stays: KubeVirt cannot migrate them, and they have no host devices: a disk may be local
    :param stops: Harvester shuts them down for maintenance, as a label of their VMs asks
    :param migrates: Harvester migrates them
    :param restarts: an eviction stops and starts them, without a drain of their Nodes
    :param pinned: they have pinned CPUs, and no other host has its CPU manager enabled: they stay
    :param paused: the cluster is paused, so that none of them moves
    """

    cluster: Key
    moves: tuple[str, ...] = ()
    migrates: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    paused: bool = False


def find_host(hosts: Iterable[Obj], name: str) -> Obj:
    """Return a host by name. Raises `ChangeError`, which names the hosts."""
    by_name = {key_of(host).name: host for host in hosts}
    if name not in by_name:
        raise ChangeError([f"no host {name} on Harvester; its hosts: {', '.join(sorted(by_name))}"])
    return {"apiVersion": "v1", "kind": "Node", **by_name[name]}


def machines_on(
    host: str, hosts: Iterable[Obj], clusters: Mapping[Key, bool], instances: Iterable[Obj]
) -> list[HostMachines]:
    """Return the machines of each cluster on a host.

    :param host: name of the host
    :param hosts: all hosts of its Harvester
    :param clusters: the clusters on its Harvester, and whether they are paused
    :param instances: VirtualMachineInstances, as far as they can be read
    """
    can_pin = any(map(has_cpu_manager, _other_hosts(host, hosts)))
    by_label: dict[str, list[Obj]] = {}
    for instance in instances:
        if at(instance, "status", "nodeName") == host:
            by_label.setdefault(labels_of(instance).get(names.CLUSTER_LABEL, ""), []).append(
                instance
            )
    machines = []
    for cluster, is_paused in sorted(clusters.items()):
        kinds = ("moves", "migrates", "restarts", "stays", "stops", "pinned")
        found: dict[str, list[str]] = {kind: [] for kind in kinds}
        for instance in by_label.get(cluster_label(cluster), ()):
            found[_fate(instance, can_pin=can_pin)].append(key_of(instance).name)
        groups = {kind: tuple(sorted(group)) for kind, group in found.items()}
        machines.append(HostMachines(cluster, **groups, paused=is_paused))
    return machines


def _other_hosts(name: str, hosts: Iterable[Obj]) -> list[Obj]:
    """Return the hosts that may take what leaves a host."""
    return [
        other
        for other in hosts
        if key_of(other).name != name and is_ready(other) and accepts_machines(other)
    ]


def _fate(instance: Obj, *, can_pin: bool) -> str:
    """Return the field of `HostMachines` for an instance.

    :param can_pin: another host has its CPU manager enabled
    """
    spec = dict_at(instance, "spec")
    has_devices, lacks_host = bool(devices_of(spec)), has_pinned_cpus(spec) and not can_pin
    if has_devices:
        return "pinned" if lacks_host else "moves"
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
    """Return the plan to give a host the annotation, or None to remove it.

    :param host: the host, as `find_host` returns it
    :param hosts: all hosts of its Harvester
    :param machines: what is on the host
    :param value: the value of the annotation
    """
    name, former = key_of(host).name, annotations_of(host).get(EVACUATE_ANNOTATION)
    patches: tuple[Patch, ...] = ()
    if former != value:
        field, after = f"annotation {EVACUATE_ANNOTATION}", value or "(removed)"
        change = Change(f"Host {name}", field, former or "", after)
        body = {"metadata": {"annotations": {EVACUATE_ANNOTATION: value}}}
        patches = (patch_of(host, body, [change]),)
    checks = tuple(_checks(host, hosts, machines)) if value else ()
    return Plan(Key("", name), patches, checks)


def progress_of(harvester_cluster: Obj | None, host: str, *, cancel: bool) -> ClusterProgress:
    """Return how far a cluster is with a host that is to be emptied, or not any more."""
    condition = condition_of(harvester_cluster, ConditionType.HOSTS_EVACUATED)
    message = str(condition.get("message") or "")
    is_true = condition.get("status") == "True"
    if condition.get("reason") == Reason.EVACUATION_BLOCKED:
        return ClusterProgress(False, True, message)
    is_listed = host in evacuation.hosts_left(message)
    if cancel:
        done = not condition or (is_true and not is_listed)
        return ClusterProgress(done, False, "done" if done else message)
    done = is_true and is_listed
    return ClusterProgress(done, False, message or "waiting for the provider")


def clusters_on(
    clusters: Iterable[Obj], harvester_clusters: Mapping[Key, Obj], uid: str
) -> dict[Key, bool]:
    """Return the Clusters on a Harvester, and whether each is paused.

    :param harvester_clusters: by namespace and name
    :param uid: uid of the Harvester's namespace kube-system
    """
    found = {}
    for cluster in clusters:
        name = text_at(cluster, "spec", "infrastructureRef", "name")
        infrastructure = harvester_clusters.get(Key(key_of(cluster).namespace, name))
        if infrastructure and at(infrastructure, "status", "harvester", "uid") == uid:
            found[key_of(cluster)] = paused(cluster, infrastructure)
    return found


def _checks(host: Obj, hosts: Iterable[Obj], machines: Sequence[HostMachines]) -> Iterator[Check]:
    """Say what an evacuation will do, and what prevents it."""
    name = key_of(host).name
    subject = f"Host {name}"
    others = _other_hosts(name, hosts)
    if others:
        yield ok("hosts", subject, f"{counted(len(others), 'other host')} ready for its VMs")
    else:
        remedy = "End a maintenance or an evacuation, or start a host"
        yield Check("hosts", subject, Result.ERROR, "no other host takes VMs", remedy)

    for group in machines:
        if group.paused and group.moves:
            message = f"{group.cluster} is paused, so these stay: {name_some(group.moves)}"
            remedy = "End the pause, or stop these VMs yourself"
            yield Check("machines", subject, Result.WARNING, message, remedy)
        elif group.moves:
            yield ok(
                "machines",
                subject,
                f"{group.cluster}: stopped and started elsewhere, one at "
                f"a time: {name_some(group.moves)}",
            )
        if group.pinned:
            message = (
                f"{group.cluster}: these have pinned CPUs, and no other host that takes VMs has "
                f"its CPU manager enabled (label {names.CPU_MANAGER_LABEL}=true), so they stay: "
                f"{name_some(group.pinned)}"
            )
            remedy = "Enable the CPU manager of another host on Harvester"
            yield Check("machines", subject, Result.WARNING, message, remedy)
        if group.stays:
            message = (
                f"{group.cluster}: KubeVirt cannot migrate these, and a disk may be local to the "
                f"host, so they stay: {name_some(group.stays)}"
            )
            remedy = "Stop and start them yourself, or replace their Machines"
            yield Check("machines", subject, Result.WARNING, message, remedy)
        if group.stops:
            message = (
                f"{group.cluster}: Harvester shuts these down, as label "
                f"{names.MAINTENANCE_STRATEGY_LABEL} asks: {name_some(group.stops)}"
            )
            yield ok("machines", subject, message)
        if group.migrates:
            message = (
                f"{group.cluster}: left to Harvester, which migrates: {name_some(group.migrates)}"
            )
            yield ok("machines", subject, message)
        if group.restarts:
            message = (
                f"{group.cluster}: their eviction strategy takes effect with their next restart, "
                f"so Harvester stops and starts them without a drain: {name_some(group.restarts)}"
            )
            remedy = "Restart them before, or replace their Machines"
            yield Check("machines", subject, Result.WARNING, message, remedy)
