"""Read what the next step of parking depends on: VMs, Nodes, Pods, volumes.

Of the workload cluster and of volumes, only what this step needs: it costs requests.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace

from caphv.api import parking, remedies
from caphv.api.clusterapi import (
    control_plane_initialized,
    is_control_plane,
    is_of_rancher,
    is_server,
)
from caphv.api.conditions import is_true
from caphv.api.names import (
    EVACUATED_STRATEGY_ANNOTATION,
    EVACUATION_STARTED_ANNOTATION,
    INSUFFICIENT_QUOTA_ANNOTATION,
    PARKED_BOOT_ANNOTATION,
    PARKED_STRATEGY_ANNOTATION,
    STOPS_LAST_ANNOTATION,
    ConditionType,
    Reason,
)
from caphv.api.object import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    VOLUME_ATTACHMENTS,
    Obj,
    annotations_of,
    at,
    being_deleted,
    key_of,
    list_at,
    text_at,
    uid_of,
)
from caphv.api.ownership import Ownership, ownership_of
from caphv.api.resources import HARVESTER_MACHINES
from caphv.api.virtualmachine import ENDED_PHASES, claims_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound, RequestError
from caphv.runtime.listing import list_pages
from reconciler.cluster.parking.drain import DRAIN_SECONDS, is_agent_of_rancher, pods_to_evict
from reconciler.cluster.parking.plan import HALTED, ParkedNode, ParkedVm, Seen
from reconciler.cluster.scope import ClusterScope
from reconciler.machine.vmstatus import VmPhase, vm_state
from reconciler.status import Blocked
from reconciler.triggers import Delay

_RETRY_SECONDS = 10.0
# Between two starts of a VM that a quota refuses. Nothing tells when the quota has room.
_QUOTA_SECONDS = 120.0
# With these, a VM that was stopped does not start by itself.
_IDLE_STRATEGIES = ("Manual", "Once", "RerunOnFailure")
# States of a VM that do not end by themselves.
_OBSTACLES = (VmPhase.UNSCHEDULABLE, VmPhase.FAILED, VmPhase.PAUSED, VmPhase.UNKNOWN)


@dataclass(slots=True)
class Surroundings:
    """What a step is decided from, and the objects that it writes to."""

    seen: Seen
    vms: dict[str, Obj] = field(default_factory=dict)
    nodes: dict[str, Obj] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    """Uids of instances by the names of their VMs."""
    ending: set[str] = field(default_factory=set)
    """VMs whose instance is being deleted: what runs there is not to run any more."""
    pods: list[Obj] = field(default_factory=list)
    client: ApiClient | None = None
    """Of the workload cluster."""
    unread: str = ""
    """Why the workload API could not be read."""
    unchecked: str = ""
    """Why the volumes could not be read."""


async def read_surroundings(scope: ClusterScope) -> Surroundings:
    """Read what the next step depends on. Raises `Blocked`, `ApiError`, `Unreachable`."""
    around = read_record(scope)
    if around.seen.deleted:
        return around
    if not around.seen.begun:
        _check_vms(scope, around)
        return around

    _read_vms(scope, around)
    if _needs_workload(around.seen):
        await _read_workload(scope, around)
    elif _is_stopped(around.seen) and not scope.draft.is_true(ConditionType.PARKED):
        await _read_volumes(scope, around)
    return around


def read_record(scope: ClusterScope) -> Surroundings:
    """Return what the Cluster alone says."""
    return Surroundings(
        Seen(
            wanted=parking.is_wanted(scope.cluster),
            begun=parking.has_begun(scope.cluster),
            paused=bool(at(scope.cluster, "spec", "paused")),
            deleted=being_deleted(scope.cluster),
            last=annotations_of(scope.cluster).get(STOPS_LAST_ANNOTATION, ""),
            tunnelled=is_of_rancher(scope.cluster),
        )
    )


def _check_vms(scope: ClusterScope, around: Surroundings) -> None:
    """Raise `Blocked` for a VM that could not be stopped, before the cluster is paused for it."""
    if not around.seen.wanted:
        return
    try:
        _read_vms(scope, around)
    except Blocked as blocked:
        # Caches of an unreachable Harvester are no reason to let machines be replaced.
        if blocked.reason == Reason.PARK_BLOCKED:
            raise


def _read_vms(scope: ClusterScope, around: Surroundings) -> None:
    """Read the VMs of all machines from caches that follow Harvester.

    Raises `Blocked` for a VM that Harvester does not record as the machine's, when it would be
    stopped, or started because parking has stopped it.
    """
    namespace = scope.current_namespace()
    vms = []
    for machine in scope.context.caches.machines_of(scope.cluster):
        name = key_of(machine).name
        vm = namespace.vms.get(scope.target_namespace, name)
        if vm is None or being_deleted(vm):
            continue
        owner = scope.context.owner(HARVESTER_MACHINES.kind, machine)
        if ownership_of(vm, owner) is not Ownership.OURS:
            if around.seen.wanted:
                raise _not_ours(scope, machine)
            if PARKED_STRATEGY_ANNOTATION in annotations_of(vm):
                raise _not_adopted(scope, machine)
            continue

        instance = namespace.instances.get(scope.target_namespace, name)
        if instance is not None:
            around.instances[name] = uid_of(instance)
            if being_deleted(instance):
                around.ending.add(name)
        around.vms[name] = vm
        idle = _is_idle(vm, instance)
        vms.append(
            ParkedVm(
                name,
                is_server(machine, scope.cluster),
                run_strategy(vm),
                former_strategy(vm, resumed=not around.seen.wanted),
                serves=is_control_plane(machine, scope.cluster),
                runs=instance is not None and not idle,
                idle=idle,
                ending=name in around.ending,
                refusal=_refusal(scope, vm),
                obstacle=_obstacle(scope, vm, instance),
            )
        )
    around.seen = replace(around.seen, vms=tuple(vms))


def _obstacle(scope: ClusterScope, vm: Obj, instance: Obj | None) -> str:
    """Return why the instance of a VM does not run; empty if it runs or takes its time."""
    if instance is None:
        return ""
    state = vm_state(vm, instance, hosts=scope.require_session().hosts.store)
    return state.message if state.phase in _OBSTACLES else ""


def former_strategy(vm: Obj, *, resumed: bool) -> str:
    """Return the run strategy that a VM had before it was stopped; empty if it was not.

    :param resumed: also for a VM that an evacuation has stopped and not yet started, which only
        the resume can start: an evacuation does nothing until the cluster is resumed
    """
    annotations = annotations_of(vm)
    former = annotations.get(PARKED_STRATEGY_ANNOTATION, "")
    if former or not resumed or run_strategy(vm) != HALTED:
        return former
    if EVACUATION_STARTED_ANNOTATION in annotations:
        return ""  # a user has halted it since
    return annotations.get(EVACUATED_STRATEGY_ANNOTATION, "")


def run_strategy(vm: Obj) -> str:
    """Return the run strategy of a VM; that of the deprecated field `running`, if it has this."""
    strategy = at(vm, "spec", "runStrategy")
    return str(strategy or ("Always" if at(vm, "spec", "running") else HALTED))


def _is_idle(vm: Obj, instance: Obj | None) -> bool:
    """Return whether a VM was stopped by a user or its guest, and stays so by its run strategy."""
    if PARKED_STRATEGY_ANNOTATION in annotations_of(vm):
        return False
    if run_strategy(vm) not in _IDLE_STRATEGIES:
        return False
    has_ended = instance is None or at(instance, "status", "phase") in ENDED_PHASES
    # Without this status, KubeVirt is about to start it.
    return has_ended and at(vm, "status", "printableStatus") == "Stopped"


def _refusal(scope: ClusterScope, vm: Obj) -> str:
    """Return the quota for which Harvester has stopped a VM that was just started, if any."""
    refusal = annotations_of(vm).get(INSUFFICIENT_QUOTA_ANNOTATION, "")
    started_at = scope.memory.started_at.get(key_of(vm).name)
    if started_at is None or run_strategy(vm) != HALTED:
        return ""
    return refusal if time.monotonic() - started_at < _QUOTA_SECONDS else ""


def _not_ours(scope: ClusterScope, machine: Obj) -> Blocked:
    """Return why a cluster is not parked one of whose VMs is not known to be its own."""
    return Blocked(
        ConditionType.PARKED,
        Reason.PARK_BLOCKED,
        f"VirtualMachine {scope.target_namespace}/{key_of(machine).name} is not recorded as this "
        "cluster's, so it is not stopped: it is parked when its HarvesterMachine has adopted it"
        f"{_refused_adoption(scope, machine)}",
        Delay(_RETRY_SECONDS),
        warn=True,
    )


def _not_adopted(scope: ClusterScope, machine: Obj) -> Blocked:
    """Return why a cluster is not resumed that was moved or restored while it was parked."""
    key = scope.cluster_key
    command = remedies.RESUME_CLUSTER(kind="cluster", name=key.name, namespace=key.namespace)
    return Blocked(
        ConditionType.PARKED,
        Reason.PARK_BLOCKED,
        f"VirtualMachine {scope.target_namespace}/{key_of(machine).name} was parked, and is not "
        "recorded as this cluster's, so it is not started: end the pause, so that its "
        f"HarvesterMachine can adopt it, and it is started then: {command}"
        f"{_refused_adoption(scope, machine)}",
        Delay(_RETRY_SECONDS),
        warn=True,
    )


def _refused_adoption(scope: ClusterScope, machine: Obj) -> str:
    """Return why a machine could not adopt its VM in the pause, to be appended; empty if not."""
    refusal = scope.context.memory.machine(machine).adoption_refusal
    return f"; the last attempt failed: {refusal}" if refusal else ""


def _is_stopped(seen: Seen) -> bool:
    return seen.wanted and all(vm.stopped and not vm.runs for vm in seen.vms)


def _needs_workload(seen: Seen) -> bool:
    """Return whether the workload cluster has something to say about the next step."""
    control_plane = [vm for vm in seen.vms if vm.control_plane]
    if not seen.wanted:
        return not any(vm.former for vm in control_plane)
    if all(vm.stopped for vm in control_plane if vm.serves):
        return False
    # To drain workers, to mark Nodes before the first server stops, or to ask for etcd's leader.
    if not seen.last or not any(vm.former for vm in control_plane):
        return True
    return any(not vm.stopped for vm in seen.vms if not vm.control_plane)


async def _read_workload(scope: ClusterScope, around: Surroundings) -> None:
    """Read Nodes, and the Pods of workers that are to be stopped.

    A workload API that does not answer is an answer: it delays parking for a bounded time.
    """
    workloads = scope.context.workloads
    await workloads.ensure(scope.cluster_key)
    client = around.client = workloads.client(scope.cluster_key)

    nodes: tuple[ParkedNode, ...] | None = None
    if client is None:
        around.unread = "its kubeconfig does not exist"
        if not control_plane_initialized(scope.cluster):
            nodes = ()  # there never was an API that could have Nodes
    else:
        try:
            nodes = await _read_nodes(client, around, scope.memory.refused_nodes)
            if around.seen.wanted and nodes and all(node.marked for node in nodes):
                pods = await pods_to_evict(client, _workers(around.seen.vms, nodes))
                if around.seen.tunnelled:
                    # All Nodes are cordoned: an agent that was evicted would start on none, and no
                    # Node could be uncordoned without it. Otherwise it starts again with its Node.
                    pods = [pod for pod in pods if not is_agent_of_rancher(pod)]
                around.pods = pods
        except RequestError as error:
            nodes, around.unread = None, str(error)

    around.seen = replace(
        around.seen,
        nodes=nodes,
        pods=len(around.pods),
        drained=_drain_is_over(scope) if around.seen.wanted else False,
    )


def _drain_is_over(scope: ClusterScope) -> bool:
    """Return whether the time for the drain is over; a restart of the provider begins it again."""
    current_time = time.monotonic()
    if scope.memory.drain_since is None:
        scope.memory.drain_since = current_time
    return current_time - scope.memory.drain_since >= DRAIN_SECONDS


async def _read_nodes(
    client: ApiClient, around: Surroundings, refused: Container[str]
) -> tuple[ParkedNode, ...]:
    """Read the Nodes of the cluster's VMs, whose names they have."""
    async for page in list_pages(client, NODES):
        around.nodes |= {name: node for node in page if (name := key_of(node).name) in around.vms}
    nodes = (_node(node, around) for _, node in sorted(around.nodes.items()))
    return tuple(replace(node, refused=node.name in refused) for node in nodes)


