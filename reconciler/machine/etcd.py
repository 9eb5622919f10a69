"""Removes the etcd member of a control plane machine before its VM is deleted.

A member without a machine still counts for the quorum: after two such losses, a cluster of three members cannot write
any more. The control plane providers of RKE2, kubeadm and Talos remove members themselves. For RKE2, which does it with
the Node, this module checks that none is left, so that metrics and alert are true; for others, and for Machines without
a control plane object, it runs `etcdctl` in an etcd Pod on another node.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from caphv.api import clusterapi
from caphv.api.names import ConditionType
from caphv.api.object import Obj, being_deleted, key_of, owner_reference
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.runtime.etcd import find_pods, list_members, members_of, remove_member
from caphv.runtime.exec import ExecError
from reconciler import metrics
from reconciler.machine.scope import MachineScope
from reconciler.triggers import Delay

_CONTROL_PLANE_GROUP = "controlplane.cluster.x-k8s.io"
_RKE2 = "RKE2ControlPlane"
_PROVIDERS = (_RKE2, "KubeadmControlPlane", "TalosControlPlane")

# Seconds for which the VM is kept while etcd does not answer, and between two attempts.
PATIENCE = 30.0
_RETRY_AFTER = 3.0


async def ensure_member_removed(scope: MachineScope) -> None:
    """Remove the machine's member, unless there is none or it cannot be removed. Raises `Blocked` to retry."""
    if scope.cluster_key is None or scope.memory.member_removed or not _is_due(scope):
        return
    await scope.context.workloads.ensure(scope.cluster_key)
    client = scope.context.workloads.client(scope.cluster_key)
    if client is None:
        return  # without a kubeconfig there never was an API server
    now = time.monotonic()
    if scope.memory.deletion_seen_at is None:
        scope.memory.deletion_seen_at = now
    # Members have the names of Nodes, which are those of HarvesterMachines; Machines have others.
    others = {key_of(machine).name for machine in scope.context.caches.machines_of(scope.cluster or {})} - {scope.name}
    try:
        await _remove(scope, client, others)
    except (ApiError, Unreachable, ExecError) as error:
        metrics.ETCD_REMOVE.inc()
        metrics.ETCD_REMOVE_ERRORS.inc()
        waited = now - scope.memory.deletion_seen_at
        message = f"cannot remove the etcd member of this machine: {error}"
        if waited < PATIENCE and not removed_by_provider(scope.machine):
            raise scope.in_progress(message, Delay(_RETRY_AFTER)) from None
        scope.warning_event("EtcdMemberRemovalFailed", f"{message}; deleting its VM nevertheless, after {waited:.0f} s")
    scope.memory.member_removed = True


def removed_by_provider(machine: Obj | None, kinds: Collection[str] = _PROVIDERS) -> bool:
    """Whether the control plane provider that owns a Machine removes the member itself."""
    return machine is not None and any(
        owner_reference(machine, kind, _CONTROL_PLANE_GROUP) is not None for kind in kinds
    )


def _is_due(scope: MachineScope) -> bool:
    return (
        scope.control_plane
        and scope.draft.is_true(ConditionType.MACHINE_CREATED)
        and scope.cluster is not None
        and not being_deleted(scope.cluster)
        and scope.harvester_cluster is not None
        and not being_deleted(scope.harvester_cluster)
        and not removed_by_provider(scope.machine, set(_PROVIDERS) - {_RKE2})
        and not _is_alone(scope, scope.cluster)
    )


def _is_alone(scope: MachineScope, cluster: Obj) -> bool:
    """Whether this is the only machine of a control plane that never came up: no other member can miss it."""
    if clusterapi.control_plane_initialized(cluster):
        return False
    machines = scope.context.caches.machines_of(cluster)
    return not any(clusterapi.is_control_plane(machine) for machine in machines if key_of(machine).name != scope.name)


async def _remove(scope: MachineScope, client: ApiClient, others: Collection[str]) -> None:
    pods = await find_pods(client, scope.name)
    for pod in pods:
        try:
            found = await list_members(client, pod)
            own = members_of(scope.name, found, others)
            if len(own) == len(found):
                return  # the last member is not removed
            for member in own:
                await remove_member(client, pod, member)
                metrics.ETCD_REMOVE.inc()
                scope.event("EtcdMemberRemoved", f"removed member {member.name} from etcd")
        except (ApiError, Unreachable, ExecError):
            if pod is pods[-1]:
                raise
        else:
            return
