"""What the servers of RKE2 and K3s do with the etcd member of a Node: they remove it on request, and with the Node.

A request is an annotation of the Node. When the member is removed, another annotation has its name; the Node stays.
"""

from __future__ import annotations

import asyncio
import logging

from caphv.api.object import NODES, SECRETS, Obj, annotations_of, key_of
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.guest.kubelet import NAMESPACE, Etcd
from sandbox.guest.rancher import Program
from sandbox.processes.apiserver import ApiServer

log = logging.getLogger(__name__)


class Members:
    """The controller of one cluster, in place of the one in each of its servers."""

    def __init__(self, server: ApiServer, etcd: Etcd, program: Program) -> None:
        self._server = server
        self._etcd = etcd
        self._program = program

    async def run(self) -> None:
        """Run until cancelled."""
        async with self._server.client() as client:
            await self._publish(client)
            nodes = Informer(client, NODES, max_backoff=2)

            async def reconcile(key: object) -> None:
                node = nodes.get("", getattr(key, "name", ""))
                if node is not None:
                    await self._reconcile(client, node)

            controller = Controller("etcd-members", reconcile, concurrency=1)

            def changed(change: Change) -> None:
                if change.new is None:
                    self._etcd.remove_node(key_of(change.obj).name)
                else:
                    controller.enqueue(change.key)

            nodes.add_handler(changed)
            watching = nodes.start()
            try:
                await controller.run()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def _publish(self, client: ApiClient) -> None:
        """Create the Secret by which providers know that the first server has started."""
        secret = {"metadata": {"name": self._program.serving, "namespace": NAMESPACE}, "type": "kubernetes.io/tls"}
        data = {"tls.crt": "", "tls.key": ""}
        try:
            await client.create(SECRETS, {**secret, "data": data})
        except AlreadyExists:
            log.debug("%s exists", self._program.serving)

    async def _reconcile(self, client: ApiClient, node: Obj) -> None:
        annotations, name = annotations_of(node), key_of(node).name
        removed = f"{self._program.etcd}/removed-node-name"
        if annotations.get(f"{self._program.etcd}/remove") != "true" or removed in annotations:
            return
        member = self._etcd.remove_node(name)
        log.info("removed etcd member %s", member)
        try:
            await client.patch(NODES, name, "", {"metadata": {"annotations": {removed: member or name}}})
        except NotFound:
            log.debug("Node %s was deleted", name)
