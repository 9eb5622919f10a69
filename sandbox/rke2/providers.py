"""Both stand-ins together, as one part of the simulator."""

from __future__ import annotations

import asyncio

from caphv.runtime.client import ApiClient
from sandbox.rke2.bootstrap import Bootstrap
from sandbox.rke2.caches import Caches
from sandbox.rke2.controlplane import ControlPlanes


async def run(client: ApiClient) -> None:
    """Work on a management cluster until cancelled; the CRDs of the core and of RKE2 may come later."""
    caches = Caches(client)
    async with caches.running():
        bootstrap, control_planes = Bootstrap(client, caches), ControlPlanes(client, caches)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(bootstrap.controller.run())
                group.create_task(control_planes.controller.run())
        finally:
            await control_planes.connections.close()
