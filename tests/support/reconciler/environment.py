"""The provider as a process against real API servers and the simulated Harvester, shared by the tests of a session.

There is no Cluster API core here: each test plays it (see `case.py`), so that it decides when a Cluster is paused, a
bootstrap Secret appears or a Machine is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from caphv import data
from caphv.api.object import Obj
from sandbox import manifests
from sandbox.environment import SIMULATOR_READY_FILE, STATE_FILE
from sandbox.guest.workload import FLAGS as WORKLOAD_FLAGS
from sandbox.harvester.config import SimulatorConfig
from sandbox.processes import binaries, children, network, pki
from sandbox.processes.apiserver import ApiServer, Etcd, Token, private_file
from tests.support.paths import CHECKOUT
from tests.support.process import START_SECONDS, Caphv

USER_AGENT = "caphv"
IDENTITY_TOKEN = "canary-identity-token-5f0e4f0a"
TIMES = {
    "start_seconds": 0.05,
    "boot_seconds": 0.3,
    "boot_spread": 0.1,
    "stop_seconds": 0.3,
    "takeover_seconds": 0.05,
}

# Name and group of the account that the provider has on management clusters.
PROVIDER = ("caphv", "system:masters")


class Provider(Caphv):
    """One `caphv run`; `options` are further options of it."""

    def __init__(self, folder: Path, name: str, server: ApiServer, *options: str) -> None:
        super().__init__(folder, name, "--log-level=debug", *options)
        self.run_as(server, *PROVIDER)


@dataclass
class Environment:
    """What all tests share; `workload` is the API server of all workload clusters."""

    folder: Path
    management: ApiServer
    harvester: ApiServer
    workload: ApiServer
    world: SimulatorConfig
    provider: Provider
    cases: int = field(default=0)

    def next_case(self) -> int:
        """The number of a further case: its names and addresses on Harvester derive from it."""
        self.cases += 1
        return self.cases

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
                if not line.endswith(b"\n"):
                    return  # The server is still writing it.
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
            asyncio.run(children.stop_all(folder))


@contextlib.contextmanager
def elsewhere(environment: Environment, name: str) -> Iterator[Environment]:
    """A further management cluster for the same Harvester until the end of the block, and a provider to be started.

    It may be lost, unlike that of the environment.
    """
    found = asyncio.run(_elsewhere(environment, name))
    try:
        yield found
    finally:
        asyncio.run(found.provider.stop())
        asyncio.run(found.management.stop())


async def _elsewhere(environment: Environment, name: str) -> Environment:
    server = _management(environment.folder, name)
    await server.start()
    async with server.client() as client:
        ours = manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml")))
        await manifests.apply(client, [*ours, *core_crds("v1beta2")])
    provider = Provider(environment.folder, f"provider-{name}", server)
    return dataclasses.replace(environment, management=server, provider=provider)


def _management(folder: Path, name: str) -> ApiServer:
    user, *groups = PROVIDER
    return ApiServer(folder, name, audit=True, tokens=[Token.new(user, groups)])


async def _start(folder: Path, claimed: str) -> Environment:
    await Etcd(folder).start()
    identity = Token(IDENTITY_TOKEN, "caphv", ("system:masters",))
    management = _management(folder, "management")
    harvester = ApiServer(folder, "harvester", audit=True, tokens=[identity], service_range="10.53.0.0/16")
    workload = ApiServer(folder, "workload", flags=WORKLOAD_FLAGS)
    await asyncio.gather(*(server.start() for server in (management, harvester, workload)))
    for server in (management, harvester):
        private_file(folder / f"{server.name}.kubeconfig", pki.to_yaml(server.kubeconfig()))
    private_file(folder / STATE_FILE, json.dumps({"network": claimed, "settings": TIMES, "core": ""}).encode())
    async with management.client() as client:
        ours = manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml")))
        await manifests.apply(client, [*ours, *core_crds("v1beta2")])
    await _simulate(folder)
    provider = Provider(folder, "provider", management)
    await provider.start()
    return Environment(folder, management, harvester, workload, SimulatorConfig.from_settings(claimed, TIMES), provider)


async def _simulate(folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "sandbox.simulate", f"--dir={folder}"]
    process = children.start(folder, "simulator", command, env={"PYTHONPATH": str(CHECKOUT)})

    async def ready() -> bool:
        return (folder / SIMULATOR_READY_FILE).exists()

    await children.wait_ready(process, ready, START_SECONDS)


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
