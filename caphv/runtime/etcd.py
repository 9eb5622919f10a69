"""Members of a workload cluster's etcd, by `etcdctl` in one of its etcd Pods.

A member without a machine still counts for the quorum: after two such losses, a cluster of three members cannot write
any more.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from caphv.api.object import PODS, Obj, being_deleted, labels_of
from caphv.runtime.client import ApiClient
from caphv.runtime.exec import ExecError, pod_exec
from caphv.runtime.listing import list_pages
from caphv.runtime.text import load_json

NAMESPACE = "kube-system"
CONTAINER = "etcd"
LABELS = {"component": "etcd", "tier": "control-plane"}
_RKE2, _KUBEADM = "/var/lib/rancher/rke2/server/tls/etcd", "/etc/kubernetes/pki/etcd"
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
_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Member:
    """A member of etcd; without a name it was added and never started."""

    id: int
    name: str
    peer: str = ""
    learner: bool = False


async def find_pods(client: ApiClient, node: str = "") -> list[Obj]:
    """Read the Pods that can be asked, not those of a node. Raises `ApiError`, `Unreachable`."""
    # kubeadm and RKE2 label them. All Pods of the namespace are many: each node has some.
    selector = ",".join(f"{name}={value}" for name, value in LABELS.items())
    for label_selector in (selector, ""):
        found = [
            pod
            async for page in list_pages(client, PODS, NAMESPACE, label_selector=label_selector)
            for pod in page
            if _is_etcd(pod)
        ]
        if found:
            return pods_to_ask(found, node)
    return []


async def list_members(client: ApiClient, pod: Obj, program: Collection[str] = ETCDCTL) -> list[Member]:
    """Ask one Pod for all members. Raises `ApiError`, `Unreachable`, `ExecError`."""
    return members(await _etcdctl(client, pod, program, "member", "list", "-w", "json"))


async def remove_member(client: ApiClient, pod: Obj, member: Member, program: Collection[str] = ETCDCTL) -> None:
    """Have one Pod remove a member. Raises `ApiError`, `Unreachable`, `ExecError`."""
    await _etcdctl(client, pod, program, "member", "remove", f"{member.id:x}")


def members(output: bytes) -> list[Member]:
    """Members from `etcdctl member list -w json`. Raises ExecError."""
    try:
        return [_member(entry) for entry in load_json(output)["members"]]
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
        if pod["spec"].get("nodeName") not in (None, "", node) and not being_deleted(pod) and _is_etcd(pod)
    ]
    labelled = [pod for pod in there if LABELS.items() <= labels_of(pod).items()]
    named = [pod for pod in there if pod["metadata"]["name"].startswith("etcd-")]
    return sorted(labelled or named, key=lambda pod: (not _is_ready(pod), str(pod["metadata"]["name"])))


def _member(entry: Obj) -> Member:
    peers = entry.get("peerURLs") or [""]
    return Member(entry["ID"], entry.get("name", ""), str(peers[0]), bool(entry.get("isLearner")))


async def _etcdctl(client: ApiClient, pod: Obj, program: Collection[str], *arguments: str) -> bytes:
    name = pod["metadata"]["name"]
    return await pod_exec(client, NAMESPACE, name, CONTAINER, [*program, *arguments], timeout=_TIMEOUT)


def _is_etcd(pod: Obj) -> bool:
    return any(container["name"] == CONTAINER for container in pod["spec"]["containers"])


def _is_ready(pod: Obj) -> bool:
    found = (pod.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in found)
