"""Removes the etcd member of a control plane machine before its VM is deleted.

A member without a machine still counts for the quorum: after two such losses, a cluster of three members cannot write
any more. The control plane providers of RKE2, kubeadm and Talos remove members themselves; for others, and for Machines
without a control plane object, this module runs `etcdctl` in an etcd Pod on another node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from caphv.api.names import ConditionType
from caphv.api.object import PODS, Obj, being_deleted, labels_of, owner_reference
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.runtime.exec import ExecError, pod_exec
from caphv.runtime.text import load_json
from reconciler import metrics
from reconciler.machine.scope import MachineScope
from reconciler.wake import Delay

NAMESPACE = "kube-system"
CONTAINER = "etcd"
LABELS = {"component": "etcd", "tier": "control-plane"}
_TLS = "/var/lib/rancher/rke2/server/tls/etcd"
ETCDCTL = (
    "etcdctl",
    "--endpoints=https://127.0.0.1:2379",
    f"--cacert={_TLS}/server-ca.crt",
    f"--cert={_TLS}/server-client.crt",
    f"--key={_TLS}/server-client.key",
)
_CONTROL_PLANE_GROUP = "controlplane.cluster.x-k8s.io"
_PROVIDERS = ("RKE2ControlPlane", "KubeadmControlPlane", "TalosControlPlane")
_HASH = re.compile(r"[0-9a-f]{8}")

# Seconds for which the VM is kept while etcd does not answer, and between two attempts.
PATIENCE = 30.0
_RETRY_AFTER = 3.0
_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Member:
    """A member of etcd."""

    id: int
    name: str


async def ensure_member_removed(scope: MachineScope) -> None:
    """Remove the machine's member, unless there is none or it cannot be removed. Raises `Blocked` to retry."""
    if scope.cluster_key is None or scope.memory.member_removed or not _is_due(scope):
        return
    await scope.context.workloads.ensure(scope.cluster_key)
    client = scope.context.workloads.client(scope.cluster_key)
    if client is None:
        return  # without a kubeconfig there never was an API server
    others = {machine["metadata"]["name"] for machine in scope.context.caches.machines_of(scope.cluster or {})} - {
        scope.name
    }
    try:
        await _remove(scope, client, others)
    except (ApiError, Unreachable, ExecError) as error:
        metrics.ETCD_REMOVE.inc()
        metrics.ETCD_REMOVE_ERRORS.inc()
        waited = metrics.age(scope.obj["metadata"]["deletionTimestamp"])
        message = f"cannot remove the etcd member of this machine: {error}"
        if waited < PATIENCE:
            raise scope.in_progress(message, Delay(_RETRY_AFTER)) from None
        scope.warning_event("EtcdMemberRemovalFailed", f"{message}; deleting its VM nevertheless, after {waited:.0f} s")
    scope.memory.member_removed = True


def removed_by_provider(machine: Obj | None) -> bool:
    """Whether the control plane provider that owns a Machine removes the member itself."""
    return machine is not None and any(
        owner_reference(machine, kind, _CONTROL_PLANE_GROUP) is not None for kind in _PROVIDERS
    )


def members(output: bytes) -> list[Member]:
    """Members from `etcdctl member list -w json`. Raises ExecError."""
    try:
        return [Member(entry["ID"], entry.get("name", "")) for entry in load_json(output)["members"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ExecError("etcdctl member list: unexpected output") from None


def members_of(node: str, found: Iterable[Member], others: Collection[str]) -> list[Member]:
    """Members of a node: with its name (kubeadm), or with its name and a hash of 8 digits (RKE2, K3s).

    Never members of another node with a longer name; `others` are the names of the other machines.
    """
    return [
        member
        for member in found
        if member.name not in others
        and (
            member.name == node
            or (member.name.startswith(f"{node}-") and _HASH.fullmatch(member.name.removeprefix(f"{node}-")))
        )
    ]


def pods_to_ask(pods: Iterable[Obj], node: str) -> list[Obj]:
    """Pods of etcd on other nodes, the ready ones first; by label, else by name (contract)."""
    there = [
        pod
        for pod in pods
        if pod["spec"].get("nodeName") not in (None, "", node)
        and not being_deleted(pod)
        and any(container["name"] == CONTAINER for container in pod["spec"]["containers"])
    ]
    labelled = [pod for pod in there if LABELS.items() <= labels_of(pod).items()]
    named = [pod for pod in there if pod["metadata"]["name"].startswith("etcd-")]
    return sorted(labelled or named, key=lambda pod: (not _is_ready(pod), str(pod["metadata"]["name"])))


def _is_due(scope: MachineScope) -> bool:
    return (
        scope.control_plane
        and scope.draft.is_true(ConditionType.MACHINE_CREATED)
        and scope.cluster is not None
        and not being_deleted(scope.cluster)
        and scope.harvester_cluster is not None
        and not being_deleted(scope.harvester_cluster)
        and not removed_by_provider(scope.machine)
    )


async def _remove(scope: MachineScope, client: ApiClient, others: Collection[str]) -> None:
    # There are few static Pods: one list is cheaper than one by label and another by name.
    pods = pods_to_ask((await client.list(PODS, NAMESPACE))["items"], scope.name)
    for pod in pods:
        try:
            found = members(await _etcdctl(client, pod, "member", "list", "-w", "json"))
            own = members_of(scope.name, found, others)
            if len(own) == len(found):
                return  # the last member is not removed
            for member in own:
                await _etcdctl(client, pod, "member", "remove", f"{member.id:x}")
                metrics.ETCD_REMOVE.inc()
                scope.event("EtcdMemberRemoved", f"removed member {member.name} from etcd")
        except (ApiError, Unreachable, ExecError):
            if pod is pods[-1]:
                raise
        else:
            return


async def _etcdctl(client: ApiClient, pod: Obj, *arguments: str) -> bytes:
    name = pod["metadata"]["name"]
    return await pod_exec(client, NAMESPACE, name, CONTAINER, [*ETCDCTL, *arguments], timeout=_TIMEOUT)


def _is_ready(pod: Obj) -> bool:
    found = (pod.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in found)
