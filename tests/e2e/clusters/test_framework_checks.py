"""What the test framework of Cluster API checks of each provider, with the real core.

The checks are those of cluster-api v1.13.6, test/framework: ownerreference_helpers.go, finalizers_helpers.go and
resourceversion_helpers.go. Owner references and finalizers are removed while the cluster is paused, as by a restore
from a backup that has none.
"""

from __future__ import annotations

import asyncio

import pytest

from caphv.api.names import GROUP, STORED_VERSION
from caphv.api.object import (
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICES,
    Obj,
    Resource,
    uid_of,
)
from caphv.api.resources import (
    HARVESTER_CLUSTERS,
    HARVESTER_MACHINE_TEMPLATES,
    HARVESTER_MACHINES,
    cluster_classes,
    machine_deployments,
    machine_health_checks,
)
from caphv.runtime.client import ApiClient
from sandbox.capi.resources import CLUSTERS, CORE, MACHINES
from sandbox.cluster import CLASS_NAMESPACE, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.e2e import SHORT_AND_WHOLE
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

NAME = "checked"
CLASSES = cluster_classes("v1beta2")
CLUSTER_TEMPLATES = Resource(GROUP, STORED_VERSION, "harvesterclustertemplates", "HarvesterClusterTemplate")
OURS = (HARVESTER_CLUSTERS, HARVESTER_MACHINES, HARVESTER_MACHINE_TEMPLATES, CLUSTER_TEMPLATES)
# Those of the cluster, and the templates of the classes.
PLACES = [
    *((resource, NAME) for resource in OURS),
    *((resource, CLASS_NAMESPACE) for resource in (HARVESTER_MACHINE_TEMPLATES, CLUSTER_TEMPLATES)),
]
MACHINE_SETS = Resource(CORE, "v1beta2", "machinesets", "MachineSet")
DEPLOYMENTS, HEALTH_CHECKS = machine_deployments("v1beta2"), machine_health_checks("v1beta2")
ON_MANAGEMENT = (*OURS, CLUSTERS, MACHINES, MACHINE_SETS, DEPLOYMENTS, HEALTH_CHECKS, SECRETS, CONFIG_MAPS)
ON_HARVESTER = (
    kinds.VIRTUAL_MACHINES,
    kinds.INSTANCES,
    kinds.IP_POOLS,
    kinds.LOAD_BALANCERS,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICES,
)
# As long as the framework waits for the core to set owners, in seconds.
SECONDS = 300.0
# Kind, name and field of an object, and its value.
Values = dict[tuple[str, str, str], object]


@SHORT_AND_WHOLE
async def test_what_others_remove_comes_back_and_nothing_is_written_at_rest(box: Sandbox, whole: bool) -> None:
    spec = ClusterSpec(
        name=NAME,
        namespace=NAME,
        target_namespace=f"{NAME}-vms",
        control_planes=3 if whole else 1,
        workers=2 if whole else 1,
        unhealthy_seconds=3600,
    )
    scenario = Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=300)
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()
        await until_settled(scenario)
        vms = instances_of(scenario)
        for field in ("finalizers", "ownerReferences"):
            await check_restored(scenario, field)
        assert instances_of(scenario) == vms

        # The core that users run reconciles a Machine and its health check again after some seconds.
        await until_settled(scenario, seconds=10)
        await check_rest(scenario, seconds=120 if whole else 12)
        await check_full_reconcile(scenario)
        await scenario.delete()
        assert await scenario.leftovers() == []


async def check_restored(scenario: Scenario, field: str) -> None:
    """Remove a field of metadata from all objects of our kinds, and wait until each has it again."""
    before = await metadata_of(scenario, field)
    owned = OURS if field == "ownerReferences" else (HARVESTER_CLUSTERS, HARVESTER_MACHINES)
    assert {kind for (kind, _, _), value in before.items() if value} == {resource.kind for resource in owned}
    await scenario.management.patch(CLUSTERS, NAME, NAME, {"spec": {"paused": True}})
    await until_paused(scenario, True)
    for resource, namespace in PLACES:
        for name in await names(scenario.management, resource, namespace):
            await scenario.management.patch(resource, name, namespace, {"metadata": {field: None}})
    assert set((await metadata_of(scenario, field)).values()) == {None}
    await scenario.management.patch(CLUSTERS, NAME, NAME, {"spec": {"paused": None}})
    # The core does not watch the templates of a ClusterClass: the framework annotates the class, too. Machines are
    # annotated because the core sometimes leaves one paused that changed while its Cluster was resumed.
    annotated = {"metadata": {"annotations": {"example.com/removed": field}}}
    for resource, namespace in ((CLASSES, CLASS_NAMESPACE), (MACHINES, NAME)):
        for name in await names(scenario.management, resource, namespace):
            await scenario.management.patch(resource, name, namespace, annotated)
    await until_paused(scenario, False)

    differing: Values = {}

    async def are_restored() -> bool:
        now = await metadata_of(scenario, field)
        differing.clear()
        differing.update({key: now.get(key) for key, value in before.items() if now.get(key) != value})
        return not differing

    await until(are_restored, lambda: f"not restored: {differing}", SECONDS)


