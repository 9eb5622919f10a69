"""A cluster of the Go provider is handed over to ours while it runs, and back, and over again; no VM restarts.

The core starts again where docs/migration.md says so: after the CRDs have changed the version of its contract.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from caphv import data
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Obj,
    annotations_of,
    uid_of,
)
from caphv.api.resources import HARVESTER_CLUSTERS, HARVESTER_MACHINES
from caphv.runtime.errors import NotFound, TooManyRequests
from sandbox import cluster, manifests
from sandbox.cluster import ClusterSpec
from sandbox.clusterclass import objects
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.processes import binaries, children
from sandbox.scenario.lifecycle import Scenario, in_network
from sandbox.state import SandboxSettings
from tests.support import doccommands
from tests.support.e2e import HARVESTERS, our_provider
from tests.support.predecessor import clusterclass, crds
from tests.support.predecessor.provider import Predecessor
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

PATIENCE = 60.0
OLD = ClusterSpec(
    name="old",
    namespace="old",
    target_namespace="old-vms",
    control_planes=1,
    workers=1,
    class_namespace="old",
    load_balancer="",
    machines=("machines-b",),
)
STAY = (kinds.VIRTUAL_MACHINES, kinds.INSTANCES, PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, kinds.LOAD_BALANCERS)


@pytest.fixture(scope="module", params=HARVESTERS)
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox in which no provider runs, with a release of Harvester."""
    binaries.prepare()
    settings = SandboxSettings(provider=False, boot_seconds=0.5, register_seconds=0.2, harvester=request.param)
    box = Sandbox(tmp_path_factory.mktemp("migration"), settings)
    try:
        asyncio.run(box.up())
        yield box
    finally:
        asyncio.run(children.stop_all(box.folder))


@asynccontextmanager
async def go_provider(scenario: Scenario, folder: Path, *, legacy: bool = False) -> AsyncIterator[None]:
    """The Go provider with its CRDs and their webhook until the end of the block; then its webhook is deleted.

    At the end its CRDs have lost the webhook, as the first step of the guide has it, while it still works.
    """
    async with crds.conversion_webhook(folder) as client_config:
        await merge(scenario, crds.custom_resource_definitions(client_config))
        versions = {"status": {"storedVersions": ["v1alpha1", "v1beta1"]}}
        for crd in crds.custom_resource_definitions(client_config):
            name = crd["metadata"]["name"]
            await scenario.management.patch(CUSTOM_RESOURCE_DEFINITIONS, name, "", versions, subresource="status")
        async with Predecessor(scenario.management, scenario.harvester, legacy=legacy).working():
            yield
            for crd in crds.custom_resource_definitions(client_config):
                name = crd["metadata"]["name"]
                await scenario.management.patch(CUSTOM_RESOURCE_DEFINITIONS, name, "", crds.WITHOUT_WEBHOOK)


async def merge(scenario: Scenario, definitions: list[Obj]) -> None:
    """Install CRDs over others as clusterctl and Turtles do, which create what is missing."""
    for crd in definitions:
        try:
            await scenario.management.patch(CUSTOM_RESOURCE_DEFINITIONS, crd["metadata"]["name"], "", crd)
        except NotFound:
            await scenario.management.create(CUSTOM_RESOURCE_DEFINITIONS, crd)


