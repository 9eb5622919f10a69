"""What a benchmark runs on: real API servers, the simulated Harvester, and the provider as a process of its own.

The Cluster API core is left out: the benchmark writes what the core would write, so that only the provider is measured.
Each of the provider's identities has a user of its own, by which audit logs identify its requests.
"""

from __future__ import annotations

import asyncio
import base64
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
from caphv.api.object import Obj
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


@dataclass
class Requests:
    """Requests of the provider by API server and verb; watches are counted when they begin."""

    by_verb: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in SERVERS})

    @property
    def total(self) -> int:
        """All requests but watches."""
        return sum(count for verbs in self.by_verb.values() for verb, count in verbs.items() if verb != "watch")

    def minus(self, other: Requests) -> Requests:
        """Requests since another reading."""
        return Requests({name: self.by_verb[name] - other.by_verb[name] for name in SERVERS})


@dataclass(eq=False)
class Bench:
    """A running environment; `network` is the prefix of its VM addresses, `127.<n>`."""

    folder: Path
    network: str
    servers: dict[str, list[ApiServer]]
    management: ApiClient
    harvester: ApiClient
    workloads: list[ApiClient]
    provider: Process | None = None

    async def start_provider(self, concurrency: int = 32) -> None:
        """Start the provider as users do, as a process, with leader election."""
        kubeconfig = self.folder / "provider.kubeconfig"
        private_file(kubeconfig, pki.to_yaml(self.servers["management"][0].kubeconfig(PROVIDER_USER, _GROUPS)))
        (health,) = children.free_ports(1)
        command = [sys.executable, "-P", "-m", "caphv", "run", f"--kubeconfig={kubeconfig}", "--leader-elect"]
        command += ["--metrics-bind-address=0", f"--health-probe-bind-address=127.0.0.1:{health}"]
        command += [f"--concurrency={concurrency}", "--allow-harvester-cidr=127.0.0.0/8"]
        env = {"PYTHONPATH": str(Path(__file__).parent.parent), "POD_NAMESPACE": "caphv-system"}
        self.provider = children.start(self.folder, "provider", command, env=env)

        async def leads() -> bool:
            return "caches are in sync" in self.provider.log.read_text() if self.provider else False

        await children.wait_ready(self.provider, leads, 60)

    def provider_usage(self) -> tuple[float, float]:
        """CPU seconds so far and peak memory in MiB of the provider."""
        assert self.provider is not None
        process = psutil.Process(self.provider.pid)
        times = process.cpu_times()
        status = Path(f"/proc/{self.provider.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        return times.user + times.system, peak / 1024

    def cpu_by_part(self) -> Counter[str]:
        """Milliseconds of CPU so far of all that runs, by part; the benchmark itself is one of them."""
        found: Counter[str] = Counter()
        for process in [psutil.Process(), *children.find(self.folder)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found[_part(process.cmdline())] += round((times.user + times.system) * 1000)
        return found

    def requests(self) -> Requests:
        """Requests of the provider so far, from the audit logs."""
        found = Requests()
        for name, servers in self.servers.items():
            for server in servers:
                if server.audit_log.exists():
                    found.by_verb[name] += _count(server.audit_log)
        return found

    @functools.cache  # noqa: B019 - one environment a process
    def harvester_identity(self, account: int) -> bytes:
        """Kubeconfig of an account for identity Secrets."""
        return pki.to_yaml(self.servers["harvester"][0].kubeconfig(f"{PROVIDER_USER}-{account}", _GROUPS))

    async def sample_descriptors(self, seen: list[int]) -> None:
        """Note the open files of the provider, several times a second, until cancelled."""
        assert self.provider is not None
        process = psutil.Process(self.provider.pid)
        while True:
            seen.append(process.num_fds())
            await asyncio.sleep(0.25)

    def workload_kubeconfig(self, number: int) -> bytes:
        """Kubeconfig of the workload cluster that stands for cluster `number`."""
        return pki.to_yaml(self.workload(number).kubeconfig(PROVIDER_USER, _GROUPS))

    def workload(self, number: int) -> ApiServer:
        """API server of the workload cluster that stands for cluster `number`."""
        return self.servers["workload"][number % len(self.servers["workload"])]


@contextlib.asynccontextmanager
async def environment(*, workloads: int, boot_seconds: float, boot_spread: float) -> AsyncIterator[Bench]:
    """Start all but the provider, in a folder that is deleted afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="caphv-bench-"))
    settings = SandboxSettings(provider=False, audit=True, boot_seconds=boot_seconds, boot_spread=boot_spread)
    try:
        async with contextlib.AsyncExitStack() as stack:
            etcd = Etcd(folder)
            with network.claim() as (claimed, holder):
                await etcd.start(pass_fds=[holder.fileno()])
            names = ["management", "harvester", *(f"workload-{n}" for n in range(workloads))]
            flags = ("--disable-admission-plugins=TaintNodesByCondition",)
            servers = [
                ApiServer(folder, name, audit=True, flags=flags, tokens=[Token(join_token(name), *ADMIN)])
                if name.startswith("workload")
                else ApiServer(folder, name, audit=True)
                for name in names
            ]
            # All at once they only get into each other's way on two cores.
            for pair in zip(servers[::2], [*servers[1::2], None], strict=False):
                await asyncio.gather(*(server.start() for server in pair if server))
            for server in servers[:2]:
                private_file(folder / f"{server.name}.kubeconfig", pki.to_yaml(server.kubeconfig()))
            dataclasses.replace(State(settings), network=str(claimed)).save(folder)
            await _simulate(folder)
            clients = [_client(stack, server) for server in servers]
            await manifests.apply(clients[0], cluster_api_crds("clusters", "machines"))
            await manifests.apply(clients[0], manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml"))))
            namespace: Obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "caphv-system"}}
            await manifests.apply(clients[0], [namespace])
            groups = {"management": servers[:1], "harvester": servers[1:2], "workload": servers[2:]}
            prefix = str(claimed).removesuffix(".0.0/16")
            yield Bench(folder, prefix, groups, clients[0], clients[1], clients[2:])
    finally:
        await children.stop_all(folder)
        if not os.environ.get("CAPHV_BENCH_KEEP"):
            shutil.rmtree(folder, ignore_errors=True)


async def _simulate(folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "sandbox.simulate", f"--dir={folder}"]
    env = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    process = children.start(folder, "simulator", command, env=env)

    async def ready() -> bool:
        return (folder / "simulator.ready").exists()

    await children.wait_ready(process, ready, 60)


def _client(stack: contextlib.AsyncExitStack, server: ApiServer) -> ApiClient:
    client = parse_kubeconfig(pki.to_yaml(server.kubeconfig())).client(name="bench", timeout=60.0, untrusted=False)
    stack.push_async_callback(client.close)
    return client


def cluster_api_crds(*names: str) -> list[Obj]:
    """CRDs of the core by plural; without the core nothing converts, so that only the newest version is served."""
    bases = cluster_api_manifests() / "crd" / "bases"
    crds = manifests.read([bases / f"cluster.x-k8s.io_{name}.yaml" for name in names])
    for crd in crds:
        versions: list[dict[str, Any]] = crd["spec"]["versions"]
        crd["spec"]["versions"] = [version for version in versions if version["storage"]]
        crd["spec"].pop("conversion", None)
    return crds


def _count(log: Path) -> Counter[str]:
    counted: Counter[str] = Counter()
    with log.open("rb") as lines:
        for line in lines:
            if b'"username":"caphv' not in line:
                continue
            try:
                entry = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue  # the last line is being written
            if entry["user"]["username"].startswith(PROVIDER_USER) and entry["stage"] == _stage(entry["verb"]):
                kind = (entry.get("objectRef") or {}).get("resource", "")
                counted["lease" if kind == "leases" else entry["verb"]] += 1
    return counted


def _part(command: list[str]) -> str:
    server = re.search(r"--etcd-prefix=/([a-z]+)", " ".join(command))
    if server:
        return f"{server[1]} API"
    parts = {"sandbox.simulate": "simulated Harvester", "caphv": "provider", "bench": "benchmark"}
    return next((part for word, part in parts.items() if word in command), Path(command[0]).name)


def _stage(verb: str) -> str:
    return "ResponseStarted" if verb == "watch" else "ResponseComplete"


def encoded(value: bytes) -> str:
    """Base64 as Secrets want it."""
    return base64.b64encode(value).decode()


def join_token(server: str) -> str:
    """Join token of a workload API server; a benchmark has no secrets."""
    return f"bench-{server}"
