"""All stand-ins, as one component of the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from caphv.runtime.client import ApiClient
from sandbox.capi.bootstrap import Bootstrap
from sandbox.capi.caches import Caches, Shared
from sandbox.capi.controlplane import ControlPlanes
from sandbox.capi.distribution import in_version


async def run(client: ApiClient, core: str, others: Collection[str] = ()) -> None:
    """Run on a management cluster until cancelled; the CRDs may be installed later.

    :param core: API version of its core
    :param others: distributions whose providers the user runs, by the names that users know
    """
    shared = Shared(client, core)
    caches = [
        Caches(client, shared, distribution) for distribution in in_version(core) if distribution.title not in others
    ]
    async with shared.running(*caches):
        control_planes = [ControlPlanes(client, each) for each in caches]
        try:
            async with asyncio.TaskGroup() as group:
                for own, control_plane in zip(caches, control_planes, strict=True):
                    group.create_task(Bootstrap(client, own).controller.run())
                    group.create_task(control_plane.controller.run())
        finally:
            for each in control_planes:
                await each.connections.close()
