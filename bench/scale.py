"""Workload X: a fleet of 5,000 machines, which arrives, converges and idles, and then single machines.

One process stands in for the API servers of the management cluster, all Harvesters and all workload clusters
(`bench.standin`): real ones do not fit on one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bench.environment import Bench
from bench.machines import cluster_objects, create_machine, create_machines
from bench.standin import READY_FILE
from bench.times import Times, spread
from caphv.api.object import NAMESPACES, SECRETS, Obj
from caphv.api.resources import HARVESTER_CLUSTERS, HARVESTER_MACHINES
from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox.capi.resources import CLUSTERS
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.fixtures import seed
from sandbox.processes import children, pki
from sandbox.processes.apiserver import private_file

NAME = "X"
_CLUSTERS, _EACH, _HARVESTERS, _ACCOUNTS, _SINGLE = 250, 20, 10, 50, 100
_PAUSE = 0.5
_TIMEOUT = 1800.0
_KINDS = {kind.kind: kind for kind in (NAMESPACES, SECRETS, CLUSTERS, HARVESTER_CLUSTERS, HARVESTER_MACHINES)}


@dataclass(frozen=True)
class _Server:
    """A server that the stand-in pretends to be, with what `Bench` asks of an `ApiServer`."""

    name: str
    url: str
    ca: pki.CA

    def kubeconfig(self, user: str, _groups: Sequence[str] = ()) -> Obj:
        """A kubeconfig with a token that the stand-in ignores."""
        return pki.kubeconfig(self.url, self.ca.certificate, name=self.name, user=user, credentials={"token": user})


class _Fleet(Bench):
    def server(self, path: str) -> _Server:
        front = cast(_Server, self.servers["management"][0])
        return _Server(path, f"{front.url.rpartition('/')[0]}/{path}", front.ca)

    @functools.cache  # noqa: B019 - one environment a process
    def harvester_identity(self, account: int) -> bytes:
        return pki.to_yaml(self.server(f"harvester/{account % _HARVESTERS}").kubeconfig(f"account-{account}"))

    def workload_kubeconfig(self, number: int) -> bytes:
        return pki.to_yaml(self.server(f"workload/{number}").kubeconfig("caphv"))

    def workload(self, number: int) -> Any:
        return self.server(f"workload/{number}")


async def measure(idle_seconds: float) -> dict[str, Any]:
    """Run the workload; answers its figures by name."""
    async with _fleet() as fleet, contextlib.AsyncExitStack() as stack:
        clock = _client(stack, fleet.server("front"))
        for number in range(_HARVESTERS):
            await seed(
                _client(stack, fleet.server(f"harvester/{number}")), SimulatorConfig.from_settings("127.64.0.0/16")
            )
        await fleet.start_provider()
        descriptors: list[int] = []
        sampling = asyncio.create_task(fleet.sample_descriptors(descriptors))
        started = time.monotonic()
        names = await _create_clusters(fleet)
        figures: dict[str, Any] = {"clusters ready after s": round(time.monotonic() - started, 1)}
        started = time.monotonic()
        pairs = [(cluster, f"{cluster}-m{number}") for number in range(_EACH) for cluster in names]
        cpu, _ = fleet.provider_usage()
        await create_machines(fleet, pairs)
        await _until_done(clock, len(pairs))
        figures |= {
            "machines": len(pairs),
            "all ready after s": round(time.monotonic() - started, 1),
            "CPU a machine until ready, ms": round((fleet.provider_usage()[0] - cpu) / len(pairs) * 1000, 1),
        }
        await asyncio.sleep(10)
        if idle_seconds:
            cpu, _ = fleet.provider_usage()
            await asyncio.sleep(idle_seconds)
            share = (fleet.provider_usage()[0] - cpu) / idle_seconds
            figures["CPU while idle, % of a core"] = round(share * 100, 2)
        figures |= await _single(fleet, clock, names)
        figures["peak memory, MiB"] = round(fleet.provider_usage()[1], 1)
        figures["open files, most"] = max(descriptors)
        sampling.cancel()
        return figures


@contextlib.asynccontextmanager
async def _fleet() -> AsyncIterator[_Fleet]:
    folder = Path(tempfile.mkdtemp(prefix="caphv-bench-"))
    try:
        async with contextlib.AsyncExitStack() as stack:
            ca = pki.CA.create("standin")
            pair = ca.server(["127.0.0.1"])
            private_file(folder / "standin.crt", pair.certificate)
            private_file(folder / "standin.key", pair.key)
            (port,) = children.free_ports(1)
            management = _Server("management", f"https://127.0.0.1:{port}/management", ca)
            command = [sys.executable, "-P", "-m", "bench.standin", f"--dir={folder}", f"--port={port}"]
            process = children.start(folder, "standin", command, env={"PYTHONPATH": str(Path(__file__).parent.parent)})

            async def ready() -> bool:
                return (folder / READY_FILE).exists()

            await children.wait_ready(process, ready, 60)
            client = _client(stack, management)
            yield _Fleet(folder, "127.64", {"management": cast(Any, [management])}, client, client, [])
    finally:
        await children.stop_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


async def _create_clusters(fleet: _Fleet) -> list[str]:
    names = [f"x-{number}" for number in range(_CLUSTERS)]
    for number, name in enumerate(names):
        for obj in cluster_objects(fleet, name, number, number % _ACCOUNTS, name):
            await fleet.management.create(_KINDS[obj["kind"]], obj)
    deadline = time.monotonic() + _TIMEOUT
    while True:
        found = (await fleet.management.list(HARVESTER_CLUSTERS))["items"]
        if all((cluster.get("status") or {}).get("ready") for cluster in found):
            break
        if time.monotonic() > deadline:
            raise TimeoutError("clusters are not ready")
        await asyncio.sleep(1)
    provisioned = {"status": {"initialization": {"infrastructureProvisioned": True}}}
    for name in names:
        await fleet.management.patch(CLUSTERS, name, name, provisioned, subresource="status")
    return names


async def _single(fleet: _Fleet, clock: ApiClient, names: Sequence[str]) -> dict[str, Any]:
    """New machines, one every half second, and what the provider adds to the time that their VMs take."""
    for number in range(_SINGLE):
        await create_machine(fleet, random.choice(names), f"single-{number}")
        await asyncio.sleep(_PAUSE)
    times = await _until_done(clock, len(names) * _EACH + _SINGLE)
    found = [times[f"single-{number}"] for number in range(_SINGLE)]
    steps = [(one.vm - one.created, one.ready - one.address, one.initialized - one.node) for one in found]
    titles = ("machine created → VM created", "address seen → Ready", "node seen → initialized")
    return {
        **{f"added: {title}, s": spread(step[index] for step in steps) for index, title in enumerate(titles)},
        "added to a single machine, s": spread(map(sum, steps)),
    }


async def _until_done(clock: ApiClient, count: int) -> dict[str, Times]:
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        times = {name: Times(**found) for name, found in (await clock.request("GET", "/times")).items()}
        if sum(one.done > 0 for one in times.values()) >= count:
            return times
        await asyncio.sleep(2)
    raise TimeoutError(f"not all of {count} machines are ready")


def _client(stack: contextlib.AsyncExitStack, server: _Server) -> ApiClient:
    client = parse_kubeconfig(pki.to_yaml(server.kubeconfig("bench"))).client(
        name="bench", timeout=60.0, untrusted=False
    )
    stack.push_async_callback(client.close)
    return client
