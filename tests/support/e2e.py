"""What several scenarios need: admission as users meet it, waiting on a watch, and our provider as a process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from caphv.api.object import NAMESPACES, Obj, Resource, labels_of
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import chaos, clusterclass, manifests
from sandbox.capi import providers
from sandbox.capi.core import CORE_VARIABLE
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.harvester.faults import Faults
from sandbox.harvester.guestbalancers import CLUSTER, CLUSTER_OF_BALANCER, CLUSTER_OF_VM
from sandbox.harvester.releases import NEWEST_STABLE, RELEASES
from sandbox.processes import binaries, children
from sandbox.scenario.lifecycle import Scenario
from sandbox.state import SandboxSettings
from tests.support.paths import CHECKOUT
from tests.support.process import LOOPBACK
from tests.support.waiting import until

CLUSTERCTL = "clusterctl.cluster.x-k8s.io"
# Tests with a short form for `make test`, and a whole one for `make test-long`.
SHORT_AND_WHOLE = pytest.mark.parametrize(
    "whole", [pytest.param(False, id="short"), pytest.param(True, id="whole", marks=pytest.mark.long)]
)
# Releases of Harvester: the newest for `make test`, all for `make test-long`.
HARVESTERS = [pytest.param(name, marks=[] if name == NEWEST_STABLE else pytest.mark.long) for name in sorted(RELEASES)]
# A seed of all faults but cut-before within 15 s, with two kills of the provider.
MOST_FAULTS = 472
# Seed and seconds of a storm, by whether a test runs whole. The brief one has seven faults and two kills.
STORMS = {False: (438, 8.0), True: (MOST_FAULTS, 60.0)}
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


async def services_of_the_guest_get_addresses(scenario: Scenario) -> None:
    """Services of type LoadBalancer in the guest, by DHCP and from a pool of the network of its VMs."""
    spec = scenario.spec
    prefix = ".".join(scenario.view.endpoint().removeprefix("https://").split(".")[:2])
    pool = f"guests-of-{spec.name}"
    ranges = {"subnet": f"{prefix}.0.0/17", "rangeStart": f"{prefix}.110.1", "rangeEnd": f"{prefix}.110.9"}
    scope = {"namespace": spec.target_namespace, "project": "*", "guestCluster": "*"}
    selector = {"network": "default/production", "scope": [scope]}
    status = {"total": 9, "available": 9, "lastAllocated": ""}
    obj = {"metadata": {"name": pool}, "spec": {"ranges": [ranges], "selector": selector}, "status": status}
    await scenario.harvester.create(kinds.IP_POOLS, kinds.typed(kinds.IP_POOLS, obj))

    # The provider shows the network of the VMs when it has seen the pool.
    await seen(scenario.harvester, spec.target_namespace, kinds.INSTANCES, lambda vmi: CLUSTER_OF_VM in labels_of(vmi))
    for ipam in ("dhcp", "pool"):
        name = f"{spec.name}-{ipam}"
        metadata = {
            "name": name,
            "namespace": spec.target_namespace,
            "labels": {CLUSTER_OF_BALANCER: spec.name},
            "annotations": {CLUSTER: spec.name},
        }
        balancer = {"metadata": metadata, "spec": {"workloadType": "cluster", "ipam": ipam}}
        await scenario.harvester.create(kinds.LOAD_BALANCERS, kinds.typed(kinds.LOAD_BALANCERS, balancer))
        has_address = lambda obj, name=name: obj["metadata"]["name"] == name and holds(obj, "Ready")  # noqa: E731
        found = await seen(scenario.harvester, spec.target_namespace, kinds.LOAD_BALANCERS, has_address)
        assert found["status"]["allocatedAddress"].get("ipPool", "") == (pool if ipam == "pool" else "")
        await scenario.harvester.delete(kinds.LOAD_BALANCERS, name, spec.target_namespace)

    async def pool_is_free() -> bool:
        return not (await scenario.harvester.get(kinds.IP_POOLS, pool))["status"].get("allocated")

    await until(pool_is_free, "the address of the Service returns to its pool")
    await scenario.harvester.delete(kinds.IP_POOLS, pool)


@asynccontextmanager
async def storm(box: Sandbox, seed: int, seconds: float) -> AsyncIterator[None]:
    """Faults of Harvester and kills of the provider during the block, whose end waits for their end.

    The provider of a sandbox has the shipped, least-privilege roles.
    """
    client = parse_kubeconfig(box.kubeconfig("harvester-direct").read_bytes()).client(name="harvester")
    faults = asyncio.create_task(chaos.run(box, Faults(client), chaos.schedule(seed, seconds), print))
    try:
        yield
        await faults
    finally:
        faults.cancel()
        await asyncio.gather(faults, return_exceptions=True)
        await client.close()


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


async def create_class_without_surge(scenario: Scenario) -> None:
    """Create the class of kubeadm with `maxSurge: 0`.

    The class has it, because the topology sets the default again where a user changes the control plane.
    """
    namespace = scenario.spec.namespace
    objects = clusterclass.objects(namespace, clusterclass.HARVESTER_KUBEADM)
    (template,) = (obj for obj in objects if obj["kind"] == "KubeadmControlPlaneTemplate")
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}}
    template["spec"]["template"]["spec"]["rollout"] = {"strategy": strategy}
    space = kinds.typed(NAMESPACES, {"metadata": {"name": namespace}})
    await manifests.apply(scenario.management, [space, *objects])
