"""The environment of a benchmark: real API servers, the simulated Harvester, and the provider.

The Cluster API core is left out: the benchmark writes what the core would write, so that only the
provider is measured. Each of the provider's identities has a user of its own, by which audit logs
identify its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil

from caphv import data
from caphv.api.object import Obj, at
from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import manifests
from sandbox.processes import children, network, pki
from sandbox.processes.apiserver import ADMIN, ApiServer, Etcd, Token, private_file
from sandbox.processes.binaries import cluster_api_manifests
from sandbox.processes.children import Process
from sandbox.state import SandboxSettings, State

PROVIDER_USER = "caphv"
SERVERS = ("management", "harvester", "workload")
_GROUPS = ["system:masters"]

CHECKOUT = Path(__file__).parents[2]
"""The checkout of this benchmark, whose provider runs unless another one is named."""


@dataclass
class Requests:
    """Requests of the provider by API server and verb; watches are counted when they begin."""

    by_verb: dict[str, Counter[str]] = field(
        default_factory=lambda: {name: Counter() for name in SERVERS}
    )

    @property
    def total(self) -> int:
        """Return the number of all requests but watches."""
        return sum(
            count
            for verbs in self.by_verb.values()
            for verb, count in verbs.items()
            if verb != "watch"
        )

    def subtract(self, other: Requests) -> Requests:
        """Return the requests since another reading."""
        return Requests({name: self.by_verb[name] - other.by_verb[name] for name in SERVERS})


@dataclass(eq=False)
class Bench:
    """A running environment. `network` is the prefix of the VM addresses, `127.<n>`."""

    folder: Path
    network: str
    servers: dict[str, list[ApiServer]]
    management: ApiClient
    harvester: ApiClient
    workloads: list[ApiClient]
    provider: Process | None = None

    async def start_provider(self, checkout: Path) -> None:
        """Start the provider of a checkout as users do, as a process, with leader election."""
        kubeconfig = self.folder / "provider.kubeconfig"
        private_file(
            kubeconfig,
            pki.to_yaml(self.servers["management"][0].kubeconfig(PROVIDER_USER, _GROUPS)),
        )

        (health,) = children.free_ports(1)
        command = [
            *(sys.executable, "-P", "-m", "caphv", "run"),
            f"--kubeconfig={kubeconfig}",
            "--leader-elect",
            "--metrics-bind-address=0",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            "--concurrency=32",
            "--allow-harvester-cidr=127.0.0.0/8",
        ]
        env = {"PYTHONPATH": str(checkout), "POD_NAMESPACE": "caphv-system"}
        self.provider = children.start(self.folder, "provider", command, env=env)

        # The provider is alive before its caches are in sync, but reconciles only afterwards.
        log = self.provider.log

        async def has_synced() -> bool:
            return "caches are in sync" in log.read_text()

        await children.wait_ready(self.provider, has_synced, 60)

    def provider_usage(self) -> tuple[float, float]:
        """Return CPU seconds so far and peak memory in MiB of the provider."""
        assert self.provider is not None
        process = psutil.Process(self.provider.pid)
        times = process.cpu_times()
        status = Path(f"/proc/{self.provider.pid}/status").read_text()
        peak = next(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")
        )
        return times.user + times.system, peak / 1024

    def cpu_by_part(self) -> Counter[str]:
        """Return the milliseconds of CPU so far by part, the benchmark included."""
        milliseconds: Counter[str] = Counter()
        for process in [psutil.Process(), *children.find(self.folder)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                part = _part_of(process.cmdline())
                milliseconds[part] += round((times.user + times.system) * 1000)
        return milliseconds

    def requests(self) -> Requests:
        """Return the requests of the provider so far, from the audit logs."""
        requests = Requests()
        for name, servers in self.servers.items():
            for server in servers:
                if server.audit_log.exists():
                    requests.by_verb[name] += _count_requests(server.audit_log)
        return requests

    @functools.cache  # noqa: B019 - one environment a process
    def harvester_identity(self, account: int) -> bytes:
        """Return the kubeconfig of an account for identity Secrets."""
        return pki.to_yaml(
            self.servers["harvester"][0].kubeconfig(f"{PROVIDER_USER}-{account}", _GROUPS)
        )

    async def sample_descriptors(self, seen: list[int]) -> None:
        """Append the number of the provider's open files to `seen` four times a second.

        Runs until cancelled.
        """
        assert self.provider is not None
        process = psutil.Process(self.provider.pid)
        while True:
            seen.append(process.num_fds())
            await asyncio.sleep(0.25)

    def workload_kubeconfig(self, number: int) -> bytes:
        """Return the kubeconfig of the workload cluster that is used for cluster `number`."""
        return pki.to_yaml(self.workload(number).kubeconfig(PROVIDER_USER, _GROUPS))

    def workload(self, number: int) -> ApiServer:
        """Return the API server of the workload cluster that is used for cluster `number`."""
        return self.servers["workload"][number % len(self.servers["workload"])]


@contextlib.asynccontextmanager
async def environment(*, workloads: int, boot_seconds: float) -> AsyncIterator[Bench]:
    """Start all but the provider, in a folder that is deleted afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="caphv-bench-"))
    settings = SandboxSettings(provider=False, audit=True, boot_seconds=boot_seconds)
    try:
        async with contextlib.AsyncExitStack() as stack:
            etcd = Etcd(folder)
            with network.claim() as (loopback, holder):
                await etcd.start(pass_fds=[holder.fileno()])
            servers = _build_servers(folder, workloads)
            # Start two at a time, because more of them slow each other down on two cores.
            for first in range(0, len(servers), 2):
                pair = servers[first : first + 2]
                await asyncio.gather(*(server.start() for server in pair))

            # The simulator reads the kubeconfigs and the state.
            for server in servers[:2]:
                private_file(folder / f"{server.name}.kubeconfig", pki.to_yaml(server.kubeconfig()))
            dataclasses.replace(State(settings), network=str(loopback)).save(folder)
            await _start_simulator(folder)

            clients = [_open_client(stack, server) for server in servers]
            ours = manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml")))
            namespace: Obj = {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": "caphv-system"},
            }
            await manifests.apply(clients[0], cluster_api_crds("clusters", "machines"))
            await manifests.apply(clients[0], [*ours, namespace])

            groups = {
                "management": servers[:1],
                "harvester": servers[1:2],
                "workload": servers[2:],
            }
            prefix = str(loopback).removesuffix(".0.0/16")
            yield Bench(
                folder=folder,
                network=prefix,
                servers=groups,
                management=clients[0],
                harvester=clients[1],
                workloads=clients[2:],
            )
    finally:
        await children.stop_all(folder)
        if not os.environ.get("CAPHV_BENCH_KEEP"):
            shutil.rmtree(folder, ignore_errors=True)


