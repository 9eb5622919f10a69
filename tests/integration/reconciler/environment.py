"""The provider as a process against real API servers and the simulated Harvester, shared by the tests of a session.

There is no Cluster API core here: each test plays it (see `case.py`), so that it decides when a Cluster is paused, a
bootstrap Secret appears or a Machine goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from caphv import data
from caphv.runtime.resource import Obj
from sandbox import binaries, manifests, network, pki, processes
from sandbox.apiserver import ApiServer, Etcd, Token, private_file
from sandbox.environment import SIMULATOR_READY_FILE, STATE_FILE
from sandbox.harvester.world import World
from sandbox.processes import Process
from sandbox.workload import FLAGS as WORKLOAD_FLAGS
from tests.conftest import CHECKOUT

USER_AGENT = "caphv"
IDENTITY_TOKEN = "canary-identity-token-5f0e4f0a"
TIMES = {
    "start_seconds": 0.05,
    "boot_seconds": 0.3,
    "boot_spread": 0.1,
    "stop_seconds": 0.3,
    "takeover_seconds": 0.05,
}
START_SECONDS = 60.0


class Provider:
    """One `caphv run`; `options` are further options of it. It logs at debug to `log`."""

    def __init__(self, folder: Path, name: str, server: ApiServer, *options: str) -> None:
        self._folder, self._name, self._options = folder, name, options
        self._kubeconfig = folder / f"{name}.kubeconfig"
        private_file(self._kubeconfig, pki.to_yaml(server.kubeconfig("caphv", ["system:masters"])))
        self._metrics, self._health = processes.free_ports(2)
        self._process: Process | None = None

    @property
    def log(self) -> str:
        """All it has logged, in all its starts."""
        return (self._folder / "logs" / f"{self._name}.log").read_text()

    async def start(self) -> None:
        """Start it and wait until its caches are filled."""
        arguments = [
            f"--kubeconfig={self._kubeconfig}",
            f"--metrics-bind-address=127.0.0.1:{self._metrics}",
            f"--health-probe-bind-address=127.0.0.1:{self._health}",
            "--log-level=debug",
            *self._options,
        ]
        command = [sys.executable, "-P", "-m", "caphv", "run", *arguments]
        self._process = processes.start(self._folder, self._name, command, env={"PYTHONPATH": str(CHECKOUT)})
        await processes.wait_ready(self._process, self._ready, START_SECONDS)

    async def stop(self) -> None:
        """Stop it as an update of its Deployment does."""
        if self._process:
            await processes.end(self._process)

    async def exposition(self) -> str:
        """Its metrics, as Prometheus reads them."""
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self._metrics}/metrics") as got:
            return await got.text()

    async def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Values of its metrics by name and labels."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self._metrics}/metrics") as got,
        ):
            families = text_string_to_metric_families(await got.text())
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    async def _ready(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=2)
            url = f"http://127.0.0.1:{self._health}/readyz"
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
                return answer.status == 200
        return False


@dataclass
class Environment:
    """What all tests share; `workload` is the API server of all workload clusters."""

    folder: Path
    management: ApiServer
    harvester: ApiServer
    workload: ApiServer
    world: World
    provider: Provider
    cases: int = field(default=0)

    @property
    def prefix(self) -> str:
        """First two octets of the addresses on Harvester, `127.<n>`."""
        return self.world.network.removesuffix(".0.0/16")

    def identity(self, token: str = IDENTITY_TOKEN) -> Obj:
        """A kubeconfig for Harvester, as a user downloads it."""
        server = self.harvester
        return pki.kubeconfig(
            server.url, server.ca.certificate, name="harvester", user="caphv", credentials={"token": token}
        )

    def requests(self, server: ApiServer, since: int = 0) -> Iterator[Obj]:
        """What the provider asked of an API server, as audit events; `since` is an `audit_position`."""
        with server.audit_log.open("rb") as file:
            file.seek(since)
            for line in file:
                event = json.loads(line)
                if event.get("userAgent") == USER_AGENT:
                    yield event

    def audit_position(self, server: ApiServer) -> int:
        """Where the audit log of an API server ends now."""
        return server.audit_log.stat().st_size


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Environment]:
    """Start everything in a folder; all processes end with the block."""
    binaries.prepare()
    with network.claim() as (claimed, _):
        try:
            yield asyncio.run(_start(folder, str(claimed)))
        finally:
            asyncio.run(processes.stop_all(folder))


async def _start(folder: Path, claimed: str) -> Environment:
    await Etcd(folder).start()
    identity = Token(IDENTITY_TOKEN, "caphv", ("system:masters",))
    management = ApiServer(folder, "management", audit=True)
    harvester = ApiServer(folder, "harvester", audit=True, tokens=[identity], service_range="10.53.0.0/16")
    workload = ApiServer(folder, "workload", flags=WORKLOAD_FLAGS)
    await asyncio.gather(*(server.start() for server in (management, harvester, workload)))
    for server in (management, harvester):
        private_file(folder / f"{server.name}.kubeconfig", pki.to_yaml(server.kubeconfig()))
    private_file(folder / STATE_FILE, json.dumps({"network": claimed, "settings": TIMES}).encode())
    async with management.client() as client:
        ours = manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml")))
        await manifests.apply(client, [*ours, *core_crds("v1beta2")])
    await _simulate(folder)
    provider = Provider(folder, "provider", management)
    await provider.start()
    return Environment(folder, management, harvester, workload, World.from_settings(claimed, TIMES), provider)


async def _simulate(folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "sandbox.simulate", f"--dir={folder}"]
    process = processes.start(folder, "simulator", command, env={"PYTHONPATH": str(CHECKOUT)})

    async def ready() -> bool:
        return (folder / SIMULATOR_READY_FILE).exists()

    await processes.wait_ready(process, ready, START_SECONDS)


def core_crds(version: str) -> list[Obj]:
    """Cluster and Machine of Cluster API, with any content and without webhooks."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{kind.lower()}s.cluster.x-k8s.io"},
            "spec": {
                "group": "cluster.x-k8s.io",
                "names": {"kind": kind, "plural": f"{kind.lower()}s"},
                "scope": "Namespaced",
                "versions": [
                    {
                        "name": version,
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": schema},
                        "subresources": {"status": {}},
                    }
                ],
            },
        }
        for kind in ("Cluster", "Machine")
    ]