async def install_ours(box: Sandbox, scenario: Scenario) -> None:
    await merge(scenario, manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml"))))
    await box.restart("core")


async def snapshot(scenario: Scenario) -> dict[str, Any]:
    """What may not change: identity of all objects, how VMs run, who has which address, and the endpoint."""
    found: dict[str, Any] = {"endpoint": scenario.view.endpoint()}
    for resource in STAY:
        for obj in (await scenario.harvester.list(resource, scenario.spec.target_namespace))["items"]:
            found[f"{resource.kind} {obj['metadata']['name']}"] = uid_of(obj)
            if resource is kinds.INSTANCES:
                found[f"start of {obj['metadata']['name']}"] = obj["metadata"]["creationTimestamp"]
                found[f"addresses of {obj['metadata']['name']}"] = obj["status"]["interfaces"]
    for pool in (await scenario.harvester.list(kinds.IP_POOLS))["items"]:
        found[f"pool {pool['metadata']['name']}"] = (pool.get("status") or {}).get("allocated") or {}
    for obj in await infrastructure(scenario):
        found[f"{obj['kind']} {obj['metadata']['name']}"] = (uid_of(obj), obj["spec"])
    for machine in scenario.view.machines.store:
        found[f"node of {machine['metadata']['name']}"] = machine["status"]["nodeRef"]
    return found


async def infrastructure(scenario: Scenario) -> list[Obj]:
    """All HarvesterClusters and HarvesterMachines; the API server may still be taking up other CRDs."""
    found: list[Obj] = []

    async def read() -> bool:
        with contextlib.suppress(TooManyRequests):
            for resource in (HARVESTER_CLUSTERS, HARVESTER_MACHINES):
                listed = await scenario.management.list(resource, scenario.spec.namespace)
                found.extend({**obj, "kind": resource.kind} for obj in listed["items"])
            return True
        found.clear()
        return False

    await until(read, lambda: "the API server does not serve our kinds", PATIENCE)
    return found


async def settled(scenario: Scenario, holds: Callable[[Obj], bool]) -> None:
    """Wait until something holds for all HarvesterClusters and HarvesterMachines."""

    others: list[Obj] = []

    async def all_of_them() -> bool:
        others[:] = [obj for obj in await infrastructure(scenario) if not holds(obj)]
        return not others

    def complaint() -> str:
        reported = [(obj["metadata"].get("finalizers"), (obj.get("status") or {}).get("conditions")) for obj in others]
        return f"not as expected: {reported}"

    await until(all_of_them, complaint, PATIENCE)


def is_ours(obj: Obj) -> bool:
    """Whether our provider has taken an object over: all its conditions, and the finalizer of today."""
    conditions = {each["type"]: each for each in obj["status"].get("conditions") or ()}
    own = "VMUpToDate" if obj["kind"] == HARVESTER_MACHINES.kind else "IdentityUpToDate"
    kinds_true = ("Ready", "InfrastructureReady", own)
    finalizers = [each for each in obj["metadata"]["finalizers"] if crds.GROUP in each]
    return (
        all(kind in conditions and conditions[kind]["status"] == "True" for kind in kinds_true)
        and all(conditions[kind].get("observedGeneration") for kind in kinds_true)
        and len(finalizers) == 1
        and finalizers[0].endswith(f".{crds.GROUP}/finalizer")
    )


async def recorded(scenario: Scenario) -> bool:
    """Whether all VMs, the Service and the load balancer say that they are ours."""
    found = [
        obj
        for resource in (kinds.VIRTUAL_MACHINES, SERVICES, kinds.LOAD_BALANCERS)
        for obj in (await scenario.harvester.list(resource, scenario.spec.target_namespace))["items"]
    ]
    return bool(found) and all("caphv.io/owner-uid" in annotations_of(obj) for obj in found)


async def backends_by_the_old_label_only(scenario: Scenario) -> None:
    """What docs/migration.md has for the way back: the Go provider's VMs lack the label that ours adds."""
    for balancer in (await scenario.harvester.list(kinds.LOAD_BALANCERS, scenario.spec.target_namespace))["items"]:
        patch = doccommands.patch_of("migration.md", "loadbalancers.loadbalancer.harvesterhci.io")
        name = balancer["metadata"]["name"]
        await scenario.harvester.patch(kinds.LOAD_BALANCERS, name, scenario.spec.target_namespace, patch)


def with_its_variables(spec: ClusterSpec) -> Obj:
    """The Cluster with variables that the Go provider's class knows."""
    manifest = cluster.manifest(spec)
    (pool,) = spec.machines
    # The core writes the default of `ipPoolRefs`, which is empty.
    known = {**cluster.variables(spec), "ipPoolRef": pool}
    del known["ipPoolRefs"]
    variables = [{"name": name, "value": known[name]} for name in clusterclass.VARIABLES if name in known]
    manifest["spec"]["topology"]["variables"] = variables
    return manifest


async def its_class_still_works(scenario: Scenario) -> None:
    """It makes templates with fields that are empty or 0, as it always did; and its clusters can take our class."""
    await scenario.set_variable("cpuCount", 3)
    disks = [machine["spec"]["volumes"] for machine in scenario.view.harvester_machines.store]
    assert {(first["bootOrder"], second["bootOrder"]) for first, second in disks} == {(1, 0)}
    endpoint = scenario.view.endpoint()
    change, *others = doccommands.patch_of("migration.md", "cluster")
    reference = change["value"]
    space = kinds.typed(NAMESPACES, {"metadata": {"name": reference["namespace"]}})
    await manifests.apply(scenario.management, [space, *objects(reference["namespace"], reference["name"])])
    access = await guest_access(scenario)
    await scenario.rebase(reference["name"], reference["namespace"], *others)
    assert {machine["spec"]["cpu"] for machine in scenario.view.harvester_machines.store} == {3}
    assert scenario.view.endpoint() == endpoint
    assert await guest_access(scenario) == access


async def guest_access(scenario: Scenario) -> list[str]:
    """The uids of what gives the cloud provider access to Harvester: none of it may be deleted."""
    name, target = scenario.spec.name, scenario.spec.target_namespace
    account = await scenario.harvester.get(SERVICE_ACCOUNTS, name, target)
    binding = await scenario.harvester.get(CLUSTER_ROLE_BINDINGS, name)
    token = await scenario.harvester.get(SECRETS, f"{name}-token", target)
    return [uid_of(obj) for obj in (account, binding, token)]


async def test_handed_over_and_back_without_a_restart(box: Sandbox, tmp_path: Path) -> None:
    scenario = Scenario(box.folder, in_network(OLD, box.status()["network"]), timeout=300)
    async with scenario.watching():
        # Where the lease is.
        await manifests.apply(scenario.management, [kinds.typed(NAMESPACES, {"metadata": {"name": "caphv-system"}})])
        async with go_provider(scenario, tmp_path, legacy=True):
            space = kinds.typed(NAMESPACES, {"metadata": {"name": OLD.namespace}})
            addon = {"metadata": {"name": f"cloud-config-addon-{OLD.name}", "namespace": OLD.namespace}}
            addon |= {"data": {"cloud-config.yaml": "{apiVersion: v1, kind: ServiceAccount, metadata: {name: csi}}\n"}}
            of_its_class = [kinds.typed(CONFIG_MAPS, addon), *clusterclass.objects(OLD.namespace)]
            await manifests.apply(scenario.management, [space, *of_its_class])
            await scenario.apply([with_its_variables(scenario.spec)])
            await scenario.bring_up()
            before = await snapshot(scenario)
            access = await guest_access(scenario)
            assert len(before) > 20
        await install_ours(box, scenario)
        async with our_provider(box.folder, box.kubeconfig("management")):
            await settled(scenario, is_ours)
            await until(lambda: recorded(scenario), lambda: "objects on Harvester have no record", PATIENCE)
            assert await snapshot(scenario) == before
            assert await guest_access(scenario) == access
            await scenario.scale(1, 2)
        grown = await snapshot(scenario)
        assert before.items() <= {**grown, **{key: before[key] for key in before if key.startswith("pool ")}}.items()
        # The way back: the Go provider continues with the VMs of both, and deletes one of ours.
        await backends_by_the_old_label_only(scenario)
        async with go_provider(scenario, tmp_path):
            await box.restart("core")
            assert await snapshot(scenario) == grown
            await scenario.scale(1, 1)
            await scenario.scale(1, 2)
            mixed = await snapshot(scenario)
        await install_ours(box, scenario)
        async with our_provider(box.folder, box.kubeconfig("management")):
            await settled(scenario, is_ours)
            assert await snapshot(scenario) == mixed
            await scenario.replace_lost(scenario.view.workers()[0])
            # Each of two further changes replaces all machines.
            await scenario.scale(1, 1)
            await its_class_still_works(scenario)
            await scenario.delete()
            assert await scenario.leftovers() == []
