"""All stand-ins, as one component of the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from caphv.runtime.client import ApiClient
from sandbox.capi.bootstrap import Bootstrap
from sandbox.capi.caches import Caches, Shared
from sandbox.capi.controlplane import ControlPlanes
from sandbox.capi.distribution import distributions_for


async def run(client: ApiClient, core: str, others: Collection[str] = ()) -> None:
    """Run on a management cluster until cancelled. The CRDs may be installed later.

    :param core: the API version of the core
    :param others: the distributions whose providers the user runs, by the names that users know
    """
    shared = Shared(client, core)
    caches = [
        Caches(client, shared, distribution)
        for distribution in distributions_for(core)
        if distribution.title not in others
    ]

    async with shared.running(*caches):
        bootstraps = [Bootstrap(client, provider_caches) for provider_caches in caches]
        control_planes = [ControlPlanes(client, provider_caches) for provider_caches in caches]
        controllers = [
            *(bootstrap.controller for bootstrap in bootstraps),
            *(control_plane.controller for control_plane in control_planes),
        ]

        try:
            async with asyncio.TaskGroup() as group:
                for controller in controllers:
                    group.create_task(controller.run())
        finally:
            # Close the connections after the controllers, because a reconcile would connect again.
            for control_plane in control_planes:
                await control_plane.connections.close()
