"""Runs all simulated parts of a sandbox in one process: `python -m sandbox.simulate --dir <folder>`.

The folder holds `sandbox.json` and the kubeconfigs of the API servers, as `sandbox.environment` writes them. A file
`simulator.ready` appears when Harvester is furnished and its webhooks are asked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import Kubeconfig, parse_kubeconfig
from sandbox.capi import standins
from sandbox.guest.guests import Guests
from sandbox.guest.workload import Workloads
from sandbox.harvester.addresses import Addresses
from sandbox.harvester.admission import Admission
from sandbox.harvester.faultproxy import FaultProxy, proxy_of
from sandbox.harvester.fixtures import World, define, seed
from sandbox.harvester.informers import Stores
from sandbox.harvester.kubevip import DataPath, KubeVip
from sandbox.harvester.loadbalancer import LoadBalancers
from sandbox.harvester.virtualmachines import VirtualMachines
from sandbox.processes.garbage import Garbage
from sandbox.processes.tokens import Tokens

log = logging.getLogger(__name__)

READY_FILE = "simulator.ready"


class Simulator:
    """The simulated parts of one sandbox; `folder` is where its etcd runs, for the API servers of workload clusters.

    `management` is the management cluster, where only the stand-ins for kube-controller-manager work. `fault_proxy`
    stands before Harvester for who wants to meet faults.
    """

    def __init__(
        self,
        folder: Path,
        world: World,
        harvester: Kubeconfig,
        management: Kubeconfig | None = None,
        fault_proxy: FaultProxy | None = None,
    ) -> None:
        self.world = world
        self._folder = folder
        self._harvester = harvester
        self._management = management
        self._fault_proxy = fault_proxy

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Simulator]:
        """Simulate for as long as the context is open; API servers of workload clusters end with it.

        Raises ApiError or Unreachable when Harvester cannot be furnished.
        """
        async with contextlib.AsyncExitStack() as stack:
            client = await self._client(stack, "harvester", self._harvester)
            await define(client)
            stores = Stores(client)
            await stack.enter_async_context(_background(stores.run()))
            await stores.wait_synced()
            # Before anything is written: a simulator that was killed left webhooks behind that nobody answers.
            await stack.enter_async_context(Admission(stores, self.world).served(client))
            await seed(client, self.world)
            works = self._parts(stack, stores)
            for name, access in (("harvester", self._harvester), ("management", self._management)):
                if access:
                    other = await self._client(stack, name, access)
                    works += [Tokens(other, access.ca).run(), Garbage(other).run()]
                    if access is self._management:
                        works.append(standins.run(other))
            if self._fault_proxy:
                works.append((await stack.enter_async_context(self._fault_proxy.serving())).follow(client))
            await stack.enter_async_context(_background(*works))
            yield self

    def _parts(self, stack: contextlib.AsyncExitStack, stores: Stores) -> list[Coroutine[Any, Any, None]]:
        addresses, workloads, data_path = Addresses(), Workloads(self._folder), DataPath()
        stack.push_async_callback(workloads.close)
        stack.push_async_callback(data_path.close)
        load_balancers = LoadBalancers(stores, self.world, data_path, workloads.answers)
        workloads.on_change = load_balancers.health_changed
        return [
            VirtualMachines(stores, self.world).run(),
            KubeVip(stores, addresses, self.world.networks[0].dhcp).run(),
            load_balancers.run(),
            Guests(stores, self.world, addresses, workloads).run(),
        ]

    async def _client(self, stack: contextlib.AsyncExitStack, name: str, access: Kubeconfig) -> ApiClient:
        client = access.client(name=name, user_agent="caphv-sandbox", timeout=60.0)
        stack.push_async_callback(client.close)
        return client


@contextlib.asynccontextmanager
async def _background(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(work) for work in works]
    for task in tasks:
        task.add_done_callback(_log_failure)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _log_failure(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and task.exception():
        log.error("a part of the simulator failed", exc_info=task.exception())


def from_folder(folder: Path) -> Simulator:
    """The simulator for a sandbox folder; unknown settings in `sandbox.json` belong to other parts."""
    state = json.loads((folder / "sandbox.json").read_text())
    known = {field.name for field in dataclasses.fields(World)} - {"network"}
    settings = {name: value for name, value in state.get("settings", {}).items() if name in known}
    world = World.from_settings(state["network"], settings)
    harvester, management = (_access(folder, name) for name in ("harvester", "management"))
    proxy = None
    if (folder / "identity.kubeconfig").exists():
        proxy = proxy_of(_access(folder, "identity"), harvester, folder / "harvester")
    return Simulator(folder, world, harvester, management, proxy)


def _access(folder: Path, name: str) -> Kubeconfig:
    return parse_kubeconfig((folder / f"{name}.kubeconfig").read_bytes())


async def _run(folder: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with from_folder(folder).running():
        (folder / READY_FILE).touch()
        log.info("the simulated Harvester is ready")
        await stop.wait()
    (folder / READY_FILE).unlink(missing_ok=True)


def main() -> None:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m sandbox.simulate", description="Run the simulated parts.")
    parser.add_argument("--dir", type=Path, required=True, help="folder of the sandbox")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    uvloop.run(_run(arguments.dir))


if __name__ == "__main__":
    main()
