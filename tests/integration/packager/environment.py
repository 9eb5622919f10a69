"""The packager as a process against a real API server and a real repository; a test plays Cluster API and Fleet."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from caphv import data
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.resource import EVENTS, NAMESPACES, Obj, Resource
from sandbox import manifests, pki, processes
from sandbox.apiserver import ApiServer, private_file
from sandbox.processes import Process
from tests.conftest import CHECKOUT
from tests.integration.packager.support import Origin

CLUSTERS = Resource("cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")
CLASSES = Resource("cluster.x-k8s.io", "v1beta2", "clusterclasses", "ClusterClass")
HARVESTER_CLUSTERS = Resource("infrastructure.cluster.x-k8s.io", "v1beta1", "harvesterclusters", "HarvesterCluster")
CONTROL_PLANES = Resource("controlplane.cluster.x-k8s.io", "v1beta2", "rke2controlplanes", "RKE2ControlPlane")
FLEET_CLUSTERS = Resource("fleet.cattle.io", "v1alpha1", "clusters", "Cluster")
FLEET_BUNDLES = Resource("fleet.cattle.io", "v1alpha1", "bundles", "Bundle")
GIT_REPOS = Resource("fleet.cattle.io", "v1alpha1", "gitrepos", "GitRepo")
READY = "AddonBundlesReady"
START_SECONDS = 60.0
PATIENCE = 40.0
_numbers = itertools.count(1)


def crd(resource: Resource) -> Obj:
    """A kind of somebody else, with any content and without webhooks."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": resource.version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(resource)},
        "spec": {
            "group": resource.group,
            "names": {"kind": resource.kind, "plural": resource.plural},
            "scope": "Namespaced",
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


async def install(server: ApiServer, *kinds: Resource) -> None:
    """Put our CRDs and those of others on an API server."""
    ours = manifests.read(sorted(data.folder("deploy/crds").glob("infrastructure*.yaml")))
    async with server.client() as client:
        await manifests.apply(client, [*ours, *map(crd, kinds)])


class Packager:
    """One `caphv packager run`, or another command that runs it; `options` are further options of it."""

    def __init__(self, folder: Path, server: ApiServer, *options: str, command: tuple[str, ...] = ("packager", "run")):
        self.name = f"packager-{next(_numbers)}"
        self._folder, self._command, self._options = folder, command, options
        self._kubeconfig = folder / f"{self.name}.kubeconfig"
        private_file(self._kubeconfig, pki.to_yaml(server.kubeconfig("packager", ["system:masters"])))
        self._metrics, self._health = processes.free_ports(2)
        self._process: Process | None = None
        self.environment: dict[str, str] = {}

    @property
    def log(self) -> str:
        return (self._folder / "logs" / f"{self.name}.log").read_text()

    def launch(self) -> Process:
        arguments = [
            f"--kubeconfig={self._kubeconfig}",
            f"--metrics-bind-address=127.0.0.1:{self._metrics}",
            f"--health-probe-bind-address=127.0.0.1:{self._health}",
            "--log-level=debug",
            *self._options,
        ]
        command = [sys.executable, "-P", "-m", "caphv", *self._command, *arguments]
        environment = {"PYTHONPATH": str(CHECKOUT), **self.environment}
        self._process = processes.start(self._folder, self.name, command, env=environment)
        return self._process

    async def start(self) -> None:
        await processes.wait_ready(self.launch(), self._ready, START_SECONDS)

    async def stop(self) -> None:
        if self._process:
            await processes.end(self._process)

    async def kill(self) -> None:
        """End it at once, and whatever it has started with it."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            await processes.end(self._process)

    async def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self._metrics}/metrics") as got:
            families = text_string_to_metric_families(await got.text())
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    async def value(self, name: str, **labels: str) -> float | None:
        return (await self.metrics()).get((name, frozenset(labels.items())))

    async def _ready(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=2)
            url = f"http://127.0.0.1:{self._health}/readyz"
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
                return answer.status == 200
        return False


class Case:
    """A namespace of a test's own, a repository, and the packagers that keep it true to that namespace."""

    def __init__(self, server: ApiServer, client: ApiClient, folder: Path, origin: Origin) -> None:
        self.server, self.client, self.folder, self.origin = server, client, folder, origin
        self.namespace = f"team-{next(_numbers)}"
        self._packagers: list[Packager] = []

    def packager(self, *options: str, url: str = "") -> Packager:
        """One that is not started; it works fast."""
        own = (f"--repo={url or self.origin.url}", f"--namespace={self.namespace}", "--debounce=0.3")
        packager = Packager(self.folder, self.server, *own, *options)
        self._packagers.append(packager)
        return packager

    async def running(self, *options: str, url: str = "") -> Packager:
        packager = self.packager(*options, url=url)
        await packager.start()
        return packager

    async def close(self) -> None:
        for packager in self._packagers:
            await packager.stop()

    # Objects

    async def cluster(self, name: str, *, values: Mapping[str, Any] | None = None, **annotations: str) -> None:
        """Create a Cluster with its HarvesterCluster and control plane, as Cluster API's core leaves them."""
        if values is not None:
            annotations["addons.caphv.io/values"] = json.dumps(values)
        metadata = {"name": name, "namespace": self.namespace}
        spec = {"targetNamespace": "default", "identitySecret": {"name": "identity", "namespace": "default"}}
        harvester = {
            "apiVersion": HARVESTER_CLUSTERS.api_version,
            "kind": HARVESTER_CLUSTERS.kind,
            "metadata": metadata,
            "spec": {**spec, "server": "https://harvester.example.com", "loadBalancerConfig": {"ipamType": "dhcp"}},
        }
        control_plane = {
            "apiVersion": CONTROL_PLANES.api_version,
            "kind": CONTROL_PLANES.kind,
            "metadata": metadata,
            "spec": {"replicas": 3, "version": "v1.34.2+rke2r1", "serverConfig": {"cni": "calico"}},
        }
        cluster = {
            "apiVersion": CLUSTERS.api_version,
            "kind": CLUSTERS.kind,
            "metadata": {**metadata, "annotations": annotations},
            "spec": {
                "infrastructureRef": _ref(HARVESTER_CLUSTERS, name),
                "controlPlaneRef": _ref(CONTROL_PLANES, name),
            },
        }
        await self.client.create(HARVESTER_CLUSTERS, harvester)
        await self.client.create(CONTROL_PLANES, control_plane)
        await self.client.create(CLUSTERS, cluster)

    async def set_values(self, name: str, values: Mapping[str, Any]) -> None:
        await self.annotate(name, **{"addons.caphv.io/values": json.dumps(values)})

    async def annotate(self, name: str, **annotations: str | None) -> None:
        await self.client.patch(CLUSTERS, name, self.namespace, {"metadata": {"annotations": annotations}})

    async def delete(self, name: str) -> None:
        for resource in (HARVESTER_CLUSTERS, CONTROL_PLANES, CLUSTERS):
            await self.client.delete(resource, name, self.namespace)

    async def condition(self, name: str) -> Obj:
        found = await self.client.get(HARVESTER_CLUSTERS, name, self.namespace)
        rows = (found.get("status") or {}).get("conditions") or []
        return next((row for row in rows if row["type"] == READY), {})

    async def until_condition(self, name: str, status: str, reason: str = "", part: str = "") -> Obj:
        found: Obj = {}

        async def holds() -> bool:
            nonlocal found
            found = await self.condition(name)
            return (
                found.get("status") == status
                and (not reason or found.get("reason") == reason)
                and part in found.get("message", "")
            )

        await until(holds, lambda: f"{name}: wanted {status} {reason} {part!r}, has {found}")
        return found

    async def until_event(self, reason: str, part: str = "") -> Obj:
        found: list[Obj] = []

        async def there() -> bool:
            listed = await self.client.list(EVENTS, self.namespace)
            found[:] = [row for row in listed["items"] if row["reason"] == reason and part in row["message"]]
            return bool(found)

        await until(there, lambda: f"no Event {reason} {part!r}")
        return found[0]

    # Repository

    def count(self) -> int:
        """Commits on the branch, 0 where there is none."""
        branches = {"main"} & set(self.origin.branches())
        return self.origin.count() if branches else 0

    def mine(self, name: str) -> set[str]:
        """Files of a cluster in the repository, relative to its folder."""
        top = f"clusters/{self.namespace}/{name}/"
        files = self.origin.files() if self.count() else {}
        return {path.removeprefix(top) for path in files if path.startswith(top)}

    async def until_count(self, number: int) -> None:
        await until(self._counts(number), lambda: f"wanted {number} commits, there are {self.count()}")

    def _counts(self, number: int) -> Callable[[], Awaitable[bool]]:
        async def counts() -> bool:
            return self.count() == number

        return counts


def _ref(resource: Resource, name: str) -> Obj:
    return {"apiGroup": resource.group, "kind": resource.kind, "name": name}


async def until(condition: Callable[[], Awaitable[bool]], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def opened(server: ApiServer, folder: Path, origin: Origin) -> AsyncIterator[Case]:
    """A case for as long as the block lasts; its objects and processes go with it."""
    async with server.client() as client:
        case = Case(server, client, folder, origin)
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": case.namespace}})
        try:
            yield case
        finally:
            await case.close()
            for resource in (CLUSTERS, HARVESTER_CLUSTERS, CONTROL_PLANES):
                with contextlib.suppress(NotFound):
                    for obj in (await client.list(resource, case.namespace))["items"]:
                        await client.delete(resource, obj["metadata"]["name"], case.namespace)
