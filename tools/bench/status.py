"""Measure `caphv status` for a whole fleet: `python -m tools.bench.status --help`.

The management cluster is a real API server with the CRDs of Cluster API and the objects that its
controllers would leave there. Each run is a separate process, as when a user starts the command.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import click
import uvloop

from caphv import data
from caphv.api.object import NAMESPACES, Obj, Resource
from caphv.api.resources import HARVESTER_CLUSTERS, HARVESTER_MACHINES, machine_deployments
from caphv.runtime.client import ApiClient
from sandbox import manifests
from sandbox.capi.crds import custom_resource_definitions
from sandbox.capi.distribution import RKE2
from sandbox.capi.resources import CLUSTERS, MACHINES
from sandbox.cluster import CLUSTER_LABEL, KUBERNETES_VERSION
from sandbox.processes import binaries, children, pki
from sandbox.processes.apiserver import ApiServer, Etcd, private_file
from tools.bench.environment import cluster_api_crds
from tools.bench.machines import machine_spec
from tools.bench.times import spread

_CHECKOUT = Path(__file__).parents[2]
_IN_FLIGHT = 32
_PER_NAMESPACE = 20
_CORE_KINDS = ("clusters", "machines", "machinedeployments")
_VERSION = f"{KUBERNETES_VERSION}+rke2r1"
_COMMANDS = {
    "caphv --help": ("--help",),
    "caphv status --help": ("status", "--help"),
    "caphv status -A": ("status", "-A"),
    "caphv status -A -o json": ("status", "-A", "-o", "json"),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--clusters", default=200, help="Clusters on the management cluster.")
@click.option(
    "--machines", default=5, help="Machines of each cluster; one of them is in its control plane."
)
@click.option(
    "--runs", default=5, help="Counted runs of each command, after one that is not counted."
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def main(clusters: int, machines: int, runs: int, output: str) -> None:
    """Measure how long `caphv status` takes for a fleet, and how long the command line takes to
    start.
    """
    binaries.prepare(
        binaries.plain_report(lambda name, step, *_: print(f"{name}: {step}", file=sys.stderr))
    )

    results = uvloop.run(measure(clusters, machines, runs))
    if output == "json":
        print(json.dumps(results, indent=2))
        return
    print(f"{clusters} clusters with {machines} machines each")
    for name, figures in results.items():
        print(f"  {name:<26} " + ", ".join(f"{key} {value}" for key, value in figures.items()))


async def measure(clusters: int, machines: int, runs: int) -> dict[str, dict[str, float]]:
    """Return seconds of each command: median, 99th percentile, maximum, and CPU of its process."""
    async with management() as (server, kubeconfig):
        async with server.client() as client:
            await fill(client, clusters, machines)

        results = {}
        for name, arguments in _COMMANDS.items():
            target = ("--kubeconfig", str(kubeconfig)) if "-A" in arguments else ()
            # The first run reads files that later runs find in the page cache.
            figures = [await _run((*arguments, *target)) for _ in range(runs + 1)][1:]
            cpu = statistics.median(seconds for _, seconds in figures)
            results[name] = {**spread(seconds for seconds, _ in figures), "CPU": round(cpu, 3)}
        return results


@asynccontextmanager
async def management() -> AsyncIterator[tuple[ApiServer, Path]]:
    """Lend a management cluster without controllers, and its kubeconfig."""
    folder = Path(tempfile.mkdtemp(prefix="caphv-bench-"))
    try:
        await Etcd(folder).start()
        server = ApiServer(folder, "management")
        await server.start()
        kubeconfig = folder / "management.kubeconfig"
        private_file(kubeconfig, pki.to_yaml(server.kubeconfig()))

        async with server.client() as client:
            ours = manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml")))
            await manifests.apply(
                client, [*cluster_api_crds(*_CORE_KINDS), *custom_resource_definitions(), *ours]
            )

        yield server, kubeconfig
    finally:
        await children.stop_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


async def fill(client: ApiClient, clusters: int, machines: int) -> None:
    """Create clusters in the state of working ones. In every tenth cluster, a VM is lost."""
    namespaces = sorted({_namespace(number) for number in range(clusters)})
    await asyncio.gather(
        *(client.create(NAMESPACES, {"metadata": {"name": name}}) for name in namespaces)
    )

    gate = asyncio.Semaphore(_IN_FLIGHT)

    async def create(resource: Resource, obj: Obj) -> None:
        async with gate:
            metadata = obj["metadata"]
            await client.create(
                resource, {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
            )
            # At a creation, the API server drops the status of kinds with this subresource.
            status = {"status": obj["status"]}
            await client.patch(
                resource, metadata["name"], metadata["namespace"], status, subresource="status"
            )

    pairs = (pair for number in range(clusters) for pair in _objects(number, machines))
    await asyncio.gather(*(create(resource, obj) for resource, obj in pairs))


def _objects(number: int, machines: int) -> Iterable[tuple[Resource, Obj]]:
    """Yield the objects of a cluster with the fields that `caphv status` reads."""
    name = f"cluster-{number}"
    counts = {"desiredReplicas": 1, "replicas": 1, "availableReplicas": 1, "upToDateReplicas": 1}
    workers = dict.fromkeys(counts, machines - 1)
    control_plane = RKE2.control_planes

    spec: Obj = {
        "topology": {"classRef": {"name": "harvester-rke2"}, "version": _VERSION},
        "controlPlaneRef": _reference(control_plane, name),
        "infrastructureRef": _reference(HARVESTER_CLUSTERS, name),
        "controlPlaneEndpoint": {"host": f"10.0.{number // 250}.{number % 250 + 1}", "port": 6443},
    }
    status: Obj = {"phase": "Provisioned", "conditions": [_condition("Available")]}
    yield CLUSTERS, _obj(name, number, spec, {**status, "controlPlane": counts, "workers": workers})

    infrastructure = {
        "targetNamespace": name,
        "identitySecret": {"name": "identity", "namespace": _namespace(number)},
        "loadBalancerConfig": {"ipamType": "dhcp"},
    }
    status = {"ready": True, "conditions": [_condition("Ready")]}
    yield HARVESTER_CLUSTERS, _obj(name, number, infrastructure, status)

    spec = {"replicas": 1, "version": _VERSION, "rolloutStrategy": {"type": "RollingUpdate"}}
    yield control_plane, _obj(name, number, spec, {"replicas": 1, **_ready_counts(1)})

    template = {"spec": _machine_spec(name, name), "metadata": {"labels": {CLUSTER_LABEL: name}}}
    selector = {"matchLabels": {CLUSTER_LABEL: name}}
    deployment = {
        "clusterName": name,
        "replicas": machines - 1,
        "selector": selector,
        "template": template,
    }
    yield (
        machine_deployments("v1beta2"),
        _obj(f"{name}-md-0", number, deployment, _ready_counts(machines - 1)),
    )

    for index in range(machines):
        yield from _machine(name, number, index)


def _machine(cluster: str, number: int, index: int) -> Iterable[tuple[Resource, Obj]]:
    name = f"{cluster}-{index}"
    labels = (
        {"cluster.x-k8s.io/deployment-name": f"{cluster}-md-0"}
        if index
        else {"cluster.x-k8s.io/control-plane": ""}
    )
    # The CRD requires all fields of nodeInfo.
    info = dict.fromkeys(
        (
            "architecture",
            "bootID",
            "containerRuntimeVersion",
            "kernelVersion",
            "machineID",
            "operatingSystem",
        ),
        "any",
    )
    info |= dict.fromkeys(("kubeProxyVersion", "osImage", "systemUUID"), "any") | {
        "kubeletVersion": _VERSION
    }

    kinds = (
        "Available",
        "BootstrapConfigReady",
        "HealthCheckSucceeded",
        "InfrastructureReady",
        "NodeReady",
        "Ready",
    )
    conditions = [_condition(kind) for kind in kinds]
    status: Obj = {
        "phase": "Running",
        "nodeRef": {"name": name},
        "nodeInfo": info,
        "conditions": conditions,
    }
    yield MACHINES, _obj(name, number, _machine_spec(cluster, name), status, labels)

    # In every tenth cluster, the first worker has lost its VM.
    lost = index == 1 and number % 10 == 0
    ready = _condition(
        "Ready",
        "MachineNotFound" if lost else "",
        "the VirtualMachine does not exist" if lost else "",
    )
    status = {
        "ready": not lost,
        "conditions": [ready, _condition("VMProvisioned"), _condition("VMUpToDate")],
        "addresses": [
            {"type": "ExternalIP", "address": "10.0.0.1"},
            {"type": "Hostname", "address": name},
        ],
    }
    yield HARVESTER_MACHINES, _obj(name, number, machine_spec(), status)


def _machine_spec(cluster: str, name: str) -> Obj:
    bootstrap = {"dataSecretName": f"{name}-bootstrap"}
    reference = _reference(HARVESTER_MACHINES, name)
    return {
        "clusterName": cluster,
        "version": _VERSION,
        "bootstrap": bootstrap,
        "infrastructureRef": reference,
    }


def _obj(name: str, number: int, spec: Obj, status: Obj, labels: Obj | None = None) -> Obj:
    metadata: Obj = {"name": name, "namespace": _namespace(number)}
    metadata["labels"] = {CLUSTER_LABEL: f"cluster-{number}", **(labels or {})}
    return {"metadata": metadata, "spec": spec, "status": status}


def _ready_counts(number: int) -> Obj:
    return {"availableReplicas": number, "upToDateReplicas": number, "readyReplicas": number}


def _condition(kind: str, reason: str = "", message: str = "") -> Obj:
    return {
        "type": kind,
        "status": "False" if reason else "True",
        "reason": reason or kind,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def _reference(resource: Resource, name: str) -> Obj:
    return {"apiGroup": resource.group, "kind": resource.kind, "name": name}


def _namespace(number: int) -> str:
    return f"team-{number // _PER_NAMESPACE}"


async def _run(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Run a command to its end; return the elapsed seconds and the CPU seconds.

    Raises `RuntimeError` if the command fails.
    """
    env = {**os.environ, "PYTHONPATH": str(_CHECKOUT)}
    quiet = asyncio.subprocess.DEVNULL

    before = os.times()
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "caphv", *arguments, stdout=quiet, env=env
    )
    code = await process.wait()
    seconds = time.monotonic() - started
    after = os.times()

    # Status 1 reports a problem in the fleet, which every tenth cluster has.
    if code not in (0, 1):
        raise RuntimeError(f"caphv {' '.join(arguments)} ended with status {code}")
    user_seconds = after.children_user - before.children_user
    system_seconds = after.children_system - before.children_system
    return round(seconds, 3), user_seconds + system_seconds


if __name__ == "__main__":
    main()
