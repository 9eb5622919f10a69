"""Connections to workload clusters, to read their Nodes and to request the removal of etcd members.

The core retries its own connections only every 30 s, so a control plane that relied on the core's
view of Nodes would start slowly. The real providers have their own connections as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from caphv.api.hosts import is_ready
from caphv.api.object import (
    NODES,
    Key,
    Obj,
    annotations_of,
    key_of,
    labels_of,
    text_at,
)
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.guest.rancher import Program

_ROLE = "node-role.kubernetes.io/control-plane"


class Connection:
    """One workload cluster."""

    def __init__(self, kubeconfig: Kubeconfig, on_change: Callable[[], None]) -> None:
        self._client: ApiClient = kubeconfig.client(
            name="workload", user_agent="caphv-sandbox", timeout=5.0
        )
        self.kubeconfig = kubeconfig
        self.nodes = Informer(self._client, NODES, max_backoff=1)
        self.nodes.add_handler(lambda _change: on_change())
        self._task = self.nodes.start()

    def ready_nodes(self) -> set[str]:
        """Return the provider IDs of Nodes that are ready."""
        return {provider_id(node) for node in self.nodes.store if is_ready(node)}

    def known_nodes(self) -> set[str]:
        """Return the provider IDs of all Nodes."""
        return {provider_id(node) for node in self.nodes.store}

    def control_plane_nodes(self) -> set[str]:
        """Return the names of all control plane Nodes."""
        return {key_of(node).name for node in self.nodes.store if _ROLE in labels_of(node)}

    def ready_control_plane_nodes(self) -> set[str]:
        """Return the names of control plane Nodes that are ready."""
        return {
            key_of(node).name
            for node in self.nodes.store
            if _ROLE in labels_of(node) and is_ready(node)
        }

    async def request_removal(self, node: str, program: Program) -> None:
        """Annotate a Node, so that the servers remove its etcd member.

        Raises `ApiError`, `Unreachable`.
        """
        patch = {"metadata": {"annotations": {f"{program.etcd}/remove": "true"}}}
        with contextlib.suppress(NotFound):
            self.nodes.observe(await self._client.patch(NODES, node, "", patch))

    def is_removed(self, node: str, program: Program) -> bool | None:
        """Return whether the servers have removed a Node's etcd member; None if it has no Node."""
        obj = self.nodes.get("", node)
        if obj is None:
            return None
        return bool(annotations_of(obj).get(f"{program.etcd}/removed-node-name"))

    async def delete_node(self, node: str) -> None:
        """Delete a Node. Raises `ApiError`, `Unreachable`."""
        await self._client.delete(NODES, node, "")

    async def close(self) -> None:
        """Close the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()


class Connections:
    """Connections to all workload clusters, by the keys of their control planes.

    :param on_change: called with the key of a control plane when a Node of its cluster changes
    """

    def __init__(self, on_change: Callable[[Key], None]) -> None:
        self._on_change = on_change
        self._connections: dict[Key, Connection] = {}

    async def ensure(self, key: Key, kubeconfig: Kubeconfig) -> Connection:
        """Return the connection to a cluster. Reconnects if the credentials have changed."""
        connection = self._connections.get(key)
        if connection is not None and connection.kubeconfig == kubeconfig:
            return connection

        await self.forget(key)
        connection = Connection(kubeconfig, lambda: self._on_change(key))
        self._connections[key] = connection
        return connection

    async def forget(self, key: Key) -> None:
        """Close the connection to a deleted cluster."""
        connection = self._connections.pop(key, None)
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Close all connections."""
        for key in list(self._connections):
            await self.forget(key)


def provider_id(node: Obj) -> str:
    """Return the provider ID of a Node, empty until the infrastructure provider has set it."""
    return text_at(node, "spec", "providerID")
