"""Connections to workload clusters: their Nodes, by which the servers remove etcd members of deleted machines.

The core retries its own connections only every 30 s, so a control plane that relied on the core's view of Nodes would
come up slowly. The real providers have their own connections, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from caphv.api.object import NODES, Key, Obj, annotations_of, labels_of
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.guest.rancher import Program

_ROLE = "node-role.kubernetes.io/control-plane"


class Connection:
    """One workload cluster."""

    def __init__(self, access: Kubeconfig, changed: Callable[[], None]) -> None:
        self._client: ApiClient = access.client(name="workload", user_agent="caphv-sandbox", timeout=5.0)
        self.access = access
        self.nodes = Informer(self._client, NODES, max_backoff=1)
        self.nodes.add_handler(lambda _change: changed())
        self._task = self.nodes.start()

    def ready_nodes(self) -> set[str]:
        """Provider IDs of Nodes that are ready."""
        return {provider_id(node) for node in self.nodes.store if _is_ready(node)}

    def known_nodes(self) -> set[str]:
        """Provider IDs of all Nodes."""
        return {provider_id(node) for node in self.nodes.store}

    def has_control_plane(self) -> bool:
        """Whether a control plane Node is ready: then others can join."""
        return bool(self.ready_control_plane_nodes())

    def control_plane_nodes(self) -> set[str]:
        """Names of all control plane Nodes."""
        return {node["metadata"]["name"] for node in self.nodes.store if _ROLE in labels_of(node)}

    def ready_control_plane_nodes(self) -> set[str]:
        """Names of control plane Nodes that are ready."""
        return {node["metadata"]["name"] for node in self.nodes.store if _ROLE in labels_of(node) and _is_ready(node)}

    async def request_removal(self, node: str, program: Program) -> None:
        """Have the servers remove the etcd member of a Node, by an annotation. Raises ApiError, Unreachable."""
        patch = {"metadata": {"annotations": {f"{program.etcd}/remove": "true"}}}
        with contextlib.suppress(NotFound):
            self.nodes.observe(await self._client.patch(NODES, node, "", patch))

    def is_removed(self, node: str, program: Program) -> bool | None:
        """Whether the servers have removed the etcd member of a Node; None if there is no such Node."""
        found = self.nodes.get("", node)
        return bool(annotations_of(found).get(f"{program.etcd}/removed-node-name")) if found else None

    async def close(self) -> None:
        """Close the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()


class Connections:
    """Connections to all workload clusters; `changed` is called with a cluster's key when one of its Nodes changes."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._connections: dict[Key, Connection] = {}

    async def ensure(self, cluster: Key, access: Kubeconfig) -> Connection:
        """The connection to a cluster; reconnects with changed credentials."""
        found = self._connections.get(cluster)
        if found is not None and found.access == access:
            return found
        await self.forget(cluster)
        connection = Connection(access, lambda: self._changed(cluster))
        self._connections[cluster] = connection
        return connection

    async def forget(self, cluster: Key) -> None:
        """Close the connection to a deleted cluster."""
        found = self._connections.pop(cluster, None)
        if found is not None:
            await found.close()

    async def close(self) -> None:
        """Close all connections."""
        for cluster in list(self._connections):
            await self.forget(cluster)


def provider_id(node: Obj) -> str:
    """Provider ID of a Node; empty until the infrastructure provider has set it."""
    return str((node.get("spec") or {}).get("providerID") or "")


def _is_ready(node: Obj) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
