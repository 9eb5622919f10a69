"""Two clusters in one namespace of Harvester: the deletion of each takes what its guest created, and nothing else.

Harvester has faults and the provider is killed while the first cluster is being deleted. The whole form has more
machines and a longer storm, and the second cluster loses its API before, which is waited for.
"""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from caphv.api.guestparts import reclaim_policy, recorded_guest
from caphv.api.object import (
    EVENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SECRETS,
    Obj,
    Resource,
    at,
)
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, Invalid
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox.capi.resources import CLUSTERS
from sandbox.cluster import ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import guestbalancers, kinds
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support import harvesterui
from tests.support.e2e import MOST_FAULTS, SHORT_AND_WHOLE, storm
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

TARGET, POOL = "tenants", "services-of-tenants"
POLICIES = ("Delete", "Retain")
SERVICES = ("web", "api")
SPEC = ClusterSpec(
    target_namespace=TARGET,
    control_planes=1,
    workers=1,
    machines=("machines-b",),
    unhealthy_seconds=3600,
    variables={"guestVolumes": "Delete"},
)


@SHORT_AND_WHOLE
async def test_a_deleted_cluster_takes_what_its_guest_created_and_nothing_else(box: Sandbox, whole: bool) -> None:
    network = box.status()["network"]
    spec = replace(SPEC, control_planes=3, workers=2) if whole else SPEC
    first, second = (
        Scenario(box.folder, in_network(replace(spec, name=name, namespace=name), network), timeout=300)
        for name in ("first", "second")
    )
    async with first.watching(), second.watching():
        await first.create()
        await first.bring_up()
        await second.create()
        count = spec.control_planes + spec.workers
        await until(lambda: len(second.view.running()) == count, "the second cluster runs", 300)
        await create_pool(first)
        for scenario in (first, second):
            await create_guest_objects(scenario)
        assert await holders(first) == services_of(first) | services_of(second)

        async with storm(box, MOST_FAULTS, 60 if whole else 15):
            await delete(first)
        await check_remains(first, second)
        assert await names(second, PERSISTENT_VOLUME_CLAIMS, volumes_of(second)) == volumes_of(second)
        assert {machine["status"]["phase"] for machine in second.view.machines.store} == {"Running"}

        if whole:
            await stop_control_plane(second)
        await delete(second)
        # The Events of the first may have been lost with a provider that was killed.
        expected = {"GuestVolumeDeleted", "GuestVolumesKept", "GuestLoadBalancerDeleted"}
        await until(lambda: has_events(second, expected), f"the deletion has Events {expected}")
        assert ("GuestVolumesNotLearnt" in await reasons(second)) is whole
        await check_remains(second)
        await clean_up(first, second)


async def create_pool(scenario: Scenario) -> None:
    """Create an IPPool for the Services of both guests."""
    prefix = ".".join(scenario.view.endpoint().removeprefix("https://").split(".")[:2])
    ranges = {"subnet": f"{prefix}.0.0/17", "rangeStart": f"{prefix}.111.1", "rangeEnd": f"{prefix}.111.9"}
    scope = {"namespace": TARGET, "project": "*", "guestCluster": "*"}
    spec = {"ranges": [ranges], "selector": {"network": "default/production", "scope": [scope]}}
    status = {"total": 9, "available": 9, "lastAllocated": ""}
    pool = {"metadata": {"name": POOL}, "spec": spec, "status": status}
    await scenario.harvester.create(kinds.IP_POOLS, kinds.typed(kinds.IP_POOLS, pool))


async def create_guest_objects(scenario: Scenario) -> None:
    """Create volumes and Services, as CSI driver and cloud provider in the guest do, until they are recorded."""
    secret = await scenario.management.get(SECRETS, f"{scenario.spec.name}-kubeconfig", scenario.spec.namespace)
    workload = parse_kubeconfig(base64.b64decode(secret["data"]["value"])).client(name="workload")
    try:
        for policy, name in zip(POLICIES, sorted(volumes_of(scenario)), strict=True):
            await create_volume(scenario, workload, name, policy)
    finally:
        await workload.close()
    for service in SERVICES:
        await create_service(scenario, service)


async def create_volume(scenario: Scenario, workload: ApiClient, name: str, policy: str) -> None:
    """Create a volume in the guest with its claim on Harvester, and hot-plug it to the first worker."""
    node = scenario.view.workers()[0]["spec"]["infrastructureRef"]["name"]
    await scenario.harvester.create(PERSISTENT_VOLUME_CLAIMS, harvesterui.volume(TARGET, name))
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": policy,
        "csi": {"driver": "driver.harvesterhci.io", "volumeHandle": name},
    }
    await workload.create(PERSISTENT_VOLUMES, {"metadata": {"name": name}, "spec": spec})
    await until(lambda: is_plugged(scenario, name, node), f"{node} has {name}")
    await until(lambda: is_learnt(scenario, name, policy), f"{name} is learnt")


