"""All stand-ins, as one component of the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from caphv.runtime.client import ApiClient
from sandbox.capi.bootstrap import Bootstrap
from sandbox.capi.caches import Caches, ProviderCaches, Shared
from sandbox.capi.controlplane import ControlPlanes
from sandbox.capi.distribution import distributions_for
from sandbox.capi.talos import kinds as talos_kinds
from sandbox.capi.talos.bootstrap import TalosBootstrap
from sandbox.capi.talos.controlplane import TalosControlPlanes


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

    talos = ProviderCaches(client, shared, talos_kinds.CONFIGS, talos_kinds.CONTROL_PLANES)
    # Talos has stand-ins for the newer core only.
    talos_caches = [talos] if core == "v1beta2" else []

    async with shared.running(*caches, *talos_caches):
        bootstraps: list[Bootstrap | TalosBootstrap] = [
            Bootstrap(client, provider_caches) for provider_caches in caches
        ]
        bootstraps += [TalosBootstrap(client, provider_caches) for provider_caches in talos_caches]
        control_planes: list[ControlPlanes | TalosControlPlanes] = [
            ControlPlanes(client, provider_caches) for provider_caches in caches
        ]
        control_planes += [
            TalosControlPlanes(client, provider_caches) for provider_caches in talos_caches
        ]
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
