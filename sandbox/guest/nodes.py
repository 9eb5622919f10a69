"""Nodes of guests in workload clusters, which become Unknown after a guest has stopped.

This replaces kube-controller-manager's node lifecycle controller, which waits for missed
heartbeats. Simulated guests send no heartbeats, so the wait starts when a guest stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field

from caphv.api.conditions import current_time
from caphv.api.object import NODES, PODS, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, ApiError, NotFound, RequestError, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.guest import kubelet

log = logging.getLogger(__name__)

UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 4.0
MARK_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The report of a kubelet that registers its Node."""

    name: str
    addresses: tuple[str, ...]
    version: str
    system_uuid: str
    boot_id: str
    ready: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Obj, ...] = ()
    # The static Pods of the Node, which the kubelet makes visible on the API server.
    pods: tuple[Obj, ...] = ()


class ClientPool:
    """Clients of workload API servers, shared by guests with the same server and credentials."""

    def __init__(self) -> None:
        self._clients: dict[Kubeconfig, ApiClient] = {}
        self._users: dict[Kubeconfig, int] = {}

    @contextlib.asynccontextmanager
    async def client(self, kubeconfig: Kubeconfig) -> AsyncIterator[ApiClient]:
        """Lend a client, and close it after its last use.

        Raises `KubeconfigError` for an invalid CA.
        """
        if kubeconfig not in self._clients:
            self._clients[kubeconfig] = kubeconfig.client(
                name="workload", user_agent="caphv-sandbox", timeout=5.0
            )

        self._users[kubeconfig] = self._users.get(kubeconfig, 0) + 1
        try:
            yield self._clients[kubeconfig]
        finally:
            self._users[kubeconfig] -= 1
            if not self._users[kubeconfig]:
                # Remove the client before the first await, because another guest must not borrow a
                # closed client.
                del self._users[kubeconfig]
                await self._clients.pop(kubeconfig).close()


async def register(client: ApiClient, node: NodeInfo) -> None:
    """Create the Node or update its status. Retries until the API server accepts it."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            await _register(client, node)
        except RequestError as error:
            log.info(
                "node %s cannot register at %s: %s", node.name, client.server, type(error).__name__
            )
        else:
            return

        # Spread the retries of guests that lost the same API server.
        await asyncio.sleep(pause * random.uniform(0.75, 1.25))
        pause = min(pause * 2, MAX_PAUSE_SECONDS)


async def mark_lost(client: ApiClient, name: str) -> None:
    """Set the conditions of an existing Node to Unknown.

    Gives up if the API server stays unavailable, because a cluster without guests has no API
    server.
    """
    unknown = {
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": current_time(),
    }
    conditions = [{"type": kind, **unknown} for kind in ("Ready", *PRESSURES)]
    patch = {"status": {"conditions": conditions}}

    for attempt in range(MARK_ATTEMPTS):
        try:
            await client.patch(NODES, name, "", patch, patch_type="strategic", subresource="status")
        except NotFound:
            return
        except RequestError:
            await asyncio.sleep(min(FIRST_PAUSE_SECONDS * 2**attempt, MAX_PAUSE_SECONDS))
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
        await client.patch(
            NODES, node.name, "", patch, patch_type="strategic", subresource="status"
        )

    for pod in node.pods:
        with contextlib.suppress(AlreadyExists):
            await client.create(PODS, pod)
        # Write the status separately, because API servers ignore it when a Pod is created.
        if "status" in pod:
            name = pod["metadata"]["name"]
            namespace = pod["metadata"]["namespace"]
            await client.patch(
                PODS, name, namespace, {"status": pod["status"]}, subresource="status"
            )


def _node(node: NodeInfo) -> Obj:
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        **node.labels,
    }
    # Like a cloud controller manager, the infrastructure provider removes the first taint.
    taints = [
        {"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"},
        *node.taints,
    ]

    ready = {
        "type": "Ready",
        "status": str(node.ready),
        "reason": "KubeletReady" if node.ready else "KubeletNotReady",
        "message": (
            "" if node.ready else "container runtime network not ready: cni plugin not initialized"
        ),
        "lastHeartbeatTime": current_time(),
        "lastTransitionTime": current_time(),
    }
    # Without these conditions, the core does not consider the Machine available.
    pressures = [
        {
            "type": kind,
            "status": "False",
            "reason": "Sufficient",
            "lastTransitionTime": current_time(),
        }
        for kind in PRESSURES
    ]

    addresses = [{"type": "InternalIP", "address": address} for address in node.addresses]
    info = {
        "kubeletVersion": node.version,
        "systemUUID": node.system_uuid,
        "machineID": node.system_uuid,
        "bootID": node.boot_id,
        "operatingSystem": "linux",
        "architecture": "amd64",
        "containerRuntimeVersion": "containerd://2.0",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels},
        "spec": {"taints": taints},
        "status": {
            "addresses": [*addresses, {"type": "Hostname", "address": node.name}],
            "conditions": [ready, *pressures],
            "nodeInfo": info,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.PORT}},
        },
    }
