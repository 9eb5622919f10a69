"""Node objects of guests: registered in the workload cluster, and marked Unknown after a guest stops.

Marking replaces kube-controller-manager's node lifecycle controller, which waits for missed heartbeats. Simulated
guests send none, so the wait starts when a guest stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field

from caphv.api.object import NODES, PODS, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, ApiError, NotFound, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.guest import kubelet
from sandbox.harvester import kinds

log = logging.getLogger(__name__)

UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 4.0
MARK_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a kubelet reports when it registers its Node."""

    name: str
    addresses: tuple[str, ...]
    version: str
    system_uuid: str
    ready: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Obj, ...] = ()
    # Its static Pods, which kubelet makes visible on the API server.
    pods: tuple[Obj, ...] = ()


class ClientPool:
    """Clients of workload API servers, shared by all guests that use the same server and credentials."""

    def __init__(self) -> None:
        self._clients: dict[Kubeconfig, ApiClient] = {}
        self._users: dict[Kubeconfig, int] = {}

    @contextlib.asynccontextmanager
    async def client(self, access: Kubeconfig) -> AsyncIterator[ApiClient]:
        """Lend a client, closed after its last use. Raises KubeconfigError for an invalid CA."""
        if access not in self._clients:
            self._clients[access] = access.client(name="workload", user_agent="caphv-sandbox", timeout=5.0)
        self._users[access] = self._users.get(access, 0) + 1
        try:
            yield self._clients[access]
        finally:
            self._users[access] -= 1
            if not self._users[access]:
                del self._users[access]
                await self._clients.pop(access).close()


async def register(client: ApiClient, node: NodeInfo) -> None:
    """Create the Node or update its status; retries until the API server accepts it."""
    pause = FIRST_PAUSE
    while True:
        try:
            await _register(client, node)
        except (ApiError, Unreachable) as error:
            log.info("node %s cannot register at %s: %s", node.name, client.server, type(error).__name__)
        else:
            return
        await asyncio.sleep(pause * random.uniform(0.75, 1.25))
        pause = min(pause * 2, LONGEST_PAUSE)


async def mark_lost(client: ApiClient, name: str) -> None:
    """Set the conditions of an existing Node to Unknown; gives up if the API server stays unavailable."""
    lost = {"status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": kinds.now()}
    lost["message"] = "Kubelet stopped posting node status."
    patch = {"status": {"conditions": [{"type": kind, **lost} for kind in ("Ready", *PRESSURES)]}}
    for attempt in range(MARK_ATTEMPTS):
        try:
            await client.patch(NODES, name, "", patch, patch_type="strategic", subresource="status")
        except NotFound:
            return
        except (ApiError, Unreachable):
            await asyncio.sleep(min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))
        else:
            return


async def delete_pods(client: ApiClient, pods: Iterable[Obj]) -> None:
    """Delete the static Pods of a lost control plane node, like the Pod garbage collector."""
    for pod in pods:
        with contextlib.suppress(ApiError, Unreachable):
            await client.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])


async def _register(client: ApiClient, node: NodeInfo) -> None:
    obj = _node(node)
    try:
        await client.create(NODES, obj)
    except AlreadyExists:
        patch = {"status": obj["status"]}
        await client.patch(NODES, node.name, "", patch, patch_type="strategic", subresource="status")
    for pod in node.pods:
        with contextlib.suppress(AlreadyExists):
            await client.create(PODS, pod)
        if "status" in pod:
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            await client.patch(PODS, name, namespace, {"status": pod["status"]}, subresource="status")


def _node(node: NodeInfo) -> Obj:
    usual = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    ready = {
        "type": "Ready",
        "status": str(node.ready),
        "reason": "KubeletReady" if node.ready else "KubeletNotReady",
        "message": "" if node.ready else "container runtime network not ready: cni plugin not initialized",
        "lastTransitionTime": kinds.now(),
    }
    # Without them the core does not consider the Machine available.
    calm = [
        {"type": kind, "status": "False", "reason": "Sufficient", "lastTransitionTime": kinds.now()}
        for kind in PRESSURES
    ]
    addresses = [{"type": "InternalIP", "address": address} for address in node.addresses]
    info = {"kubeletVersion": node.version, "systemUUID": node.system_uuid, "machineID": node.system_uuid}
    fixed = {"operatingSystem": "linux", "architecture": "amd64", "containerRuntimeVersion": "containerd://2.0"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": {**usual, **node.labels}},
        "spec": {"taints": [{"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}, *node.taints]},
        "status": {
            "addresses": [*addresses, {"type": "Hostname", "address": node.name}],
            "conditions": [ready, *calm],
            "nodeInfo": {**info, **fixed},
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.PORT}},
        },
    }