def _node(node: Obj, around: Surroundings) -> ParkedNode:
    name = key_of(node).name
    mark, instance = annotations_of(node).get(PARKED_BOOT_ANNOTATION), around.instances.get(name)
    marked_instance, _, marked_boot = (mark or "").partition("/")
    same_run = mark is not None and marked_instance == instance

    # What etcd kept of the time before is no report: the Node was ready when all was stopped.
    boot = boot_id(node)
    is_old = mark is not None and not same_run and boot == marked_boot and boot != ""
    is_alive = instance is not None and name not in around.ending
    return ParkedNode(
        name,
        marked=same_run or instance is None,
        held=mark is not None,
        ready=is_true(list_at(node, "status", "conditions"), "Ready") and is_alive and not is_old,
    )


def boot_id(node: Obj) -> str:
    """Return the id of the boot in which the kubelet reports; empty if it does not."""
    return text_at(node, "status", "nodeInfo", "bootID")


def _workers(vms: Iterable[ParkedVm], nodes: Iterable[ParkedNode]) -> list[str]:
    """Return the Nodes to drain: those of workers that are not being stopped yet."""
    running = {vm.name for vm in vms if not vm.control_plane and not vm.stopped}
    return [node.name for node in nodes if node.name in running]


async def _read_volumes(scope: ClusterScope, around: Surroundings) -> None:
    """Read which volumes of the VMs are still attached to a host.

    The right is optional: without it, the condition says that volumes were not checked.
    """
    client = scope.require_session().client
    claims = claims_of(*around.vms.values())
    volumes: dict[str, str] = {}
    attached = set()

    try:
        async for page in list_pages(client, PERSISTENT_VOLUME_CLAIMS, scope.target_namespace):
            for claim in page:
                if (name := key_of(claim).name) in claims:
                    volumes[text_at(claim, "spec", "volumeName")] = name

        async for page in list_pages(client, VOLUME_ATTACHMENTS):
            attached |= {
                text_at(attachment, "spec", "source", "persistentVolumeName")
                for attachment in page
                if at(attachment, "status", "attached")
            }
    except (Forbidden, NotFound) as error:
        around.unchecked = f"whether volumes are detached was not checked: {error.message}"
        return

    names = sorted(volumes[volume] for volume in attached & volumes.keys() - {""})
    around.seen = replace(around.seen, attached=tuple(names))