async def metadata_of(scenario: Scenario, field: str) -> Values:
    """Read a field of metadata of all objects of our kinds."""
    return {
        (resource.kind, obj["metadata"]["name"], field): obj["metadata"].get(field)
        for resource, namespace in PLACES
        for obj in await items(scenario.management, resource, namespace)
    }


async def until_paused(scenario: Scenario, paused: bool) -> None:
    """Wait until each object that the provider reconciles reports that it is paused or not, as asked for."""

    def reports() -> dict[str, tuple[str, bool]]:
        """Whether each object is paused, and has an owner."""
        view = scenario.view
        informers = {"HarvesterCluster": view.harvester_clusters, "HarvesterMachine": view.harvester_machines}
        if paused:
            # A pause that the core has not seen when it ends may leave its Machines paused.
            informers |= {"Cluster": view.clusters, "Machine": view.machines}
        return {
            f"{kind} {obj['metadata']['name']}": (condition["status"], "ownerReferences" in obj["metadata"])
            for kind, informer in informers.items()
            for obj in informer.store
            for condition in obj["status"]["conditions"]
            if condition["type"] == "Paused"
        }

    await until(
        lambda: {status for status, _ in reports().values()} == {str(paused)},
        lambda: f"paused is not {paused} for all, which have an owner or not: {reports()}",
        SECONDS,
    )


async def check_rest(scenario: Scenario, seconds: float) -> None:
    """Expect that no object changes for so long."""
    before = await versions(scenario)
    await asyncio.sleep(seconds)
    assert changed(before, await versions(scenario)) == set()


async def check_full_reconcile(scenario: Scenario) -> None:
    """Expect that a full reconcile of the cluster at rest writes nothing, apart from what started it."""
    patch = {"metadata": {"annotations": {"caphv.io/reconcile-at": "now"}}}
    before = await versions(scenario)
    patched = await scenario.management.patch(HARVESTER_CLUSTERS, infrastructure(scenario), NAME, patch)
    await asyncio.sleep(2)
    after = await versions(scenario)
    key = (HARVESTER_CLUSTERS.kind, infrastructure(scenario), "resourceVersion")
    assert changed(before, after) == {key}
    assert after[key] == patched["metadata"]["resourceVersion"]


def infrastructure(scenario: Scenario) -> str:
    """Return the name of the HarvesterCluster."""
    (found,) = scenario.view.harvester_clusters.store
    return str(found["metadata"]["name"])


async def until_settled(scenario: Scenario, seconds: float = 3.0) -> None:
    """Wait until no object has changed for so long."""
    last: list[Values] = [{}]

    async def is_settled() -> bool:
        await asyncio.sleep(seconds)
        now = await versions(scenario)
        before, last[0] = last[0], now
        return before == now

    await until(is_settled, lambda: f"objects still change: {sorted(key[:2] for key in last[0])}", 120)


async def versions(scenario: Scenario) -> Values:
    """Read the resource versions of all objects of the cluster, here and on Harvester."""
    found: Values = {}
    target = scenario.spec.target_namespace
    for client, resources, namespace in (
        (scenario.management, ON_MANAGEMENT, NAME),
        (scenario.harvester, ON_HARVESTER, target),
    ):
        for resource in resources:
            for obj in await items(client, resource, namespace):
                key = (resource.kind, obj["metadata"]["name"], "resourceVersion")
                found[key] = obj["metadata"]["resourceVersion"]
    return found


def changed(before: Values, after: Values) -> set[tuple[str, str, str]]:
    """Return the keys of objects that were created, changed or deleted."""
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def instances_of(scenario: Scenario) -> dict[str, str]:
    """Return the UID of each VM's instance, which a restart changes."""
    return {vmi["metadata"]["name"]: uid_of(vmi) for vmi in scenario.view.instances.store}


async def items(client: ApiClient, resource: Resource, namespace: str) -> list[Obj]:
    found: list[Obj] = (await client.list(resource, namespace if resource.namespaced else ""))["items"]
    return found


async def names(client: ApiClient, resource: Resource, namespace: str) -> list[str]:
    return [obj["metadata"]["name"] for obj in await items(client, resource, namespace)]
