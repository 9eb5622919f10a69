"""Read what the next step of an evacuation depends on.

Machines, VMs and hosts come from caches. The workload cluster is read only while a machine moves.
The free resources of hosts, which decide whether a VM may be stopped, are listed before its machine
begins to move and before the VM is stopped; during a drain, only every 30 s (see `obstacles`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from caphv.api import evacuation, parking
from caphv.api.clusterapi import is_server, paused
from caphv.api.conditions import get_condition
from caphv.api.hosts import may_be_migrating_guests
from caphv.api.names import (
    AVOIDED_HOSTS_ANNOTATION,
    EVACUATED_FROM_ANNOTATION,
    EVACUATED_STRATEGY_ANNOTATION,
    EVACUATION_STARTED_ANNOTATION,
    SKIP_REMEDIATION_ANNOTATION,
    SKIPPED_BY_US,
)
from caphv.api.object import (
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
from caphv.api.resources import CLUSTER_API_GROUP, HARVESTER_MACHINES
from caphv.api.virtualmachine import (
    ENDED_PHASES,
    devices_of,
    is_bound_to_host,
    is_shut_down_for_maintenance,
    migrates_when_evicted,
)
from reconciler.cluster.evacuation import obstacles
from reconciler.cluster.evacuation.halted import halted_on
from reconciler.cluster.evacuation.plan import (
    HOLD_SECONDS,
    STAGE_SECONDS,
    Action,
    ClusterState,
    EvacuatedVm,
    choose_state,
    moving_vms,
    next_step,
    stage_of,
)
from reconciler.cluster.evacuation.targets import (
    INSTANCE,
    describe_local_disks,
    describe_missing_cpu_manager,
)
from reconciler.cluster.evacuation.workload import Workload, read_workload
from reconciler.cluster.parking.plan import HALTED
from reconciler.cluster.parking.reading import run_strategy
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.topology import host_name
from reconciler.machine.placement import avoided_hosts
from reconciler.memory.cluster import StageRecord

_VM_RECORDS = {AVOIDED_HOSTS_ANNOTATION, EVACUATED_STRATEGY_ANNOTATION}
_MAX_STATUS = 64
REFUSED_SECONDS = 60.0
"""Seconds until a refused request is repeated while there is something else to do."""


@dataclass(slots=True)
class Observation:
    """The state from which a step is decided, and the objects that it writes to.

    Dictionaries have names of machines as keys. VMs, instances and Nodes have the same names.

    :param state: what the step is decided from
    :param evacuated_hosts: names of the hosts whose annotation requests their evacuation, sorted
    :param avoided_hosts: host names of the hosts on which no VM may start
    :param machines: the HarvesterMachines
    :param owners: the Machines of Cluster API
    :param vms: the VirtualMachines
    :param instance_starts: when the instances of the VMs were created
    :param workload: what was read from the workload cluster for the machine that moves
    :param migrated_by_harvester: machines on evacuated hosts that Harvester migrates
    :param restarted_by_harvester: machines on evacuated hosts that an eviction would restart
    """

    cluster: Obj
    state: ClusterState = field(default_factory=ClusterState)
    evacuated_hosts: list[str] = field(default_factory=list)
    avoided_hosts: list[str] = field(default_factory=list)
    machines: dict[str, Obj] = field(default_factory=dict)
    owners: dict[str, Obj] = field(default_factory=dict)
    vms: dict[str, Obj] = field(default_factory=dict)
    instance_starts: dict[str, str] = field(default_factory=dict)
    workload: Workload = field(default_factory=Workload)
    migrated_by_harvester: list[str] = field(default_factory=list)
    restarted_by_harvester: list[str] = field(default_factory=list)


def has_work(scope: ClusterScope) -> bool:
    """Return whether a host must be left, or an evacuation has left a record. Sends no request.

    Raises `Blocked`.
    """
    if parking.has_begun(scope.cluster):
        return False

    hosts = scope.require_session().hosts.store
    if any(map(evacuation.must_be_left, hosts)):
        return True

    vms = scope.namespace().vms
    for machine in scope.context.caches.machines_of(scope.cluster):
        if EVACUATED_FROM_ANNOTATION in annotations_of(machine):
            return True
        vm = vms.get(scope.target_namespace, key_of(machine).name)
        if vm is not None and not _VM_RECORDS.isdisjoint(annotations_of(vm)):
            return True
        owner = _owner_of(scope, machine)
        if owner and annotations_of(owner).get(SKIP_REMEDIATION_ANNOTATION) == SKIPPED_BY_US:
            return True
    return False


def forget_ended_drains(scope: ClusterScope) -> None:
    """Forget the start of drains that have ended. Raises `Blocked`."""
    hosts = scope.require_session().hosts
    drained_since = scope.memory.evacuation.drained_since
    for machine_name, name in list(drained_since):
        host = hosts.get("", name)
        if host is None or not evacuation.is_in_maintenance(host):
            del drained_since[machine_name, name]


async def observe(scope: ClusterScope, *, may_not_hold: bool) -> Observation:
    """Read what the next step depends on. Raises `Blocked`, `ApiError`, `Unreachable`.

    :param may_not_hold: see `ClusterState`. It changes the next step, and therefore what is read.
    """
    observed = Observation(scope.cluster)
    _read_vms(scope, observed)
    observed.state = replace(observed.state, may_not_hold=may_not_hold)

    movers = moving_vms(observed.state.vms)
    _forget_ended_moves(scope, movers)
    if not movers:
        await _review(scope, observed, observed.state.vms)
        return observed

    observations = [await _observe_mover(scope, observed, vm) for vm in movers]
    # One whose VM Harvester refuses to change keeps no other.
    able = [
        observation
        for observation in observations
        if not is_refused(scope, observation.state.mover)
    ]
    chosen = choose_state([observation.state for observation in able or observations])
    return next(observation for observation in observations if observation.state is chosen)


def _forget_ended_moves(scope: ClusterScope, movers: Iterable[EvacuatedVm]) -> None:
    """Forget stages, reviews and refusals of machines that no longer move."""
    names = {vm.name for vm in movers}
    evacuation_memory = scope.memory.evacuation
    for memory in (evacuation_memory.stages, evacuation_memory.reviews, evacuation_memory.refusals):
        for name in memory.keys() - names:
            del memory[name]


def is_refused(scope: ClusterScope, name: str) -> bool:
    """Return whether Harvester has just refused to change the VM of a machine."""
    refusal = scope.memory.evacuation.refusals.get(name)
    return refusal is not None and time.monotonic() - refusal.refused_at < REFUSED_SECONDS


async def _observe_mover(scope: ClusterScope, common: Observation, vm: EvacuatedVm) -> Observation:
    """Return what the next step of one moving machine depends on.

    :param common: the observation of the cluster, which all moving machines have in common
    """
    state = replace(
        common.state,
        vms=obstacles.recall(scope.memory, common.state.vms),
        mover=vm.name,
        is_late=_track_stage(scope, vm),
        is_forced=_is_forced(scope, vm),
    )
    workload = await read_workload(scope, vm, state.vms, common.instance_starts)
    state = replace(
        state,
        nodes=workload.node_states,
        pods=tuple(str(key_of(pod)) for pod in workload.pods),
        workload_error=workload.error,
    )
    observed = replace(common, state=state, workload=workload)

    # Until a VM is stopped, another one may take the device that it would need.
    is_stopped_next = next_step(observed.state).action is Action.STOP
    if not vm.saved_strategy and (is_stopped_next or obstacles.is_due(scope.memory, vm)):
        await _review(scope, observed, [vm])
    return observed


async def _review(scope: ClusterScope, observed: Observation, vms: Iterable[EvacuatedVm]) -> None:
    """Check whether these machines would find another host, and add their obstacles."""
    scope.memory.evacuation.uncounted = await obstacles.review(scope, observed.vms, vms)
    reviewed = obstacles.recall(scope.memory, observed.state.vms)
    observed.state = replace(observed.state, vms=reviewed)


def _read_vms(scope: ClusterScope, observed: Observation) -> None:
    """Read the machines and their VMs from caches that follow Harvester."""
    namespace = scope.require_current_namespace()
    hosts = list(scope.require_session().hosts.store)
    requested = {
        key_of(host).name: host_name(host) for host in hosts if evacuation.is_requested(host)
    }
    # Until Harvester has cordoned a host that it drains by force, a VM could start there again.
    draining = {host_name(host) for host in hosts if evacuation.is_draining_by_force(host)}
    observed.evacuated_hosts = sorted(requested)
    observed.avoided_hosts = sorted({*requested.values(), *draining})

    vms = []
    for machine in scope.context.caches.machines_of(scope.cluster):
        name = key_of(machine).name
        vm = namespace.vms.get(scope.target_namespace, name)
        owner = _owner_of(scope, machine)
        observed.machines[name] = machine
        if owner is not None:
            observed.owners[name] = owner

        if vm is None or any(map(being_deleted, (vm, machine, owner or {"metadata": {}}))):
            # The provider removes its member of etcd after its VM, or the core has done so before.
            vms.append(_absent_vm(machine, owner, scope.cluster, is_lost=vm is None))
            continue

        instance = namespace.instances.get(scope.target_namespace, name)
        observed.vms[name] = vm
        observed.instance_starts[name] = text_at(instance, "metadata", "creationTimestamp")
        vms.append(_existing_vm(scope, observed, name, instance, hosts))
    observed.state = ClusterState(vms=tuple(vms))


def _owner_of(scope: ClusterScope, machine: Obj) -> Obj | None:
    """Return the Machine of Cluster API that owns a HarvesterMachine."""
    reference = owner_reference(machine, "Machine", CLUSTER_API_GROUP)
    if reference is None:
        return None
    return scope.context.caches.machines.get(key_of(machine).namespace, reference["name"])


def _absent_vm(
    machine: Obj, owner: Obj | None, cluster: Obj | None, *, is_lost: bool
) -> EvacuatedVm:
    """Return a machine that has no VM, or is being deleted.

    A machine whose VM is lost keeps its records in the answer. They are removed next, so that the
    Machine can be remediated.

    :param is_lost: whether the VM does not exist
    """
    absent = EvacuatedVm(
        name=key_of(machine).name,
        is_control_plane=is_server(machine, cluster),
        is_absent=True,
    )
    if not is_lost or being_deleted(machine) or owner is None or being_deleted(owner):
        return absent

    is_held_by_us = annotations_of(owner).get(SKIP_REMEDIATION_ANNOTATION) == SKIPPED_BY_US
    return replace(
        absent,
        source=annotations_of(machine).get(EVACUATED_FROM_ANNOTATION, ""),
        is_held=is_held_by_us,
        is_held_by_us=is_held_by_us,
    )


def _existing_vm(
    scope: ClusterScope,
    observed: Observation,
    name: str,
    instance: Obj | None,
    hosts: Sequence[Obj],
) -> EvacuatedVm:
    """Return a machine with a VM, and note it if Harvester itself moves it off an evacuated host.

    :param hosts: Nodes of Harvester
    """
    machine = observed.machines[name]
    vm = observed.vms[name]
    owner = observed.owners.get(name)
    is_control_plane = is_server(machine, observed.cluster)
    host = text_at(instance, "status", "nodeName")
    is_alive = _is_alive(instance)
    is_on_evacuated_host = is_alive and host in observed.evacuated_hosts

    obstacle = _obstacle_to_migration(vm, instance, hosts) if is_on_evacuated_host else ""
    must_move = bool(obstacle) or (is_on_evacuated_host and not can_migrate(vm, instance or {}))
    if is_on_evacuated_host and not must_move:
        if migrates_when_evicted(instance or {}):
            observed.migrated_by_harvester.append(name)
        else:
            observed.restarted_by_harvester.append(name)

    record = scope.context.owner(HARVESTER_MACHINES.kind, machine)
    if ownership_of(vm, record) is not Ownership.OURS:
        return EvacuatedVm(
            name=name,
            is_control_plane=is_control_plane,
            host=host,
            must_move=must_move,
            obstacle="its VirtualMachine is not recorded as this cluster's",
        )

    annotations = annotations_of(vm)
    saved_strategy = annotations.get(EVACUATED_STRATEGY_ANNOTATION, "")
    was_restarted = EVACUATION_STARTED_ANNOTATION in annotations
    halted_host = ""
    if was_restarted or not saved_strategy:
        halted_host = halted_on(scope, machine, vm, instance)

    is_paused = paused(None, machine) or (owner is not None and paused(None, owner))
    if is_paused:
        # This only keeps a VM from being stopped. One that was stopped is started all the same.
        obstacle = obstacle or "it is paused; end that"

    skip_annotation = annotations_of(owner).get(SKIP_REMEDIATION_ANNOTATION) if owner else ""
    avoided = avoided_hosts(vm)
    return EvacuatedVm(
        name=name,
        is_control_plane=is_control_plane,
        host=host or halted_host,
        must_move=must_move,
        needs_hold=is_alive and not is_paused and _track_drain(scope, name, host),
        source=annotations_of(machine).get(EVACUATED_FROM_ANNOTATION, ""),
        was_halted_by_harvester=bool(halted_host) and not is_paused,
        obstacle=obstacle,
        is_held=skip_annotation is not None,
        is_held_by_us=skip_annotation == SKIPPED_BY_US,
        saved_strategy=saved_strategy,
        was_restarted=was_restarted,
        is_halted=run_strategy(vm) == HALTED,
        has_instance=instance is not None,
        is_running=is_alive and at(instance, "status", "phase") == "Running",
        avoids_hosts=bool(avoided),
        has_outdated_avoidance=not set(avoided) <= set(observed.avoided_hosts),
        status=plain(text_at(vm, "status", "printableStatus"), _MAX_STATUS),
        awaits_first_join=not at(owner, "status", "nodeRef"),
        has_unhealthy_node=_has_unhealthy_node(owner),
    )


def _has_unhealthy_node(owner: Obj | None) -> bool:
    """Return whether Cluster API reports the Node of a Machine as unhealthy or unknown."""
    condition = get_condition(list_at(owner, "status", "conditions"), "NodeHealthy") or {}
    return condition.get("status") in ("False", "Unknown")


def _is_alive(instance: Obj | None) -> bool:
    """Return whether an instance runs or will run, and is not ending."""
    if instance is None or being_deleted(instance):
        return False
    return at(instance, "status", "phase") not in ENDED_PHASES


def _obstacle_to_migration(vm: Obj, instance: Obj | None, hosts: Sequence[Obj]) -> str:
    """Return why neither Harvester nor a restart can move a VM; empty if one of them can.

    :param hosts: Nodes of Harvester
    """
    if not can_migrate(vm, instance or {}) or is_shut_down_for_maintenance(vm):
        return describe_local_disks(vm, instance)
    # Without such a host, neither a migration nor a start would succeed.
    host = text_at(instance, "status", "nodeName")
    return describe_missing_cpu_manager(vm, host, hosts)


def _track_drain(scope: ClusterScope, machine_name: str, host: str) -> bool:
    """Return whether Harvester has been draining a machine's host for less than `HOLD_SECONDS`.

    The first call for a machine on a host begins that time.
    """
    node = scope.require_session().hosts.get("", host) if host else None
    if node is None or not may_be_migrating_guests(node):
        return False
    current_time = time.monotonic()
    since = scope.memory.evacuation.drained_since.setdefault((machine_name, host), current_time)
    return current_time - since < HOLD_SECONDS


def can_migrate(vm: Obj, instance: Obj) -> bool:
    """Return whether Harvester can migrate an instance, as far as KubeVirt reports it."""
    return not (devices_of(dict_at(vm, *INSTANCE)) or is_bound_to_host(instance))


def _track_stage(scope: ClusterScope, vm: EvacuatedVm) -> bool:
    """Record when a move enters a stage; return whether it takes longer than `STAGE_SECONDS`."""
    stage = stage_of(vm)
    current_time = time.monotonic()
    last = scope.memory.evacuation.stages.get(vm.name)
    if last is None or last.name != stage.name:
        scope.memory.evacuation.stages[vm.name] = StageRecord(stage.name, current_time)
        return False
    return current_time - last.since >= STAGE_SECONDS[stage]


def _is_forced(scope: ClusterScope, vm: EvacuatedVm) -> bool:
    """Return whether a machine leaves its host even if its Node cannot be drained."""
    host = scope.require_session().hosts.get("", vm.source)
    return host is not None and evacuation.is_forced(host)
