"""Read what the next step of an evacuation depends on.

Machines, VMs and hosts come from caches. The workload cluster is read only while a machine moves,
and what hosts have free, which decides whether its VM may be stopped, before it begins to move and
before it is stopped; during a drain seldom.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from caphv.api import evacuation, parking
from caphv.api.clusterapi import control_plane_initialized, is_server, paused
from caphv.api.conditions import get_condition, seconds_since
from caphv.api.hosts import migrates_guests
from caphv.api.names import (
    AVOIDED_HOSTS_ANNOTATION,
    EVACUATED_BOOT_ANNOTATION,
    EVACUATED_FROM_ANNOTATION,
    EVACUATED_STRATEGY_ANNOTATION,
    EVACUATION_STARTED_ANNOTATION,
    SKIP_REMEDIATION_ANNOTATION,
    SKIPPED_BY_US,
)
from caphv.api.object import (
    NODES,
    Obj,
    annotations_of,
    at,
    being_deleted,
    dict_at,
    key_of,
    list_at,
    owner_reference,
    text_at,
)
from caphv.api.ownership import Ownership, ownership_of
from caphv.api.plaintext import plain
from caphv.api.resources import (
    CLUSTER_API_GROUP,
    HARVESTER_MACHINES,
)
from caphv.api.virtualmachine import (
    ENDED_PHASES,
    devices_of,
    is_bound_to_host,
    is_shut_down_for_maintenance,
    migrates_when_evicted,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, RequestError
from caphv.runtime.etcd import find_pods
from reconciler.cluster.evacuation import obstacles
from reconciler.cluster.evacuation.halted import halted_on
from reconciler.cluster.evacuation.plan import (
    HOLD_SECONDS,
    STAGE_SECONDS,
    Action,
    EvacuatedNode,
    EvacuatedVm,
    Seen,
    choose,
    moving,
    next_step,
    stage_of,
)
from reconciler.cluster.evacuation.targets import (
    INSTANCE,
    describe_local_disks,
    describe_missing_cpu_manager,
)
from reconciler.cluster.parking.drain import pods_to_evict
from reconciler.cluster.parking.plan import HALTED
from reconciler.cluster.parking.reading import boot_id, run_strategy
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.topology import host_name
from reconciler.machine.placement import avoided_hosts

_VM_RECORDS = {AVOIDED_HOSTS_ANNOTATION, EVACUATED_STRATEGY_ANNOTATION}
_LONGEST_STATUS = 64


@dataclass(slots=True)
class Surroundings:
    """What a step is decided from, and the objects that it writes to, by the name of a machine.

    :param evacuated: names of the hosts that are evacuated, sorted
    :param hosts: host names of those on which no VM must start
    :param restarts: machines on them that an eviction would restart, not migrate
    :param migrating: machines on them that Harvester migrates
    """

    cluster: Obj | None = None
    seen: Seen = field(default_factory=Seen)
    evacuated: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    machines: dict[str, Obj] = field(default_factory=dict)
    owners: dict[str, Obj] = field(default_factory=dict)
    """The Machines of Cluster API."""
    vms: dict[str, Obj] = field(default_factory=dict)
    starts: dict[str, str] = field(default_factory=dict)
    """When their instances were created."""
    nodes: dict[str, Obj] = field(default_factory=dict)
    pods: list[Obj] = field(default_factory=list)
    client: ApiClient | None = None
    """Of the workload cluster."""
    restarts: list[str] = field(default_factory=list)
    migrating: list[str] = field(default_factory=list)


def concerns(scope: ClusterScope) -> bool:
    """Return whether a host is evacuated, or an evacuation has left a record. Sends no request.

    Raises `Blocked`.
    """
    if parking.has_begun(scope.cluster):
        return False

    hosts = scope.require_session().hosts.store
    if any(map(evacuation.is_emptied, hosts)):
        return True

    vms = scope.namespace().vms
    for machine in scope.context.caches.machines_of(scope.cluster):
        if EVACUATED_FROM_ANNOTATION in annotations_of(machine):
            return True
        vm = vms.get(scope.target_namespace, key_of(machine).name)
        if vm is not None and not _VM_RECORDS.isdisjoint(annotations_of(vm)):
            return True
        owner = _machine_of(scope, machine)
        if owner and annotations_of(owner).get(SKIP_REMEDIATION_ANNOTATION) == SKIPPED_BY_US:
            return True
    return False


def forget_drains(scope: ClusterScope) -> None:
    """Forget since when machines were on hosts that are drained no more. Raises `Blocked`."""
    hosts, since = scope.require_session().hosts, scope.memory.drained_since
    for machine, name in list(since):
        host = hosts.get("", name)
        if host is None or not evacuation.is_drained(host):
            del since[machine, name]


async def read_surroundings(scope: ClusterScope, *, unheld: bool = False) -> Surroundings:
    """Read what the next step depends on. Raises `Blocked`, `ApiError`, `Unreachable`.

    :param unheld: the provider may not keep Machines from remediation, see `Seen`. The next step
        depends on it, and so does what is read for that step
    """
    around = Surroundings(scope.cluster)
    _read_vms(scope, around)
    around.seen = replace(around.seen, unheld=unheld)

    movers = moving(around.seen.vms)
    names = {vm.name for vm in movers}
    for memory in (scope.memory.evacuation_stages, scope.memory.evacuation_reviews):
        for name in memory.keys() - names:
            del memory[name]
    if not movers:
        await _review(scope, around, around.seen.vms)
        return around

    views = []
    for vm in movers:
        late, forced = _is_late(scope, vm), _is_forced(scope, vm)
        vms = obstacles.recall(scope.memory, around.seen.vms)
        seen = replace(around.seen, vms=vms, mover=vm.name, late=late, forced=forced)
        view = replace(around, seen=seen, nodes={}, pods=[])
        await _read_workload(scope, view, vm)
        # Until a VM is stopped, another one may take the device that it would find.
        is_stopped_next = next_step(view.seen).action is Action.STOP
        if not vm.former and (is_stopped_next or obstacles.is_due(scope.memory, vm)):
            await _review(scope, view, [vm])
        views.append(view)
    chosen = choose([view.seen for view in views])
    return next(view for view in views if view.seen is chosen)


async def _review(scope: ClusterScope, around: Surroundings, vms: Iterable[EvacuatedVm]) -> None:
    """Find out which of these machines would find no other host."""
    scope.memory.evacuation_uncounted = await obstacles.review(scope, around.vms, vms)
    vms = obstacles.recall(scope.memory, around.seen.vms)
    around.seen = replace(around.seen, vms=vms)


def _read_vms(scope: ClusterScope, around: Surroundings) -> None:
    """Read the machines and their VMs from caches that follow Harvester."""
    namespace, hosts = scope.current_namespace(), list(scope.require_session().hosts.store)
    wanted = {key_of(host).name: host_name(host) for host in hosts if evacuation.is_wanted(host)}
    # Until Harvester has cordoned a host that it drains by force, a VM could start there again.
    forced = {host_name(host) for host in hosts if evacuation.is_drained_by_force(host)}
    around.evacuated, around.hosts = sorted(wanted), sorted({*wanted.values(), *forced})

    vms = []
    for machine in scope.context.caches.machines_of(scope.cluster):
        name = key_of(machine).name
        vm = namespace.vms.get(scope.target_namespace, name)
        owner = _machine_of(scope, machine)
        around.machines[name] = machine
        if owner is not None:
            around.owners[name] = owner
        if vm is None or any(map(being_deleted, (vm, machine, owner or {"metadata": {}}))):
            # Its member of etcd is removed after its VM, or by the core before.
            vms.append(_absent(machine, owner, scope.cluster, is_lost=vm is None))
            continue

        around.vms[name] = vm
        instance = namespace.instances.get(scope.target_namespace, name)
        around.starts[name] = text_at(instance, "metadata", "creationTimestamp")
        record = scope.context.owner(HARVESTER_MACHINES.kind, machine)
        ownership = ownership_of(vm, record)
        found = _vm(around, name, instance, hosts, ownership)
        if ownership is Ownership.OURS and _is_alive(instance):
            host = scope.require_session().hosts.get("", found.host) if found.host else None
            found = replace(found, drained=host is not None and migrates_guests(host))
        if ownership is Ownership.OURS and (found.started or not found.former):
            lost_from = halted_on(scope, machine, vm, instance)
            found = replace(found, lost=bool(lost_from), host=found.host or lost_from)
        if paused(None, machine) or (owner is not None and paused(None, owner)):
            # Once it was stopped, it is started all the same.
            obstacle = found.obstacle or "it is paused; end that"
            found = replace(found, obstacle=obstacle, drained=False, lost=False)
        if found.drained and _is_held_for_long(scope, found):
            found = replace(found, drained=False)
        vms.append(found)
    around.seen = Seen(vms=tuple(vms))


def _machine_of(scope: ClusterScope, machine: Obj) -> Obj | None:
    """Return the Machine of Cluster API that owns a HarvesterMachine."""
    reference = owner_reference(machine, "Machine", CLUSTER_API_GROUP)
    if reference is None:
        return None
    return scope.context.caches.machines.get(key_of(machine).namespace, reference["name"])


def _absent(machine: Obj, owner: Obj | None, cluster: Obj | None, *, is_lost: bool) -> EvacuatedVm:
    """Return a machine without a VM, or in deletion.

    :param is_lost: the VM does not exist. The Machine can be replaced then.
    """
    absent = EvacuatedVm(key_of(machine).name, is_server(machine, cluster), absent=True)
    if not is_lost or being_deleted(machine) or owner is None or being_deleted(owner):
        return absent
    is_ours = annotations_of(owner).get(SKIP_REMEDIATION_ANNOTATION) == SKIPPED_BY_US
    source = annotations_of(machine).get(EVACUATED_FROM_ANNOTATION, "")
    return replace(absent, source=source, held=is_ours, held_by_us=is_ours)


def _vm(
    around: Surroundings,
    name: str,
    instance: Obj | None,
    hosts: Sequence[Obj],
    ownership: Ownership,
) -> EvacuatedVm:
    """Return what a machine shows, and note it if an eviction by Harvester is to move it.

    :param hosts: Nodes of Harvester
    """
    machine, vm = around.machines[name], around.vms[name]
    host = text_at(instance, "status", "nodeName")
    is_alive = _is_alive(instance)
    is_evacuated = is_alive and host in around.evacuated
    is_migratable = can_migrate(vm, instance or {})
    obstacle = describe_local_disks(vm, instance)
    if is_evacuated and is_migratable and not is_shut_down_for_maintenance(vm):
        # Neither a migration nor a start finds a host for it.
        obstacle = describe_missing_cpu_manager(vm, host, hosts)

    leaves = is_evacuated and (not is_migratable or bool(obstacle))
    if is_evacuated and not leaves:
        migrates = migrates_when_evicted(instance or {})
        (around.migrating if migrates else around.restarts).append(name)
    if ownership is not Ownership.OURS:
        obstacle = "its VirtualMachine is not recorded as this cluster's"
        return EvacuatedVm(
            name, is_server(machine, around.cluster), host, leaves, obstacle=obstacle
        )

    annotations, avoided = annotations_of(vm), avoided_hosts(vm)
    owner = around.owners.get(name)
    skipped = annotations_of(owner).get(SKIP_REMEDIATION_ANNOTATION) if owner else ""
    return EvacuatedVm(
        name,
        is_server(machine, around.cluster),
        host,
        leaves,
        obstacle=obstacle if leaves else "",
        source=annotations_of(machine).get(EVACUATED_FROM_ANNOTATION, ""),
        held=skipped is not None,
        held_by_us=skipped == SKIPPED_BY_US,
        former=annotations.get(EVACUATED_STRATEGY_ANNOTATION, ""),
        started=EVACUATION_STARTED_ANNOTATION in annotations,
        halted=run_strategy(vm) == HALTED,
        exists=instance is not None,
        runs=is_alive and at(instance, "status", "phase") == "Running",
        avoids=bool(avoided),
        outdated=not set(avoided) <= set(around.hosts),
        status=plain(text_at(vm, "status", "printableStatus"), _LONGEST_STATUS),
        joins=not at(owner, "status", "nodeRef"),
        unseen=_is_unseen(owner),
    )


def _is_unseen(owner: Obj | None) -> bool:
    """Return whether the core says of a Machine that its Node is not healthy, or not reachable."""
    seen = get_condition(list_at(owner, "status", "conditions"), "NodeHealthy") or {}
    return seen.get("status") in ("False", "Unknown")


def _is_alive(instance: Obj | None) -> bool:
    if instance is None or being_deleted(instance):
        return False
    return at(instance, "status", "phase") not in ENDED_PHASES


def _is_held_for_long(scope: ClusterScope, vm: EvacuatedVm) -> bool:
    """Return whether a machine was on a host that is drained for longer than drains take."""
    current_time = time.monotonic()
    since = scope.memory.drained_since.setdefault((vm.name, vm.host), current_time)
    return current_time - since >= HOLD_SECONDS


def can_migrate(vm: Obj, instance: Obj) -> bool:
    """Return whether Harvester can migrate an instance, as far as KubeVirt reports it."""
    return not (devices_of(dict_at(vm, *INSTANCE)) or is_bound_to_host(instance))


def _is_late(scope: ClusterScope, vm: EvacuatedVm) -> bool:
    """Return whether the time for the stage of a move is over."""
    stage, current_time = stage_of(vm), time.monotonic()
    known, since = scope.memory.evacuation_stages.get(vm.name, ("", 0.0))
    if known != stage.name:
        scope.memory.evacuation_stages[vm.name] = (stage.name, current_time)
        return False
    return current_time - since >= STAGE_SECONDS[stage]


def _is_forced(scope: ClusterScope, vm: EvacuatedVm) -> bool:
    host = scope.require_session().hosts.get("", vm.source)
    return host is not None and evacuation.is_forced(host)


async def _read_workload(scope: ClusterScope, around: Surroundings, vm: EvacuatedVm) -> None:
    """Read the Node of the machine that moves, its Pods, and Nodes of the control plane.

    A workload API that does not answer is an answer.
    """
    workloads = scope.context.workloads
    await workloads.ensure(scope.cluster_key)
    client = around.client = workloads.client(scope.cluster_key)
    if client is None:
        has_api = control_plane_initialized(scope.cluster)
        nodes: tuple[EvacuatedNode, ...] | None = None if has_api else ()
        around.seen = replace(around.seen, nodes=nodes, unread="its kubeconfig does not exist")
        return

    names = {vm.name}
    if vm.control_plane:
        names |= {other.name for other in around.seen.vms if other.control_plane}
    try:
        without_etcd = await _without_etcd(client, around.starts) if vm.control_plane else set()
        for name in sorted(names):
            try:
                around.nodes[name] = await client.get(NODES, name)
            except NotFound:
                continue  # it never joined, or was deleted
        if vm.name in around.nodes and not vm.former:
            around.pods = await pods_to_evict(client, [vm.name])
    except RequestError as error:
        around.seen = replace(around.seen, nodes=None, unread=str(error))
        return
    around.seen = replace(
        around.seen,
        nodes=tuple(
            _node(name, node, without_etcd, around.starts.get(name, ""))
            for name, node in around.nodes.items()
        ),
        pods=tuple(map(str, map(key_of, around.pods))),
    )


async def _without_etcd(client: ApiClient, starts: Mapping[str, str]) -> set[str]:
    """Return the Nodes whose Pod of etcd is not ready. Raises `ApiError`, `Unreachable`.

    :param starts: when the instances of the Nodes were created
    """
    unready = set()
    for pod in await find_pods(client):
        name = str(pod["spec"]["nodeName"])
        ready = get_condition(list_at(pod, "status", "conditions"), "Ready") or {}
        since, start = str(ready.get("lastTransitionTime") or ""), starts.get(name, "")
        if ready.get("status") == "False" or (since and start and not _is_after(since, start)):
            unready.add(name)
    return unready


def _is_after(timestamp: str, start: str) -> bool:
    return bool(timestamp) and seconds_since(timestamp) <= seconds_since(start)


def _node(name: str, node: Obj, without_etcd: Container[str], start: str) -> EvacuatedNode:
    """Return what a Node shows.

    :param start: when the instance of its VM was created
    """
    record = annotations_of(node).get(EVACUATED_BOOT_ANNOTATION)
    ready = get_condition(list_at(node, "status", "conditions"), "Ready") or {}
    # The API calls a Node ready for some 40 s after its kubelet has stopped reporting.
    is_current = _is_after(str(ready.get("lastHeartbeatTime") or ""), start)
    return EvacuatedNode(
        name,
        ready=ready.get("status") == "True" and is_current and name not in without_etcd,
        held=record is not None,
        # Without a boot, a report cannot be distinguished from one of the last run.
        rebooted=record in (None, "") or boot_id(node) != record,
    )
