"""The registration of guests' Nodes, and their marking as lost some time after a guest ends."""

from __future__ import annotations

import asyncio

from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.guest import nodes
from sandbox.guest.nodes import ClientPool, NodeInfo
from sandbox.harvester.config import SimulatorConfig


class NodeRegistrar:
    """Registers the Nodes of all guests on one Harvester."""

    def __init__(self, config: SimulatorConfig) -> None:
        self._config = config
        self._clients = ClientPool()
        # The registration by the newest guest of a Node, by server and name. The end of an earlier
        # guest must not mark the Node as lost.
        self._nodes: dict[tuple[str, str], NodeInfo] = {}
        self._losses: set[asyncio.Task[None]] = set()

    async def keep(self, kubeconfig: Kubeconfig, node: NodeInfo) -> None:
        """Register a Node and keep it until cancelled, then mark it as lost in the background.

        Each guest passes its own `node` object, whose identity distinguishes successive guests with
        the same name.
        """
        await asyncio.sleep(self._config.register_seconds)
        async with self._clients.client(kubeconfig) as client:
            self._nodes[kubeconfig.server, node.name] = node
            try:
                await nodes.register(client, node)
                await asyncio.Event().wait()
            finally:
                task = asyncio.create_task(self._mark_lost_later(kubeconfig, node))
                self._losses.add(task)
                task.add_done_callback(self._losses.discard)

    async def close(self) -> None:
        """Cancel the marking of lost Nodes.

        Call it after guests have stopped, because the end of each starts a marking.
        """
        losses = list(self._losses)
        for task in losses:
            task.cancel()
        await asyncio.gather(*losses, return_exceptions=True)

    async def _mark_lost_later(self, kubeconfig: Kubeconfig, node: NodeInfo) -> None:
        """Mark the Node of a stopped guest as lost, unless another guest registers it first."""
        await asyncio.sleep(self._config.node_lost_seconds)
        key = (kubeconfig.server, node.name)
        if self._nodes.get(key) is not node:
            return

        async with self._clients.client(kubeconfig) as client:
            await nodes.mark_lost(client, node.name)

            # Another guest may have registered while the Node was marked. A real kubelet repeats
            # its report, but the simulated one reports only here.
            newest = self._nodes[key]
            if newest is not node:
                await nodes.register(client, newest)
                return

            del self._nodes[key]
            await nodes.delete_pods(client, node.pods)