async def create_service(scenario: Scenario, service: str) -> None:
    """Create the LoadBalancer of a Service, until it has an address and is recorded."""
    name = f"{scenario.spec.name}-{service}"
    domain = "cloudprovider.harvesterhci.io"
    metadata = {
        "name": name,
        "namespace": TARGET,
        "labels": {
            guestbalancers.CLUSTER_OF_BALANCER: scenario.spec.name,
            f"{domain}/serviceNamespace": "default",
            f"{domain}/serviceName": service,
        },
        "annotations": {guestbalancers.CLUSTER: scenario.spec.name},
    }
    balancer = {"metadata": metadata, "spec": {"workloadType": "cluster", "ipam": "pool", "ipPool": POOL}}
    await scenario.harvester.create(kinds.LOAD_BALANCERS, kinds.typed(kinds.LOAD_BALANCERS, balancer))

    async def is_recorded() -> bool:
        stored = await scenario.harvester.get(kinds.LOAD_BALANCERS, name, TARGET)
        return bool(at(stored, "status", "allocatedAddress", "ip") and recorded_guest(stored))

    await until(is_recorded, f"LoadBalancer {name} has an address and its owner")


async def is_plugged(scenario: Scenario, claim: str, node: str) -> bool:
    """Hot-plug a claim to the VM of a node, and return whether no other writer was faster."""
    vm = await scenario.harvester.get(kinds.VIRTUAL_MACHINES, node, TARGET)
    try:
        await scenario.harvester.patch(kinds.VIRTUAL_MACHINES, node, TARGET, harvesterui.hot_plug(vm, claim))
    except (Conflict, Invalid):
        return False
    return True


async def is_learnt(scenario: Scenario, name: str, policy: str) -> bool:
    claim = await scenario.harvester.get(PERSISTENT_VOLUME_CLAIMS, name, TARGET)
    return recorded_guest(claim) is not None and reclaim_policy(claim) == policy


async def delete(scenario: Scenario) -> None:
    """Delete the Cluster, and wait until nothing of it is on the management cluster."""
    await scenario.management.delete(CLUSTERS, scenario.spec.name, scenario.spec.namespace)
    view = scenario.view
    caches = (view.clusters, view.harvester_clusters, view.machines, view.harvester_machines)
    await until(lambda: not any(len(cache.store) for cache in caches), "the cluster is deleted", 300)


async def stop_control_plane(scenario: Scenario) -> None:
    """Halt the VMs of the control plane on Harvester, so that its API is silent."""
    for machine in scenario.view.control_planes():
        vm = machine["spec"]["infrastructureRef"]["name"]
        await scenario.harvester.patch(kinds.VIRTUAL_MACHINES, vm, TARGET, {"spec": {"runStrategy": "Halted"}})
        await until(lambda vm=vm: scenario.view.instances.get(TARGET, vm) is None, f"{vm} is halted")


async def check_remains(*scenarios: Scenario) -> None:
    """Check what is left of deleted clusters, the first, and that all of the others is there."""
    deleted, *living = scenarios
    own_volumes = volumes_of(deleted)
    assert await names(deleted, PERSISTENT_VOLUME_CLAIMS, own_volumes) == {max(own_volumes)}, "Retain is kept"

    expected: set[str] = set().union(*(services_of(scenario) for scenario in living))
    balancers = await deleted.harvester.list(kinds.LOAD_BALANCERS, TARGET)
    guests = {
        f"{TARGET}/{balancer['metadata']['name']}"
        for balancer in balancers["items"]
        if guestbalancers.is_guest(balancer)
    }
    assert guests == expected
    assert await holders(deleted) == expected
    pool = await deleted.harvester.get(kinds.IP_POOLS, POOL)
    assert pool["status"]["available"] == 9 - len(expected)

    vms = await deleted.harvester.list(kinds.VIRTUAL_MACHINES, TARGET)
    assert len(vms["items"]) == sum(len(scenario.view.machines.store) for scenario in living)


async def clean_up(*scenarios: Scenario) -> None:
    """Delete what was kept."""
    for scenario in scenarios:
        for name in await names(scenario, PERSISTENT_VOLUME_CLAIMS, volumes_of(scenario)):
            await scenario.harvester.delete(PERSISTENT_VOLUME_CLAIMS, name, TARGET)
    await scenarios[0].harvester.delete(kinds.IP_POOLS, POOL)
    assert await scenarios[0].leftovers() == []


def volumes_of(scenario: Scenario) -> set[str]:
    """Names of the volumes, in the order of `POLICIES`."""
    return {f"pvc-{scenario.spec.name}-{policy.lower()}" for policy in POLICIES}


def services_of(scenario: Scenario) -> set[str]:
    """Ids under which the pool holds the addresses of the Services."""
    return {f"{TARGET}/{scenario.spec.name}-{service}" for service in SERVICES}


async def holders(scenario: Scenario) -> set[str]:
    pool: Obj = await scenario.harvester.get(kinds.IP_POOLS, POOL)
    return set((at(pool, "status", "allocated") or {}).values())


async def names(scenario: Scenario, resource: Resource, among: set[str]) -> set[str]:
    listed = await scenario.harvester.list(resource, TARGET)
    return {obj["metadata"]["name"] for obj in listed["items"]} & among


async def has_events(scenario: Scenario, expected: set[str]) -> bool:
    return expected <= await reasons(scenario)


async def reasons(scenario: Scenario) -> set[str]:
    """Reasons of the Events of the HarvesterCluster."""
    listed = await scenario.management.list(EVENTS, scenario.spec.namespace)
    kind = HARVESTER_CLUSTERS.kind
    return {event["reason"] for event in listed["items"] if event["involvedObject"]["kind"] == kind}