def _build_servers(folder: Path, workloads: int) -> list[ApiServer]:
    """Return the API servers of the management cluster, Harvester and the workload clusters."""
    servers = [ApiServer(folder, name, audit=True) for name in ("management", "harvester")]
    for name in (f"workload-{number}" for number in range(workloads)):
        # The plugin taints new Nodes as not ready, and no controller would remove the taint.
        flags = ("--disable-admission-plugins=TaintNodesByCondition",)
        tokens = [Token(join_token(name), *ADMIN)]
        servers.append(ApiServer(folder, name, audit=True, flags=flags, tokens=tokens))
    return servers


async def _start_simulator(folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "sandbox.simulate", f"--dir={folder}"]
    env = {"PYTHONPATH": str(CHECKOUT)}
    process = children.start(folder, "simulator", command, env=env)

    async def is_ready() -> bool:
        return (folder / "simulator.ready").exists()

    await children.wait_ready(process, is_ready, 60)


def _open_client(stack: contextlib.AsyncExitStack, server: ApiServer) -> ApiClient:
    client = parse_kubeconfig(pki.to_yaml(server.kubeconfig())).client(
        name="bench", timeout=60.0, untrusted=False
    )
    stack.push_async_callback(client.close)
    return client


def cluster_api_crds(*names: str) -> list[Obj]:
    """Read CRDs of the core by plural, with the stored version only."""
    # Without the core, nothing serves the webhook that converts older versions.
    bases = cluster_api_manifests() / "crd" / "bases"
    crds = manifests.read([bases / f"cluster.x-k8s.io_{name}.yaml" for name in names])
    for crd in crds:
        versions: list[dict[str, Any]] = crd["spec"]["versions"]
        crd["spec"]["versions"] = [version for version in versions if version["storage"]]
        crd["spec"].pop("conversion", None)
    return crds


def _count_requests(log: Path) -> Counter[str]:
    """Count the provider's requests in an audit log by verb, and its requests for leases apart."""
    counts: Counter[str] = Counter()
    with log.open("rb") as lines:
        for line in lines:
            # Parsing all lines would take seconds.
            if b'"username":"caphv' not in line:
                continue
            try:
                entry = orjson.loads(line)
            except orjson.JSONDecodeError:
                # The server has written only a part of the last line.
                continue

            # Count a watch when it begins, because its completion is recorded when it ends.
            verb = entry["verb"]
            stage = "ResponseStarted" if verb == "watch" else "ResponseComplete"
            if entry["user"]["username"].startswith(PROVIDER_USER) and entry["stage"] == stage:
                kind = at(entry, "objectRef", "resource")
                counts["lease" if kind == "leases" else verb] += 1
    return counts


def _part_of(command: list[str]) -> str:
    server = re.search(r"--etcd-prefix=/([a-z]+)", " ".join(command))
    if server:
        return f"{server[1]} API"
    parts = {"sandbox.simulate": "simulated Harvester", "caphv": "provider", "bench": "benchmark"}
    return next((part for word, part in parts.items() if word in command), Path(command[0]).name)


def join_token(server: str) -> str:
    """Return the join token of a workload API server; a benchmark has no secrets."""
    return f"bench-{server}"
