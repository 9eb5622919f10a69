"""What several scenarios need: admission as users meet it, waiting on a watch, and our provider as a process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from caphv.api.object import NAMESPACES, Obj, Resource
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery
from sandbox import manifests
from sandbox.capi import providers
from sandbox.capi.core import CORE_VARIABLE
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.processes import binaries, children
from sandbox.state import SandboxSettings
from tests.support.paths import CHECKOUT
from tests.support.process import LOOPBACK

CLUSTERCTL = "clusterctl.cluster.x-k8s.io"
# Tests with a short form for `make test`, and a whole one for `make test-long`.
SHORT_AND_WHOLE = pytest.mark.parametrize(
    "whole", [pytest.param(False, id="short"), pytest.param(True, id="whole", marks=pytest.mark.long)]
)
HEALTH_CHECKS = Resource("cluster.x-k8s.io", "v1beta2", "machinehealthchecks", "MachineHealthCheck")


@contextmanager
def impatient_core() -> Iterator[None]:
    """Sandboxes use the core that retries soon, unless the environment names another one."""
    with pytest.MonkeyPatch.context() as patch:
        if CORE_VARIABLE not in os.environ:
            patch.setenv(CORE_VARIABLE, binaries.IMPATIENT_CORE.name)
        yield


@contextmanager
def running_sandbox(folder: Path, settings: SandboxSettings) -> Iterator[Sandbox]:
    """A sandbox for as long as the block lasts; its end leaves no process and no file."""
    binaries.prepare(further=providers.programs(settings))
    box = Sandbox(folder, settings)
    try:
        asyncio.run(box.up())
        yield box
        assert asyncio.run(box.down())
    finally:
        asyncio.run(children.stop_all(box.folder))


def crd(group: str, version: str, kind: str) -> Obj:
    """A CRD for any content: of kinds that are looked for, and that nothing here reads."""
    plural = f"{kind.lower()}s"
    labels = {CLUSTERCTL: "", f"cluster.x-k8s.io/{version}": version}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "labels": labels},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }


# Nothing in the sandbox stands for Talos's providers.
TALOS = [
    crd("controlplane.cluster.x-k8s.io", "v1alpha3", "TalosControlPlane"),
    crd("bootstrap.cluster.x-k8s.io", "v1alpha3", "TalosConfigTemplate"),
]


async def admitted(management: ApiClient, objects: Sequence[Obj]) -> None:
    """All webhooks take the objects, which are not made, and no field of them is unknown to the API server."""
    spaces = {obj["metadata"]["namespace"] for obj in objects}
    await manifests.apply(management, [kinds.typed(NAMESPACES, {"metadata": {"name": name}}) for name in spaces])
    discovery = Discovery(management)
    for obj in objects:
        resource = await discovery.resource(obj)
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        await management.request("POST", resource.path(obj["metadata"]["namespace"]), body=obj, query=query)


def holds(obj: Obj, kind: str) -> bool:
    """Whether a condition is true."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(entry["type"] == kind and entry["status"] == "True" for entry in conditions)


async def seen(
    client: ApiClient, namespace: str, resource: Resource, wanted: Callable[[Obj], bool], *, seconds: float = 200.0
) -> Obj:
    """The first object in a namespace that is as wanted, once it is there. Raises TimeoutError."""
    found: asyncio.Future[Obj] = asyncio.get_running_loop().create_future()
    informer = Informer(client, resource, namespace=namespace)

    def look(obj: Obj) -> None:
        if wanted(obj) and not found.done():
            found.set_result(obj)

    informer.add_handler(lambda change: look(change.obj))
    task = informer.start()
    try:
        return await asyncio.wait_for(found, seconds)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def our_provider(folder: Path, kubeconfig: Path) -> AsyncIterator[None]:
    """`caphv run` on a management cluster for as long as the block lasts; its log is in the folder."""
    options = (f"--kubeconfig={kubeconfig}", "--metrics-bind-address=0", "--leader-elect", LOOPBACK)
    command = [sys.executable, "-P", "-m", "caphv", "run", *options, "--health-probe-bind-address=0"]
    path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = children.start(folder, f"provider-of-{kubeconfig.stem}", command, env={"PYTHONPATH": path})
    try:
        yield
    finally:
        await children.end(process)
