"""Remove the etcd member of a control plane machine before its VM is deleted.

A member without a machine still counts for the quorum. After two such losses, a cluster of three
members can no longer write. Who removes it depends on the owner of the Machine and on what runs
etcd:

- The providers of kubeadm and Talos remove members themselves, and nothing is done here.
- So does the provider of K3s, which has K3s do it. Besides, K3s removes a member with its Node,
  which Cluster API deletes after the VM. No Pod could remove it, because K3s runs
  etcd in its own process (k3s: pkg/etcd/member_controller.go).
- RKE2's provider and Rancher have RKE2 remove the member. This module only verifies that none is
  left, for correct metrics and alerts. Rancher holds the Machine by a hook until then. While the
  hook is there, the member is Rancher's: nothing here removes it, and the VM stays.
- For Machines of other providers, or of none, this module removes the member with `etcdctl` in a
  Pod of etcd on another Node, of RKE2 or kubeadm. A member that no Pod can remove is reported.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TypeGuard

from caphv.api import clusterapi, names
from caphv.api.names import ConditionType
from caphv.api.object import (
    NODES,
    Obj,
    annotations_of,
    being_deleted,
    key_of,
    owner_reference,
    text_at,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.runtime.etcd import find_pods, list_members, members_of, remove_member
from caphv.runtime.exec import ExecError
from reconciler import metrics
from reconciler.machine.scope import MachineScope
from reconciler.triggers import Delay, Watched

_CONTROL_PLANE_GROUP = "controlplane.cluster.x-k8s.io"
_RKE2 = "RKE2ControlPlane"
_PROVIDERS = (_RKE2, "KubeadmControlPlane", "KThreesControlPlane", "TalosControlPlane")
# The version that a kubelet of K3s reports.
_K3S_VERSION = "+k3s"

# The VM is kept for so many seconds while etcd does not answer.
PATIENCE_SECONDS = 30.0
# Seconds between two attempts.
_RETRY_SECONDS = 3.0


async def remove_etcd_member(scope: MachineScope) -> None:
    """Remove the machine's etcd member, unless there is none.

    Raises `Blocked` to retry for `PATIENCE_SECONDS`. After that the deletion continues although the
    member remains, with an Event.
    """
    if scope.cluster_key is None or scope.memory.deletion.member_removed or not _is_due(scope):
        return
    if _is_held_by_rancher(scope.machine):
        raise scope.in_progress(
            f"waiting for Rancher to remove the etcd member: Machine {key_of(scope.machine).name} "
            f"has its hook {names.RANCHER_HOOK.rpartition('/')[2]}; delete the Machine, not the "
            "HarvesterMachine",
            Watched.MACHINE,
        )
    await scope.context.workloads.ensure(scope.cluster_key)
    client = scope.context.workloads.client(scope.cluster_key)
    if client is None:
        return  # without a kubeconfig, there has never been an API server, and thus no member

    current_time = time.monotonic()
    if scope.memory.deletion.seen_at is None:
        scope.memory.deletion.seen_at = current_time
    try:
        await _remove_member(scope, client)
    except (ApiError, Unreachable, ExecError) as error:
        metrics.ETCD_REMOVE.inc()
        metrics.ETCD_REMOVE_ERRORS.inc()
        waited = current_time - scope.memory.deletion.seen_at
        message = f"cannot remove the etcd member of this machine: {error}"
        if waited < PATIENCE_SECONDS and not removed_by_provider(scope.machine, scope.cluster):
            raise scope.in_progress(message, Delay(_RETRY_SECONDS)) from None
        scope.warning_event(
            "EtcdMemberRemovalFailed",
            f"{message}; deleting its VM nevertheless, after {waited:.0f} s",
        )
    scope.memory.deletion.member_removed = True


def removed_by_provider(machine: Obj | None, cluster: Obj | None) -> bool:
    """Return whether the provider of a control plane Machine removes the member itself."""
    if machine is None:
        return False
    return clusterapi.has_rancher_etcd(machine, cluster) or _is_owned_by(machine, _PROVIDERS)


def _is_owned_by(machine: Obj, kinds: Collection[str]) -> bool:
    return any(owner_reference(machine, kind, _CONTROL_PLANE_GROUP) is not None for kind in kinds)


def _is_held_by_rancher(machine: Obj | None) -> TypeGuard[Obj]:
    """Return whether Rancher has yet to remove the etcd member of a Machine."""
    return machine is not None and names.RANCHER_HOOK in annotations_of(machine)


def _is_due(scope: MachineScope) -> bool:
    """Return whether the machine may have a member that its cluster would miss."""
    cluster = scope.cluster
    harvester_cluster = scope.harvester_cluster
    if not _has_etcd(scope):
        return False
    # After a move the status is empty, until the machine has adopted its VM.
    if not scope.draft.is_true(ConditionType.MACHINE_CREATED) and not scope.spec.get("providerID"):
        return False
    # Members do not matter while the whole cluster is deleted.
    if cluster is None or being_deleted(cluster):
        return False
    if harvester_cluster is None or being_deleted(harvester_cluster):
        return False
    if scope.machine is not None and _is_owned_by(scope.machine, set(_PROVIDERS) - {_RKE2}):
        return False
    return not _is_alone(scope, cluster)


def _has_etcd(scope: MachineScope) -> bool:
    objs = list(filter(None, (scope.obj, scope.machine)))
    if any(clusterapi.has_rancher_roles(obj, scope.cluster) for obj in objs):
        return any(clusterapi.has_rancher_etcd(obj, scope.cluster) for obj in objs)
    return scope.control_plane


def _is_alone(scope: MachineScope, cluster: Obj) -> bool:
    """Return whether this is the only machine of a control plane that never came up.

    Then no other member depends on it.
    """
    if clusterapi.control_plane_initialized(cluster):
        return False
    machines = scope.context.caches.machines_of(cluster)
    return not any(
        clusterapi.has_etcd(machine, cluster)
        for machine in machines
        if key_of(machine).name != scope.name
    )


async def _remove_member(scope: MachineScope, client: ApiClient) -> None:
    """Remove the member through the first etcd Pod on another node that answers.

    Raises the error of the last Pod if no Pod answers, and `ExecError` if there is no Pod although
    a member may have to be removed.
    """
    pods = await find_pods(client, scope.name)
    if not pods and await _may_leave_member(scope, client):
        raise ExecError("no Pod of etcd runs on another Node, to run etcdctl there")

    for pod in pods:
        try:
            await _remove_member_in(scope, client, pod)
            return
        except (ApiError, Unreachable, ExecError):
            if pod is pods[-1]:
                raise


async def _remove_member_in(scope: MachineScope, client: ApiClient, pod: Obj) -> None:
    """Remove the member with `etcdctl` in this Pod, unless it is the last one."""
    # Members have the names of Nodes and HarvesterMachines, but not of Machines.
    machines = scope.context.caches.machines_of(scope.cluster or {})
    others = {key_of(machine).name for machine in machines} - {scope.name}
    members = await list_members(client, pod)
    machine_members = members_of(scope.name, members, others)
    if len(machine_members) == len(members):
        return

    for member in machine_members:
        await remove_member(client, pod, member)
        metrics.ETCD_REMOVE.inc()
        scope.event("EtcdMemberRemoved", f"removed member {member.name} from etcd")


async def _may_leave_member(scope: MachineScope, client: ApiClient) -> bool:
    """Return whether a machine leaves a member, if etcd runs in no Pod on another Node.

    Raises `ApiError`, `Unreachable`.
    """
    if removed_by_provider(scope.machine, scope.cluster) or scope.cluster_key is None:
        return False
    workloads = scope.context.workloads
    others = [
        key_of(machine).name
        for machine in scope.context.caches.machines_of(scope.cluster or {})
        if clusterapi.has_etcd(machine, scope.cluster)
        and key_of(machine).name != scope.name
        and workloads.node(scope.cluster_key, key_of(machine).name)
    ]
    if not others:
        return False  # without another Node, this is the last member

    node = await client.get(NODES, others[0])
    return _K3S_VERSION not in text_at(node, "status", "nodeInfo", "kubeletVersion")
