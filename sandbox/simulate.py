"""Run all simulated parts of a sandbox in one process: `python -m sandbox.simulate --dir <folder>`.

The folder has `sandbox.json` and the kubeconfigs of the API servers, written by
`sandbox.environment`. The file `simulator.ready` appears once Harvester's objects exist and its
webhooks are called.
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
from sandbox.background import background
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
from sandbox.harvester.vmbackups import VmBackups
from sandbox.harvester.vmguards import VmGuards
from sandbox.processes.garbage import GarbageCollector
from sandbox.processes.tokens import TokenController

log = logging.getLogger(__name__)

READY_FILE = "simulator.ready"


class Simulator:
    """The simulated parts of one sandbox.

    `folder` has its etcd, for the API servers of workload clusters. On the `management` cluster,
    the stand-ins for kube-controller-manager and for bootstrap and control plane providers run;
    `core` is the API version of its core, empty for a management cluster without such providers.
    `fault_proxy` is the proxy in front of Harvester for fault injection.
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
        """Simulate inside the block. API servers of workload clusters stop with it.

        Raises `ApiError` or `Unreachable` if Harvester's objects cannot be created.
        """
        async with contextlib.AsyncExitStack() as stack:
            client = await self._client(stack, "harvester", self._harvester)
            await define(client)
            informers = Informers(client)
            await stack.enter_async_context(background(informers.run()))
            await informers.wait_synced()

            # Serve the webhooks before the first write, because a killed simulator leaves behind
            # webhooks that nothing serves.
            await stack.enter_async_context(Admission(informers, self.config).serving(client))
            await seed(client, self.config)

            controllers = self._harvester_controllers(stack, informers)
            kubernetes = await self._client(stack, "harvester", self._harvester)
            controllers += _kubernetes_controllers(kubernetes, self._harvester.ca)
            if self._management:
                management = await self._client(stack, "management", self._management)
                controllers += _kubernetes_controllers(management, self._management.ca)
                if self._core:
                    controllers.append(standins.run(management, self._core, self._own_providers))
            if self._fault_proxy:
                proxy = await stack.enter_async_context(self._fault_proxy.serving())
                controllers.append(proxy.follow(client))

            await stack.enter_async_context(background(*controllers))
            yield self

    def _harvester_controllers(
        self, stack: contextlib.AsyncExitStack, informers: Informers
    ) -> list[Coroutine[Any, Any, None]]:
        addresses = Addresses()
        # Real control plane providers read and change the members of etcd themselves.
        workloads = Workloads(self._folder, self._own_providers)
        data_path = DataPath()
        stack.push_async_callback(workloads.close)
        stack.push_async_callback(data_path.close)

        load_balancers = LoadBalancers(informers, self.config, data_path, workloads.answers)
        return [
            VirtualMachines(informers, self.config).run(),
            Images(informers, self.config).run(),
            VmBackups(informers, self.config).run(),
            KubeVip(informers, addresses, self.config.networks[0].dhcp).run(),
            load_balancers.run(),
            Maintenance(informers).run(),
            Guests(informers, self.config, addresses, workloads).run(),
            DataVolumes(informers, self.config).run(),
            *([VmGuards(informers).run()] if self.config.release.guards_vms else []),
        ]

    async def _client(
        self, stack: contextlib.AsyncExitStack, name: str, kubeconfig: Kubeconfig
    ) -> ApiClient:
        client = kubeconfig.client(
            name=name, user_agent="caphv-sandbox", timeout=60.0, untrusted=False
        )
        stack.push_async_callback(client.close)
        return client


def _kubernetes_controllers(client: ApiClient, ca: str) -> list[Coroutine[Any, Any, None]]:
    """Return the controllers that kube-controller-manager would run."""
    return [TokenController(client, ca).run(), GarbageCollector(client).run()]


def from_folder(folder: Path) -> Simulator:
    """Build the simulator for a sandbox folder."""
    state = json.loads((folder / "sandbox.json").read_text())
    sandbox_settings = state.get("settings", {})
    # The file also has the settings of other parts.
    names = {field.name for field in dataclasses.fields(SimulatorConfig)} - {"network"}
    settings = {name: value for name, value in sandbox_settings.items() if name in names}
    config = SimulatorConfig.from_settings(state["network"], settings)
    own_providers = [*filter(None, sandbox_settings.get("own_providers", "").split(","))]

    # The simulation must not meet the faults that the proxy injects.
    is_proxied = (folder / "harvester-direct.kubeconfig").exists()
    harvester = _read_kubeconfig(folder, "harvester-direct" if is_proxied else "harvester")
    management = _read_kubeconfig(folder, "management")
    proxy = None
    if (folder / "identity.kubeconfig").exists():
        proxy = proxy_of(_read_kubeconfig(folder, "identity"), harvester, folder / "harvester")

    return Simulator(
        folder=folder,
        config=config,
        harvester=harvester,
        management=management,
        fault_proxy=proxy,
        core=state.get("core", "v1beta2"),
        own_providers=own_providers,
    )


def _read_kubeconfig(folder: Path, name: str) -> Kubeconfig:
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
