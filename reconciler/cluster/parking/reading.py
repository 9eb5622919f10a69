"""Read what the next step of parking depends on: VMs, Nodes, Pods, volumes.

The workload cluster and volumes are read only if the step needs them, because that costs requests.
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
from reconciler.blocked import Blocked
from reconciler.cluster.parking.drain import DRAIN_SECONDS, is_agent_of_rancher, pods_to_evict
from reconciler.cluster.parking.plan import HALTED, ClusterState, ParkedNode, ParkedVm
from reconciler.cluster.scope import ClusterScope
from reconciler.machine.vmstatus import VmPhase, vm_state
from reconciler.triggers import Delay

_RETRY_SECONDS = 10.0
# Between two starts of a VM that Harvester refuses. No event reports that a quota has room.
_REFUSED_SECONDS = 120.0
# With these run strategies, a VM that was stopped does not start by itself.
_IDLE_STRATEGIES = ("Manual", "Once", "RerunOnFailure")
# States of a VM that do not end by themselves.
_OBSTACLES = (VmPhase.UNSCHEDULABLE, VmPhase.FAILED, VmPhase.PAUSED, VmPhase.UNKNOWN)


@dataclass(slots=True)
class Observation:
    """The state from which a step is decided, and the objects that it writes to.

    Dictionaries have names of machines as keys. VMs, instances and Nodes have the same names.

    :param state: what the step is decided from
    :param instances: uids of the instances
    :param ending: VMs whose instance is being deleted, so that its guest no longer counts
    :param pods: Pods to evict
    :param client: the client of the workload cluster
    :param workload_error: why the workload API could not be read
    :param volumes_error: why the volumes could not be read
    """

    state: ClusterState
    vms: dict[str, Obj] = field(default_factory=dict)
    nodes: dict[str, Obj] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    ending: set[str] = field(default_factory=set)
    pods: list[Obj] = field(default_factory=list)
    client: ApiClient | None = None
    workload_error: str = ""
    volumes_error: str = ""


async def observe(scope: ClusterScope) -> Observation:
    """Read what the next step depends on. Raises `Blocked`, `ApiError`, `Unreachable`."""
    observed = read_record(scope)
    if observed.state.is_deleted:
        return observed
    if not observed.state.has_begun:
        _check_vms(scope, observed)
        return observed

    _read_vms(scope, observed)
    if _needs_workload(observed.state):
        await _read_workload(scope, observed)
    elif _is_stopped(observed.state) and not scope.draft.is_true(ConditionType.PARKED):
        await _read_volumes(scope, observed)
    return observed


def read_record(scope: ClusterScope) -> Observation:
    """Return the part of the observation that comes from the Cluster alone."""
    is_wanted = parking.is_wanted(scope.cluster)
    if not is_wanted:
        scope.memory.parking.drain_since = None  # the next drain gets all its time
    return Observation(
        ClusterState(
            is_wanted=is_wanted,
            has_begun=parking.has_begun(scope.cluster),
            is_paused=bool(at(scope.cluster, "spec", "paused")),
            is_deleted=being_deleted(scope.cluster),
            last_to_stop=annotations_of(scope.cluster).get(STOPS_LAST_ANNOTATION, ""),
            is_tunnelled=is_of_rancher(scope.cluster),
        )
    )


def _check_vms(scope: ClusterScope, observed: Observation) -> None:
    """Raise `Blocked` if a VM could not be stopped, before the cluster is paused for it."""
    if not observed.state.is_wanted:
        return
    try:
        _read_vms(scope, observed)
    except Blocked as blocked:
        # Pause even if Harvester is unreachable. Otherwise, machines would be replaced meanwhile.
        if blocked.reason == Reason.PARK_BLOCKED:
            raise


def _read_vms(scope: ClusterScope, observed: Observation) -> None:
    """Read the VMs of all machines from caches that follow Harvester.

    Raises `Blocked` for a VM that is to be stopped or started, but is not recorded as the
    machine's.
    """
    namespace = scope.require_current_namespace()
    vms = []
    for machine in scope.context.caches.machines_of(scope.cluster):
        name = key_of(machine).name
        vm = namespace.vms.get(scope.target_namespace, name)
        if vm is None or being_deleted(vm):
            continue
        owner = scope.context.owner(HARVESTER_MACHINES.kind, machine)
        if ownership_of(vm, owner) is not Ownership.OURS:
            if observed.state.is_wanted:
                raise _not_ours(scope, machine)
            if PARKED_STRATEGY_ANNOTATION in annotations_of(vm):
                raise _not_adopted(scope, machine)
            continue

        instance = namespace.instances.get(scope.target_namespace, name)
        if instance is not None:
            observed.instances[name] = uid_of(instance)
            if being_deleted(instance):
                observed.ending.add(name)
        observed.vms[name] = vm
        is_idle = _is_idle(vm, instance)
        vms.append(
            ParkedVm(
                name=name,
                is_control_plane=is_server(machine, scope.cluster),
                strategy=run_strategy(vm),
                saved_strategy=saved_strategy(vm, is_resuming=not observed.state.is_wanted),
                serves_api=is_control_plane(machine, scope.cluster),
                has_instance=instance is not None and not is_idle,
                is_idle=is_idle,
                is_ending=name in observed.ending,
                refusal=_refusal(scope, vm),
                obstacle=_obstacle(scope, vm, instance),
            )
        )
    observed.state = replace(observed.state, vms=tuple(vms))


def _obstacle(scope: ClusterScope, vm: Obj, instance: Obj | None) -> str:
    """Return why the instance of a VM does not run; empty if it runs or is still starting."""
    if instance is None:
        return ""
    state = vm_state(vm, instance, hosts=scope.require_session().hosts.store)
    return state.message if state.phase in _OBSTACLES else ""


def saved_strategy(vm: Obj, *, is_resuming: bool) -> str:
    """Return the run strategy that a VM had before it was stopped; empty if it was not.

    :param is_resuming: include a VM that an evacuation has stopped and not yet started. Only the
        resume can start it, because evacuations do nothing until the cluster is resumed.
    """
    annotations = annotations_of(vm)
    saved = annotations.get(PARKED_STRATEGY_ANNOTATION, "")
    if saved or not is_resuming or run_strategy(vm) != HALTED:
        return saved
    if EVACUATION_STARTED_ANNOTATION in annotations:
        return ""  # a user has halted it since
    return annotations.get(EVACUATED_STRATEGY_ANNOTATION, "")


def run_strategy(vm: Obj) -> str:
    """Return the run strategy of a VM, which the deprecated field `running` may express."""
    strategy = at(vm, "spec", "runStrategy")
    return str(strategy or ("Always" if at(vm, "spec", "running") else HALTED))


def _is_idle(vm: Obj, instance: Obj | None) -> bool:
    """Return whether a user or the guest has stopped a VM, and its run strategy leaves it so."""
    if PARKED_STRATEGY_ANNOTATION in annotations_of(vm):
        return False
    if run_strategy(vm) not in _IDLE_STRATEGIES:
        return False
    has_ended = instance is None or at(instance, "status", "phase") in ENDED_PHASES
    # With another status, KubeVirt is about to start it.
    return has_ended and at(vm, "status", "printableStatus") == "Stopped"


def _refusal(scope: ClusterScope, vm: Obj) -> str:
    """Return why Harvester has refused the last start of a VM, or stopped it for lack of quota.

    Empty if it has not, or once the VM is to be started again.
    """
    name = key_of(vm).name
    started_at = scope.memory.parking.started_at.get(name)
    if started_at is None or run_strategy(vm) != HALTED:
        return ""
    if time.monotonic() - started_at >= _REFUSED_SECONDS:
        return ""
    if refusal := scope.memory.parking.refused_starts.get(name):
        return refusal
    quota = annotations_of(vm).get(INSUFFICIENT_QUOTA_ANNOTATION, "")
    advice = "raise the quota of the namespace, or stop other VMs there"
    return f"quota is missing: {quota}; {advice}" if quota else ""


def _not_ours(scope: ClusterScope, machine: Obj) -> Blocked:
    """Return the error for parking a cluster with a VM that is not recorded as its own."""
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
    """Return the error for resuming a cluster that was moved or restored while it was parked."""
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
    """Return the end of a message: why a machine could not adopt its VM; empty without a reason."""
    refusal = scope.context.memory.machine(machine).adoption_refusal
    return f"; the last attempt failed: {refusal}" if refusal else ""


def _is_stopped(state: ClusterState) -> bool:
    """Return whether all VMs of a cluster that is to be parked have ended."""
    return state.is_wanted and all(vm.is_stopped and not vm.has_instance for vm in state.vms)


def _needs_workload(state: ClusterState) -> bool:
    """Return whether the next step depends on the workload cluster."""
    control_plane = [vm for vm in state.vms if vm.is_control_plane]
    if not state.is_wanted:
        # One whose start is refused keeps no other machine.
        return not any(vm.saved_strategy and not vm.refusal for vm in control_plane)
    if all(vm.is_stopped for vm in control_plane if vm.serves_api):
        return False
    # The leader of etcd is asked for, and Nodes are marked, before the first server stops.
    if not state.last_to_stop or not any(vm.saved_strategy for vm in control_plane):
        return True
    # Workers are drained until all of them have stopped.
    return any(not vm.is_stopped for vm in state.vms if not vm.is_control_plane)


async def _read_workload(scope: ClusterScope, observed: Observation) -> None:
    """Read Nodes, and the Pods of workers that are to be stopped.

    A workload API that does not answer is part of the observation. It delays parking for at most
    `DRAIN_SECONDS`.
    """
    workloads = scope.context.workloads
    await workloads.ensure(scope.cluster_key)
    client = workloads.client(scope.cluster_key)
    observed.client = client

    nodes: tuple[ParkedNode, ...] | None = None
    if client is None:
        observed.workload_error = "its kubeconfig does not exist"
        if not control_plane_initialized(scope.cluster):
            nodes = ()  # there never was an API that could have Nodes
    else:
        try:
            nodes = await _read_nodes(client, observed, scope.memory.parking.refused_nodes)
            if observed.state.is_wanted and nodes and all(node.is_marked for node in nodes):
                pods = await pods_to_evict(client, _nodes_to_drain(observed.state.vms, nodes))
                if observed.state.is_tunnelled:
                    # All Nodes are cordoned, so an evicted agent would start on none of them, and
                    # without an agent no Node can be uncordoned. Left alone, it restarts with its
                    # Node.
                    pods = [pod for pod in pods if not is_agent_of_rancher(pod)]
                observed.pods = pods
        except RequestError as error:
            nodes = None
            observed.workload_error = str(error)

    observed.state = replace(
        observed.state,
        nodes=nodes,
        pods=len(observed.pods),
        is_drain_over=observed.state.is_wanted and _drained_seconds(scope) >= DRAIN_SECONDS,
    )


def _drained_seconds(scope: ClusterScope) -> float:
    """Return for how long the workers are drained. The first call begins that time.

    A restart of the provider begins it again.
    """
    current_time = time.monotonic()
    if scope.memory.parking.drain_since is None:
        scope.memory.parking.drain_since = current_time
    return current_time - scope.memory.parking.drain_since


async def _read_nodes(
    client: ApiClient, observed: Observation, refused: Container[str]
) -> tuple[ParkedNode, ...]:
    """Read the Nodes of the cluster's VMs, which have the same names.

    :param refused: names of Nodes whose last change was refused
    """
    async for page in list_pages(client, NODES):
        observed.nodes |= {
            name: node for node in page if (name := key_of(node).name) in observed.vms
        }
    return tuple(
        _parked_node(node, observed, was_refused=name in refused)
        for name, node in sorted(observed.nodes.items())
    )


def _parked_node(node: Obj, observed: Observation, *, was_refused: bool) -> ParkedNode:
    """Return what a Node reports.

    The mark on the Node has the instance of its VM and the boot of its guest when the Node was
    cordoned, as `<uid>/<boot id>`.

    :param was_refused: whether the last change of the Node was refused
    """
    name = key_of(node).name
    instance = observed.instances.get(name)
    mark = annotations_of(node).get(PARKED_BOOT_ANNOTATION)
    marked_instance, _, marked_boot = (mark or "").partition("/")
    is_mark_of_this_run = mark is not None and marked_instance == instance

    # Nodes were ready when their VMs were stopped, and etcd has kept that status. It is out of date
    # while the Node still reports the boot of that time.
    boot = boot_id(node)
    has_rebooted = boot == "" or boot != marked_boot
    is_outdated = mark is not None and not is_mark_of_this_run and not has_rebooted
    is_alive = instance is not None and name not in observed.ending
    is_ready = is_true(list_at(node, "status", "conditions"), "Ready")
    return ParkedNode(
        name=name,
        is_marked=is_mark_of_this_run or instance is None,
        has_record=mark is not None,
        is_ready=is_ready and is_alive and not is_outdated,
        was_refused=was_refused,
    )


def boot_id(node: Obj) -> str:
    """Return the id of the boot that the kubelet reports; empty if it reports none."""
    return text_at(node, "status", "nodeInfo", "bootID")


def _nodes_to_drain(vms: Iterable[ParkedVm], nodes: Iterable[ParkedNode]) -> list[str]:
    """Return the names of the Nodes of workers that are not being stopped yet."""
    running = {vm.name for vm in vms if not vm.is_control_plane and not vm.is_stopped}
    return [node.name for node in nodes if node.name in running]


async def _read_volumes(scope: ClusterScope, observed: Observation) -> None:
    """Read which volumes of the VMs are still attached to a host.

    The right to list attachments is optional. Without it, condition `Parked` reports that volumes
    were not checked.
    """
    client = scope.require_session().client
    claims = claims_of(*observed.vms.values())
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
        observed.volumes_error = f"whether volumes are detached was not checked: {error.message}"
        return

    names = sorted(volumes[volume] for volume in attached & volumes.keys() - {""})
    observed.state = replace(observed.state, attached_volumes=tuple(names))
