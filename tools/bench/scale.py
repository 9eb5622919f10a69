"""Workload X: 5,000 machines are created at once, converge and idle, and then single machines.

One process stands in for the API servers of the management cluster, all Harvesters and all workload
clusters (`tools.bench.standin`): real ones do not fit on one machine.
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

from caphv.api.object import NAMESPACES, SECRETS, Obj, at
from caphv.api.resources import HARVESTER_CLUSTERS, HARVESTER_MACHINES
from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox.capi.resources import CLUSTERS
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.fixtures import seed
from sandbox.processes import children, pki
from sandbox.processes.apiserver import private_file
from tools.bench.environment import CHECKOUT, Bench
from tools.bench.machines import cluster_objects, create_machine, create_machines
from tools.bench.standin import READY_FILE
from tools.bench.times import Times, spread

NAME = "X"
_CLUSTERS = 250
_MACHINES_PER_CLUSTER = 20
_HARVESTERS = 10
_ACCOUNTS = 50
_SINGLE_MACHINES = 100
_PAUSE_SECONDS = 0.5
_TIMEOUT_SECONDS = 1800.0
_KINDS = {
    kind.kind: kind
    for kind in (NAMESPACES, SECRETS, CLUSTERS, HARVESTER_CLUSTERS, HARVESTER_MACHINES)
}


@dataclass(frozen=True)
class _Server:
    """A server that the stand-in simulates. It has those parts of `ApiServer` that `Bench` uses."""

    name: str
    url: str
    ca: pki.CA

    def kubeconfig(self, user: str, _groups: Sequence[str] = ()) -> Obj:
        """Build a kubeconfig with a token that the stand-in ignores."""
        return pki.kubeconfig(
            self.url, self.ca.certificate, name=self.name, user=user, credentials={"token": user}
        )


class _Fleet(Bench):
    def server(self, path: str) -> _Server:
        # All servers are behind one address; the path names them.
        front = cast(_Server, self.servers["management"][0])
        return _Server(path, f"{front.url.rpartition('/')[0]}/{path}", front.ca)

    @functools.cache  # noqa: B019 - one environment a process
    def harvester_identity(self, account: int) -> bytes:
        return pki.to_yaml(
            self.server(f"harvester/{account % _HARVESTERS}").kubeconfig(f"account-{account}")
        )

    def workload_kubeconfig(self, number: int) -> bytes:
        return pki.to_yaml(self.server(f"workload/{number}").kubeconfig("caphv"))

    def workload(self, number: int) -> Any:
        return self.server(f"workload/{number}")


async def measure(idle_seconds: float, provider: Path) -> dict[str, Any]:
    """Run the workload with the provider of a checkout; return its figures by name."""
    async with _fleet() as fleet, contextlib.AsyncExitStack() as stack:
        clock = _open_client(stack, fleet.server("front"))
        for number in range(_HARVESTERS):
            await seed(
                _open_client(stack, fleet.server(f"harvester/{number}")),
                SimulatorConfig.from_settings("127.64.0.0/16"),
            )
        await fleet.start_provider(provider)
        descriptors: list[int] = []
        sampling = asyncio.create_task(fleet.sample_descriptors(descriptors))

        started = time.monotonic()
        names = await _create_clusters(fleet)
        figures: dict[str, Any] = {"clusters ready after s": round(time.monotonic() - started, 1)}

        figures |= await _measure_all(fleet, clock, names)
        # The provider still works on the last machines for a moment.
        await asyncio.sleep(10)
        if idle_seconds:
            cpu, _ = fleet.provider_usage()
            await asyncio.sleep(idle_seconds)
            share = (fleet.provider_usage()[0] - cpu) / idle_seconds
            figures["CPU while idle, % of a core"] = round(share * 100, 2)
        figures |= await _measure_single(fleet, clock, names)

        figures["peak memory, MiB"] = round(fleet.provider_usage()[1], 1)
        figures["open files, most"] = max(descriptors)
        sampling.cancel()
        return figures


async def _measure_all(fleet: _Fleet, clock: ApiClient, names: Sequence[str]) -> dict[str, Any]:
    """Create all machines as fast as the stand-in takes them."""
    started = time.monotonic()
    cpu, _ = fleet.provider_usage()
    pairs = [
        (cluster, f"{cluster}-m{number}")
        for number in range(_MACHINES_PER_CLUSTER)
        for cluster in names
    ]
    await create_machines(fleet, pairs)
    await _wait_until_done(clock, len(pairs))

    used = fleet.provider_usage()[0] - cpu
    return {
        "machines": len(pairs),
        "all ready after s": round(time.monotonic() - started, 1),
        "CPU a machine until ready, ms": round(used / len(pairs) * 1000, 1),
    }


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
            module = (sys.executable, "-P", "-m", "tools.bench.standin")
            command = [*module, f"--dir={folder}", f"--port={port}"]
            env = {"PYTHONPATH": str(CHECKOUT)}
            process = children.start(folder, "standin", command, env=env)

            async def is_ready() -> bool:
                return (folder / READY_FILE).exists()

            await children.wait_ready(process, is_ready, 60)

            # `Bench` uses only the parts of its servers that `_Server` has.
            management = _Server("management", f"https://127.0.0.1:{port}/management", ca)
            servers = {"management": cast(Any, [management])}
            client = _open_client(stack, management)
            yield _Fleet(folder, "127.64", servers, client, client, [])
    finally:
        await children.stop_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


async def _create_clusters(fleet: _Fleet) -> list[str]:
    names = [f"x-{number}" for number in range(_CLUSTERS)]
    for number, name in enumerate(names):
        for obj in cluster_objects(fleet, name, number, number % _ACCOUNTS, name):
            await fleet.management.create(_KINDS[obj["kind"]], obj)

    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        clusters = (await fleet.management.list(HARVESTER_CLUSTERS))["items"]
        if all(at(cluster, "status", "ready") for cluster in clusters):
            break
        if time.monotonic() > deadline:
            raise TimeoutError("clusters are not ready")
        await asyncio.sleep(1)

    # The provider creates machines only after the core has reported this.
    provisioned = {"status": {"initialization": {"infrastructureProvisioned": True}}}
    for name in names:
        await fleet.management.patch(CLUSTERS, name, name, provisioned, subresource="status")
    return names


async def _measure_single(fleet: _Fleet, clock: ApiClient, names: Sequence[str]) -> dict[str, Any]:
    """Create a machine every half second; return the seconds that the provider adds to each."""
    for number in range(_SINGLE_MACHINES):
        await create_machine(fleet, random.choice(names), f"single-{number}")
        await asyncio.sleep(_PAUSE_SECONDS)

    times = await _wait_until_done(clock, len(names) * _MACHINES_PER_CLUSTER + _SINGLE_MACHINES)
    single = [times[f"single-{number}"] for number in range(_SINGLE_MACHINES)]
    # Between these steps of the provider, the VM boots and its Node registers.
    steps = [
        (item.vm - item.created, item.ready - item.address, item.initialized - item.node)
        for item in single
    ]
    titles = ("machine created → VM created", "address seen → Ready", "node seen → initialized")
    figures = {
        f"added: {title}, s": spread(step[index] for step in steps)
        for index, title in enumerate(titles)
    }
    figures["added to a single machine, s"] = spread(map(sum, steps))
    return figures


async def _wait_until_done(clock: ApiClient, count: int) -> dict[str, Times]:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        answer = await clock.request("GET", "/times")
        times = {name: Times(**fields) for name, fields in answer.items()}
        if sum(item.done > 0 for item in times.values()) >= count:
            return times
        await asyncio.sleep(2)
    raise TimeoutError(f"not all of {count} machines are ready")


def _open_client(stack: contextlib.AsyncExitStack, server: _Server) -> ApiClient:
    client = parse_kubeconfig(pki.to_yaml(server.kubeconfig("bench"))).client(
        name="bench", timeout=60.0, untrusted=False
    )
    stack.push_async_callback(client.close)
    return client
