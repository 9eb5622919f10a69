"""Run all simulated parts of a sandbox in one process: `python -m sandbox.simulate --dir <folder>`.

The folder has `sandbox.json` and the kubeconfigs of the API servers, written by `sandbox.environment`. The file
`simulator.ready` appears once Harvester's objects exist and its webhooks are called.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import signal
from collections.abc import AsyncIterator, Collection, Coroutine
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
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.datavolumes import DataVolumes
from sandbox.harvester.faultproxy import FaultProxy, proxy_of
from sandbox.harvester.fixtures import define, seed
from sandbox.harvester.images import Images
from sandbox.harvester.informers import Informers
from sandbox.harvester.kubevip import DataPath, KubeVip
from sandbox.harvester.loadbalancer import LoadBalancers
from sandbox.harvester.maintenance import Maintenance
from sandbox.harvester.virtualmachines import VirtualMachines
from sandbox.harvester.vmguards import VmGuards
from sandbox.processes.garbage import GarbageCollector
from sandbox.processes.tokens import TokenController

log = logging.getLogger(__name__)

READY_FILE = "simulator.ready"


class Simulator:
    """The simulated parts of one sandbox; `folder` has its etcd, for the API servers of workload clusters.

    On the `management` cluster, the stand-ins for kube-controller-manager and for bootstrap and control plane providers
    run; `core` is the API version of its core, empty for a management cluster without such providers. `fault_proxy` is
    the proxy in front of Harvester for fault injection.
    """

    def __init__(
        self,
        folder: Path,
        config: SimulatorConfig,
        harvester: Kubeconfig,
        management: Kubeconfig | None = None,
        fault_proxy: FaultProxy | None = None,
        *,
        core: str = "v1beta2",
        own_providers: Collection[str] = (),
    ) -> None:
        self.config = config
        self._folder = folder
        self._harvester = harvester
        self._management = management
        self._fault_proxy = fault_proxy
        self._core = core
        self._own_providers = own_providers

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Simulator]:
        """Simulate inside the block; API servers of workload clusters stop with it.

        Raises ApiError or Unreachable if Harvester's objects cannot be created.
        """
        async with contextlib.AsyncExitStack() as stack:
            client = await self._client(stack, "harvester", self._harvester)
            await define(client)
            informers = Informers(client)
            await stack.enter_async_context(_background(informers.run()))
            await informers.wait_synced()
            # Before anything is written: a killed simulator leaves webhooks behind that nothing serves.
            await stack.enter_async_context(Admission(informers, self.config).served(client))
            await seed(client, self.config)
            works = self._parts(stack, informers)
            for name, access in (("harvester", self._harvester), ("management", self._management)):
                if access:
                    other = await self._client(stack, name, access)
                    works += [TokenController(other, access.ca).run(), GarbageCollector(other).run()]
                    if access is self._management and self._core:
                        works.append(standins.run(other, self._core, self._own_providers))
            if self._fault_proxy:
                works.append((await stack.enter_async_context(self._fault_proxy.serving())).follow(client))
            await stack.enter_async_context(_background(*works))
            yield self

    def _parts(self, stack: contextlib.AsyncExitStack, informers: Informers) -> list[Coroutine[Any, Any, None]]:
        addresses, workloads, data_path = Addresses(), Workloads(self._folder), DataPath()
        stack.push_async_callback(workloads.close)
        stack.push_async_callback(data_path.close)
        load_balancers = LoadBalancers(informers, self.config, data_path, workloads.answers)
        return [
            VirtualMachines(informers, self.config).run(),
            Images(informers, self.config).run(),
            KubeVip(informers, addresses, self.config.networks[0].dhcp).run(),
            load_balancers.run(),
            Maintenance(informers).run(),
            Guests(informers, self.config, addresses, workloads).run(),
            DataVolumes(informers, self.config).run(),
            *([VmGuards(informers).run()] if self.config.release.guards_vms else []),
        ]

    async def _client(self, stack: contextlib.AsyncExitStack, name: str, access: Kubeconfig) -> ApiClient:
        client = access.client(name=name, user_agent="caphv-sandbox", timeout=60.0, untrusted=False)
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
        log.error("a simulator component failed", exc_info=task.exception())


def from_folder(folder: Path) -> Simulator:
    """The simulator for a sandbox folder; it ignores settings of other parts in `sandbox.json`."""
    state = json.loads((folder / "sandbox.json").read_text())
    known = {field.name for field in dataclasses.fields(SimulatorConfig)} - {"network"}
    settings = {name: value for name, value in state.get("settings", {}).items() if name in known}
    config = SimulatorConfig.from_settings(state["network"], settings)
    own_providers = state.get("settings", {}).get("own_providers", "").split(",")
    direct = (folder / "harvester-direct.kubeconfig").exists()
    harvester, management = (
        _access(folder, name) for name in ("harvester-direct" if direct else "harvester", "management")
    )
    proxy = None
    if (folder / "identity.kubeconfig").exists():
        proxy = proxy_of(_access(folder, "identity"), harvester, folder / "harvester")
    return Simulator(
        folder, config, harvester, management, proxy, core=state.get("core", "v1beta2"), own_providers=own_providers
    )


def _access(folder: Path, name: str) -> Kubeconfig:
    return parse_kubeconfig((folder / f"{name}.kubeconfig").read_bytes())


async def _run(folder: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with from_folder(folder).running():
        (folder / READY_FILE).touch()
        log.info("simulated Harvester ready")
        await stop.wait()
    (folder / READY_FILE).unlink(missing_ok=True)


def main() -> None:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m sandbox.simulate", description="Run the simulated parts of a sandbox."
    )
    parser.add_argument("--dir", type=Path, required=True, help="folder of the sandbox")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    uvloop.run(_run(arguments.dir))


if __name__ == "__main__":
    main()
