"""The main job with the real Cluster API core: a cluster's whole life, and what an operator sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from caphv.runtime.resource import EVENTS, Obj, labels_of
from sandbox import binaries, processes
from sandbox.cluster import CONTROL_PLANE_LABEL, ClusterSpec
from sandbox.environment import Sandbox, Settings
from sandbox.story import Story, in_network

pytestmark = pytest.mark.e2e

SETTINGS = Settings(boot_seconds=0.5, register_seconds=0.2)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with the provider; gone without a trace after the last test."""
    binaries.prepare()
    box = Sandbox(tmp_path_factory.mktemp("story"), SETTINGS)
    try:
        asyncio.run(box.up())
        yield box
        assert asyncio.run(box.down())
    finally:
        asyncio.run(processes.stop_all(box.folder))


def story_of(box: Sandbox, spec: ClusterSpec) -> Story:
    return Story(box.folder, in_network(spec, box.status()["network"]))


def condition(obj: Obj, kind: str) -> tuple[str, str]:
    found = next((c for c in obj["status"]["conditions"] if c["type"] == kind), {})
    return found.get("status", ""), found.get("reason", "")


async def events(story: Story) -> set[tuple[str, str, str]]:
    """Kind of the object, type and reason of all Events of the provider in the cluster's namespace."""
    listed = await story.management.list(EVENTS, story.spec.namespace)
    return {
        (event["involvedObject"]["kind"], event["type"], event["reason"])
        for event in listed["items"]
        if event["source"].get("component") == "caphv-controller-manager"
    }


def the_loss_alone_is_warned_of(told: set[tuple[str, str, str]]) -> None:
    """Of the destroyed VM: that it goes, if anybody saw it go, and that it is gone."""
    warned = {reason for _, kind, reason in told if kind == "Warning"}
    assert "MachineNotFound" in warned
    assert warned <= {"MachineNotFound", "VMProvisioningInProgress"}


def test_cluster_over_three_zones_and_two_pools_from_creation_to_the_last_trace(box: Sandbox) -> None:
    async def live() -> None:
        story = story_of(box, ClusterSpec(name="zones", namespace="zones", target_namespace="zones-vms"))
        async with story.watching():
            await story.create_infrastructure()
            await story.create_machines()
            the_cluster_is_up(story)
            await story.replace_lost_worker()
            assert len(story.workers()) == 2
            assert ("HarvesterMachine", "Warning", "MachineNotFound") in await events(story)
            await story.scale(3)
            await story.scale(1)
            held = [pool["status"].get("allocated") or {} for pool in story.view.pools.store]
            assert sum(map(len, held)) == 5  # four machines and the control plane's address
            await story.delete()
            assert await story.leftovers() == []
            told = await events(story)
            the_loss_alone_is_warned_of(told)
            assert {reason for _, kind, reason in told if kind == "Normal"} >= {
                "ControlPlaneEndpointSet",
                "InfrastructureReady",
                "LoadBalancerCreated",
                "VMCreated",
                "InfrastructureDeleted",
            }

    asyncio.run(live())


def the_cluster_is_up(story: Story) -> None:
    """What stands after creation: Nodes in zones, addresses of two pools, conditions that all say so."""
    assert story.zones() == {"zone-1", "zone-2", "zone-3"}
    # The first pool has four addresses for five machines.
    assert story.pools_used() == {"machines-a", "machines-b"}
    (cluster,), (infrastructure,) = story.view.clusters.store, story.view.harvester_clusters.store
    assert condition(cluster, "InfrastructureReady") == ("True", "Ready")
    assert infrastructure["spec"]["controlPlaneEndpoint"] == cluster["spec"]["controlPlaneEndpoint"]
    assert {domain["name"] for domain in cluster["status"]["failureDomains"]} == story.zones()
    for kind in ("Ready", "InfrastructureReady", "LoadBalancerReady", "InitMachineCreated"):
        assert condition(infrastructure, kind) == ("True", kind)
    for machine in story.view.machines.store:
        own = story.view.harvester_machines.get(story.spec.namespace, machine["metadata"]["name"])
        assert own is not None
        assert condition(own, "Ready") == ("True", "Ready")
        assert condition(machine, "InfrastructureReady")[0] == "True"
        assert machine["spec"]["providerID"] == own["spec"]["providerID"]
        assert machine["status"]["addresses"] == own["status"]["addresses"]
        if CONTROL_PLANE_LABEL in labels_of(machine):
            assert own["status"]["failureDomain"] == machine["spec"]["failureDomain"]


def test_cluster_with_all_addresses_by_dhcp(box: Sandbox) -> None:
    async def live() -> None:
        spec = ClusterSpec(
            name="dhcp",
            namespace="dhcp",
            target_namespace="dhcp-vms",
            control_planes=1,
            workers=1,
            zones=(),
            load_balancer="",
            machines=(),
        )
        story = story_of(box, spec)
        async with story.watching():
            await story.run()
            assert [(step.failed, bool(step.outcome)) for step in story.view.steps] == [(False, True)] * 6
            assert await story.leftovers() == []
            told = await events(story)
            the_loss_alone_is_warned_of(told)

    asyncio.run(live())
