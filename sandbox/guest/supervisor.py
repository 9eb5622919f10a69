"""What the supervisors of RKE2 and K3s servers write to the API server of their cluster.

They create a Secret once the first server has started, by which providers know that. They remove
the etcd member of a Node on request, or when the Node is deleted. A request is an annotation of the
Node. When the member is removed, another annotation of the Node has its name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from caphv.api.object import NODES, SECRETS, Key, annotations_of
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.guest.kubelet import NAMESPACE
from sandbox.guest.rancher import Program
from sandbox.processes.apiserver import ApiServer

log = logging.getLogger(__name__)


class Supervisor:
    """The supervisor of one cluster, in place of the one in each of its servers.

    `remove_member` removes the etcd member of a Node and returns its name, empty if there is none.
    It may raise `EtcdError`.
    """

    def __init__(
        self,
        server: ApiServer,
        program: Program,
        remove_member: Callable[[str], Awaitable[str]],
    ) -> None:
        self._server = server
        self._program = program
        self._remove_member = remove_member

    async def run(self) -> None:
        """Run until cancelled."""
        async with self._server.client() as client:
            await self._create_serving_secret(client)
            nodes = Informer(client, NODES, max_backoff=2)

            async def reconcile(key: Key) -> None:
                await self._reconcile(client, nodes, key.name)

            controller = Controller("etcd-members", reconcile, concurrency=1)

            nodes.add_handler(lambda change: controller.enqueue(change.key))
            watching = nodes.start()
            try:
                await controller.run()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def _create_serving_secret(self, client: ApiClient) -> None:
        """Create the Secret with the supervisor's certificate. Providers read only its name."""
        secret = {
            "metadata": {"name": self._program.serving, "namespace": NAMESPACE},
            "type": "kubernetes.io/tls",
            "data": {"tls.crt": "", "tls.key": ""},
        }
        try:
            await client.create(SECRETS, secret)
        except AlreadyExists:
            log.debug("%s exists", self._program.serving)

    async def _reconcile(self, client: ApiClient, nodes: Informer, name: str) -> None:
        """Remove the etcd member of a Node, if the Node requests it or was deleted."""
        node = nodes.get("", name)
        if node is None:
            await self._remove_member(name)
            return

        # The request stays on the Node, and only the answer shows that it was served. A second
        # removal finds no member, and would replace the member's name in the answer.
        request = f"{self._program.etcd}/remove"
        answer = f"{self._program.etcd}/removed-node-name"
        annotations = annotations_of(node)
        if annotations.get(request) != "true" or answer in annotations:
            return

        member = await self._remove_member(name)
        log.info("removed etcd member %s", member)
        patch = {"metadata": {"annotations": {answer: member or name}}}
        try:
            await client.patch(NODES, name, "", patch)
        except NotFound:
            log.debug("Node %s was deleted", name)
