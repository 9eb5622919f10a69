"""Read what the next step of an evacuation depends on in the workload cluster.

The Node of the machine that moves, its Pods, and Nodes of the control plane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from caphv.api.clusterapi import control_plane_initialized
from caphv.api.conditions import get_condition, seconds_since
from caphv.api.names import EVACUATED_BOOT_ANNOTATION
from caphv.api.object import NODES, Obj, annotations_of, key_of, list_at
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, RequestError
from caphv.runtime.etcd import find_pods
from reconciler.cluster.evacuation.plan import EvacuatedNode, EvacuatedVm
from reconciler.cluster.parking.drain import pods_to_evict
from reconciler.cluster.parking.reading import boot_id
from reconciler.cluster.scope import ClusterScope


@dataclass(slots=True)
class Workload:
    """What was read from a workload cluster. An API that does not answer is part of it, no error.

    :param client: the client of the workload cluster; None before its kubeconfig exists
    :param nodes: Nodes by name, which is the name of their machine
    :param node_states: what these Nodes report; None while the workload API does not answer
    :param pods: Pods to evict
    :param error: why it was not read
    """

    client: ApiClient | None = None
    nodes: dict[str, Obj] = field(default_factory=dict)
    node_states: tuple[EvacuatedNode, ...] | None = None
    pods: list[Obj] = field(default_factory=list)
    error: str = ""


async def read_workload(
    scope: ClusterScope, mover: EvacuatedVm, vms: Iterable[EvacuatedVm], starts: Mapping[str, str]
) -> Workload:
    """Read the Node of the machine that moves, its Pods, and Nodes of the control plane.

    :param vms: the VMs of all machines
    :param starts: when the instances of the VMs were created, by name
    """
    workloads = scope.context.workloads
    await workloads.ensure(scope.cluster_key)
    workload = Workload(workloads.client(scope.cluster_key))
    if workload.client is None:
        # Before the control plane is initialized, there is no Node to read.
        workload.node_states = None if control_plane_initialized(scope.cluster) else ()
        workload.error = "its kubeconfig does not exist"
        return workload

    # etcd needs the other servers while one of them moves.
    names = {mover.name}
    if mover.is_control_plane:
        names |= {vm.name for vm in vms if vm.is_control_plane}
    client = workload.client
    try:
        without_etcd = await _nodes_without_etcd(client, starts) if mover.is_control_plane else ()
        for name in sorted(names):
            with suppress(NotFound):  # it never joined, or was deleted
                workload.nodes[name] = await client.get(NODES, name)
        if mover.name in workload.nodes and not mover.saved_strategy:
            workload.pods = await pods_to_evict(client, [mover.name])
    except RequestError as error:
        workload.error = str(error)
        return workload

    workload.node_states = tuple(
        _evacuated_node(node, has_etcd=name not in without_etcd, start=starts.get(name, ""))
        for name, node in workload.nodes.items()
    )
    return workload


async def _nodes_without_etcd(client: ApiClient, starts: Mapping[str, str]) -> set[str]:
    """Return the Nodes whose Pod of etcd is not ready, or was last reported before their start.

    Raises `ApiError`, `Unreachable`.

    :param starts: when the instances of the Nodes were created
    """
    unready = set()
    for pod in await find_pods(client):
        name = str(pod["spec"]["nodeName"])
        condition = get_condition(list_at(pod, "status", "conditions"), "Ready") or {}
        since = str(condition.get("lastTransitionTime") or "")
        start = starts.get(name, "")
        is_old = bool(since and start) and not _is_after(since, start)
        if condition.get("status") == "False" or is_old:
            unready.add(name)
    return unready


def _is_after(timestamp: str, start: str) -> bool:
    return bool(timestamp) and seconds_since(timestamp) <= seconds_since(start)


def _evacuated_node(node: Obj, *, has_etcd: bool, start: str) -> EvacuatedNode:
    """Return what a Node reports.

    :param has_etcd: its member of etcd is ready, or it has none
    :param start: when the instance of its VM was created
    """
    recorded_boot = annotations_of(node).get(EVACUATED_BOOT_ANNOTATION)
    condition = get_condition(list_at(node, "status", "conditions"), "Ready") or {}
    # The API calls a Node ready for some 40 s after its kubelet has stopped reporting.
    is_current = _is_after(str(condition.get("lastHeartbeatTime") or ""), start)
    return EvacuatedNode(
        name=key_of(node).name,
        is_ready=condition.get("status") == "True" and is_current and has_etcd,
        has_record=recorded_boot is not None,
        # No boot had been reported when an empty record was written, so any report counts.
        has_rebooted=recorded_boot in (None, "") or boot_id(node) != recorded_boot,
    )
