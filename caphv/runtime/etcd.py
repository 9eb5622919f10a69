"""List and remove members of a workload cluster's etcd, and find the one that leads.

`etcdctl` runs in one of the cluster's etcd Pods.

A member without a machine still counts for the quorum. After two such losses, a cluster of three
members can no longer write.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from caphv.api.conditions import is_true
from caphv.api.object import PODS, Obj, being_deleted, labels_of, list_at
from caphv.runtime.client import ApiClient
from caphv.runtime.exec import ExecError, pod_exec
from caphv.runtime.listing import list_pages
from caphv.runtime.text import load_json

NAMESPACE = "kube-system"
CONTAINER = "etcd"
LABELS = {"component": "etcd", "tier": "control-plane"}
_RKE2 = "/var/lib/rancher/rke2/server/tls/etcd"
_KUBEADM = "/etc/kubernetes/pki/etcd"
ETCDCTL = (
    "etcdctl",
    "--endpoints=https://127.0.0.1:2379",
    f"--cacert={_RKE2}/server-ca.crt",
    f"--cert={_RKE2}/server-client.crt",
    f"--key={_RKE2}/server-client.key",
)
ETCDCTL_KUBEADM = (
    *ETCDCTL[:2],
    f"--cacert={_KUBEADM}/ca.crt",
    f"--cert={_KUBEADM}/healthcheck-client.crt",
    f"--key={_KUBEADM}/healthcheck-client.key",
)
_HASH = re.compile(r"[0-9a-f]{8}")
_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Member:
    """A member of etcd. A member without a name was added but has never started."""

    id: int
    name: str
    peer: str = ""
    learner: bool = False


async def find_pods(client: ApiClient, node: str = "") -> list[Obj]:
    """Read the Pods of etcd, except on this node. Raises `ApiError`, `Unreachable`."""
    # kubeadm and RKE2 label their Pods. Without the label, all Pods of the namespace have to be
    # read, and each node has some.
    selector = ",".join(f"{name}={value}" for name, value in LABELS.items())
    for label_selector in (selector, ""):
        pods: list[Obj] = []
        async for page in list_pages(client, PODS, NAMESPACE, label_selector=label_selector):
            pods += filter(_is_etcd, page)
        if pods:
            return pods_to_ask(pods, node)
    return []


def etcdctl_of(pod: Obj) -> tuple[str, ...]:
    """Return `etcdctl` with the options for the certificates that a Pod of etcd has.

    kubeadm mounts their folder (kubernetes: `GetEtcdPodSpec` in
    cmd/kubeadm/app/phases/etcd/local.go). Other Pods are RKE2's.
    """
    mounts = (
        mount
        for container in pod["spec"]["containers"]
        for mount in container.get("volumeMounts") or ()
    )
    is_kubeadm = any(mount.get("mountPath") == _KUBEADM for mount in mounts)
    return ETCDCTL_KUBEADM if is_kubeadm else ETCDCTL


async def list_members(client: ApiClient, pod: Obj) -> list[Member]:
    """Ask one Pod for all members. Raises `ApiError`, `Unreachable`, `ExecError`."""
    return members(await _etcdctl(client, pod, "member", "list", "-w", "json"))


async def remove_member(client: ApiClient, pod: Obj, member: Member) -> None:
    """Have one Pod remove a member. Raises `ApiError`, `Unreachable`, `ExecError`."""
    await _etcdctl(client, pod, "member", "remove", f"{member.id:x}")


async def find_leader(client: ApiClient, pod: Obj) -> Member:
    """Ask one Pod which member leads. Raises `ApiError`, `Unreachable`, `ExecError`."""
    leader = leader_id(await _etcdctl(client, pod, "endpoint", "status", "-w", "json"))
    for member in await list_members(client, pod):
        if member.id == leader:
            return member
    raise ExecError("etcdctl endpoint status: the leader is no member")


def leader_id(output: bytes) -> int:
    """Return the leader in the output of `etcdctl endpoint status -w json`. Raises `ExecError`."""
    try:
        return int(load_json(output)[0]["Status"]["leader"])
    except (ValueError, KeyError, TypeError, IndexError):
        raise ExecError("etcdctl endpoint status: unexpected output") from None


def members(output: bytes) -> list[Member]:
    """Return the members in the output of `etcdctl member list -w json`. Raises `ExecError`."""
    try:
        return [_member(entry) for entry in load_json(output)["members"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ExecError("etcdctl member list: unexpected output") from None


def members_of(node: str, candidates: Iterable[Member], others: Collection[str]) -> list[Member]:
    """Return the members of a node.

    A member has the name of its node (kubeadm), or this name and a hash of 8 digits (RKE2, K3s).
    `others` are the names of the other machines, which tell members of a node with a longer name
    apart.
    """
    prefix = f"{node}-"
    members_of_node = []
    for member in candidates:
        if member.name in others:
            continue
        has_hash = member.name.startswith(prefix) and _HASH.fullmatch(
            member.name.removeprefix(prefix)
        )
        if member.name == node or has_hash:
            members_of_node.append(member)
    return members_of_node


def pods_to_ask(pods: Iterable[Obj], node: str) -> list[Obj]:
    """Return Pods of etcd on other nodes, ready ones first.

    Labels identify the Pods, or else their names (contract).
    """
    usable = [
        pod
        for pod in pods
        if pod["spec"].get("nodeName") not in (None, "", node)
        and not being_deleted(pod)
        and _is_etcd(pod)
    ]
    labelled = [pod for pod in usable if LABELS.items() <= labels_of(pod).items()]
    named = [pod for pod in usable if pod["metadata"]["name"].startswith("etcd-")]
    return sorted(
        labelled or named, key=lambda pod: (not _is_ready(pod), str(pod["metadata"]["name"]))
    )


def _member(entry: Obj) -> Member:
    peers = entry.get("peerURLs") or [""]
    return Member(
        id=entry["ID"],
        name=entry.get("name", ""),
        peer=str(peers[0]),
        learner=bool(entry.get("isLearner")),
    )


async def _etcdctl(client: ApiClient, pod: Obj, *arguments: str) -> bytes:
    name = pod["metadata"]["name"]
    command = [*etcdctl_of(pod), *arguments]
    return await pod_exec(client, NAMESPACE, name, CONTAINER, command, timeout=_TIMEOUT_SECONDS)


def _is_etcd(pod: Obj) -> bool:
    return any(container["name"] == CONTAINER for container in pod["spec"]["containers"])


def _is_ready(pod: Obj) -> bool:
    return is_true(list_at(pod, "status", "conditions"), "Ready")
