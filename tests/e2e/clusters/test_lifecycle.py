"""The main job with the real Cluster API core: a cluster's whole life, and what an operator sees of it."""

from __future__ import annotations

import base64

import pytest
import yaml

from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import EVENTS, SECRETS, Obj, labels_of
from caphv.runtime.cache import Change
from packager.definitions.files import management_git_repo
from packager.rendering.gitrepo import GitRepoOptions
from sandbox.capi.distribution import RKE2
from sandbox.capi.resources import CLUSTERS
from sandbox.cluster import CNI_FILE, CONTROL_PLANE_LABEL, LATER_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.addons.fleet import FleetCluster
from tests.support.addons.helm import Helm
from tests.support.e2e import SHORT_AND_WHOLE, services_of_the_guest_get_addresses
from tests.support.packager.repositories import Origin
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

MANAGEMENT_REPO = management_git_repo(GitRepoOptions("https://git.example.com/fleet.git"))


def scenario_of(box: Sandbox, spec: ClusterSpec) -> Scenario:
    # Patient: other tests may have the machine at the same time.
    return Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=300)


def condition(obj: Obj, kind: str) -> tuple[str, str]:
    found = next((c for c in obj["status"]["conditions"] if c["type"] == kind), {})
    return found.get("status", ""), found.get("reason", "")


async def provider_events(scenario: Scenario) -> list[Obj]:
    """All Events of the provider in the cluster's namespace."""
    listed = await scenario.management.list(EVENTS, scenario.spec.namespace)
    return [event for event in listed["items"] if event["source"].get("component") == "caphv-controller-manager"]


async def events(scenario: Scenario) -> set[tuple[str, str, str]]:
    """Kind of the object, type and reason of the provider's Events."""
    return {
        (event["involvedObject"]["kind"], event["type"], event["reason"]) for event in await provider_events(scenario)
    }


async def has_event(scenario: Scenario, reason: str) -> bool:
    return any(event["reason"] == reason for event in await provider_events(scenario))


async def warnings(scenario: Scenario) -> list[str]:
    """Reason and message of the provider's warnings."""
    return [
        f"{event['reason']}: {event['message']}"
        for event in await provider_events(scenario)
        if event["type"] == "Warning"
    ]


def the_loss_alone_is_warned_of(recorded: set[tuple[str, str, str]]) -> None:
    """Of the destroyed VM: that it is deleted, if anybody saw it go, and that it no longer exists."""
    warned = {reason for _, kind, reason in recorded if kind == "Warning"}
    assert "MachineNotFound" in warned
    assert warned <= {"MachineNotFound", "VMProvisioningInProgress"}


class Rollout:
    """Watches how machines are replaced while a step of the scenario runs."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._machines = scenario.view.machines
        self.most = self.fewest = len(scenario.view.control_planes())
        self.workers_before_control_plane = False
        self._version = scenario.spec.version
        self._machines.add_handler(self._changed)

    def _changed(self, _change: Change) -> None:
        machines = list(self._machines.store)
        control_planes = [m for m in machines if CONTROL_PLANE_LABEL in labels_of(m)]
        running = [m for m in self._scenario.view.running() if m in control_planes]
        self.most = max(self.most, len(control_planes))
        self.fewest = min(self.fewest, len(running))
        old = any(m["spec"]["version"] == self._version for m in control_planes)
        new = any(m["spec"]["version"] != self._version for m in machines if m not in control_planes)
        self.workers_before_control_plane |= old and new

    def end(self) -> None:
        self._machines.remove_handler(self._changed)


@SHORT_AND_WHOLE
async def test_cluster_over_three_zones_and_two_pools_from_creation_to_the_last_trace(
    box: Sandbox, whole: bool
) -> None:
    name = "zones-whole" if whole else "zones"
    scenario = scenario_of(box, ClusterSpec(name=name, namespace=name, target_namespace=f"{name}-vms"))
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()
        the_cluster_is_up(scenario)
        await the_first_boot_has_the_files_of_the_class(scenario)
        await lost_machines_are_replaced(scenario)
        await scenario.scale(5, 3)
        held = [pool["status"].get("allocated") or {} for pool in scenario.view.pools.store]
        assert sum(map(len, held)) == 9  # eight machines and the control plane's address
        await scenario.scale(3, 1)
        await a_version_is_rolled_out(scenario)
        if whole:
            # Otherwise by the lives of ClusterClasses.
            await scenario.set_variable("cpuCount", 3)
            assert {machine["spec"]["cpu"] for machine in scenario.view.harvester_machines.store} == {3}
        await scenario.delete()
        assert {(step.failed, bool(step.outcome)) for step in scenario.view.steps} == {(False, True)}
        assert await scenario.leftovers() == []
        # The last one is written after the objects are deleted.
        await until(lambda: has_event(scenario, "InfrastructureDeleted"), "the deletion has an Event")
        recorded = await events(scenario)
        the_loss_alone_is_warned_of(recorded)
        assert {reason for _, kind, reason in recorded if kind == "Normal"} >= {
            "ControlPlaneEndpointSet",
            "InfrastructureReady",
            "LoadBalancerCreated",
            "VMCreated",
        }


def the_cluster_is_up(scenario: Scenario) -> None:
    """What stands after creation: Nodes in zones, addresses of two pools, conditions that all say so."""
    assert scenario.view.zones() == {"zone-1", "zone-2", "zone-3"}
    # The first pool has four addresses for five machines.
    assert scenario.view.used_pools() == {"machines-a", "machines-b"}
    (cluster,), (infrastructure,) = scenario.view.clusters.store, scenario.view.harvester_clusters.store
    assert condition(cluster, "InfrastructureReady") == ("True", "Ready")
    assert condition(cluster, "ControlPlaneInitialized")[0] == "True"
    assert infrastructure["spec"]["controlPlaneEndpoint"] == cluster["spec"]["controlPlaneEndpoint"]
    assert {domain["name"] for domain in cluster["status"]["failureDomains"]} == scenario.view.zones()
    for kind in ("Ready", "InfrastructureReady", "LoadBalancerReady", "InitMachineCreated"):
        assert condition(infrastructure, kind) == ("True", kind)
    for machine in scenario.view.machines.store:
        own = scenario.view.harvester_machines.get(scenario.spec.namespace, infrastructure_ref(machine)[1])
        assert own is not None
        assert condition(own, "Ready") == ("True", "Ready")
        assert condition(machine, "InfrastructureReady")[0] == "True"
        assert machine["spec"]["providerID"] == own["spec"]["providerID"]
        assert machine["status"]["addresses"] == own["status"]["addresses"]
        if CONTROL_PLANE_LABEL in labels_of(machine):
            assert own["status"]["failureDomain"] == machine["spec"]["failureDomain"]
    assert {machine["spec"]["failureDomain"] for machine in scenario.view.control_planes()} == scenario.view.zones()


async def the_first_boot_has_the_files_of_the_class(scenario: Scenario) -> None:
    """A variable of the class puts them into the user data that a control plane guest gets from Harvester."""
    secrets = (await scenario.harvester.list(SECRETS, scenario.spec.target_namespace))["items"]
    texts = [base64.b64decode(value).decode() for secret in secrets for value in (secret.get("data") or {}).values()]
    assert sum(CNI_FILE in text for text in texts) == len(scenario.view.control_planes())


async def lost_machines_are_replaced(scenario: Scenario) -> None:
    await scenario.replace_lost(scenario.view.workers()[0])
    assert len(scenario.view.workers()) == 2
    assert ("HarvesterMachine", "Warning", "MachineNotFound") in await events(scenario)
    lost = scenario.view.control_planes()[0]
    await scenario.replace_lost(lost)
    assert {machine["spec"]["failureDomain"] for machine in scenario.view.control_planes()} == scenario.view.zones()
    (control_plane,) = (await scenario.management.list(RKE2.control_planes, scenario.spec.namespace))["items"]
    assert control_plane["status"]["lastRemediation"]["machine"] == lost["metadata"]["name"]


async def a_version_is_rolled_out(scenario: Scenario) -> None:
    """One machine more at a time, none less, and workers last."""
    rollout = Rollout(scenario)
    await scenario.upgrade(LATER_VERSION)
    rollout.end()
    assert (rollout.fewest, rollout.most) == (3, 4)
    assert not rollout.workers_before_control_plane
    assert {machine["spec"]["failureDomain"] for machine in scenario.view.control_planes()} == scenario.view.zones()


async def test_a_definition_becomes_a_cluster_and_a_changed_setting_one_small_commit(box: Sandbox) -> None:
    spec = ClusterSpec(name="defined", namespace="defined", target_namespace="defined", control_planes=1, workers=1)
    scenario = scenario_of(box, spec)
    async with scenario.watching():
        await scenario.define(1450)
        assert "one commit with bundles ccm, cni, csi;" in scenario.view.steps[-1].outcome
        await scenario.bring_up()
        kubeconfig = yaml.safe_load(box.kubeconfig("management").read_text())
        fleet = FleetCluster(scenario.management, Helm(kubeconfig))
        await fleet_is_content(scenario, fleet)
        await scenario.change_mtu(1400)
        await fleet_is_content(scenario, fleet)
        # The setting in the manifest and in the bundle, and the hash over the bundles; each with the line before.
        assert scenario.view.steps[-1].outcome == "6 lines in 3 files"
        (cluster,) = scenario.view.clusters.store
        assert "mtu: 1400" in cluster["metadata"]["annotations"]["addons.caphv.io/values"]
        await scenario.delete()
        assert await scenario.leftovers() == []


async def fleet_is_content(scenario: Scenario, fleet: FleetCluster) -> None:
    """Fleet finds its manifests unmodified, and leaves what the core has added: variables with their defaults."""
    files = Origin(scenario.folder / "fleet.git").files()
    await fleet.sync({path: text.encode() for path, text in files.items()}, MANAGEMENT_REPO)
    assert fleet.releases
    assert await fleet.detect_drift() == []
    # The sandbox has no GitRepos.
    assert {name.partition("-")[0] for name, release in fleet.releases.items() if release.error} <= {"gitrepos"}
    cluster = await scenario.management.get(CLUSTERS, scenario.spec.name, scenario.spec.namespace)
    (manifest,) = (
        obj for release in fleet.releases.values() for obj in release.bundle.objects if obj["kind"] == "Cluster"
    )
    wanted, live = ({row["name"] for row in obj["spec"]["topology"]["variables"]} for obj in (manifest, cluster))
    assert live - wanted == {"diskSize", "cpuCount", "memorySize", "largeWorker"}


async def test_cluster_with_all_addresses_by_dhcp(box: Sandbox) -> None:
    spec = ClusterSpec(
        name="dhcp",
        namespace="dhcp",
        target_namespace="dhcp-vms",
        control_planes=1,
        workers=1,
        load_balancer="",
        machines=(),
    )
    scenario = scenario_of(box, spec)
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()
        await services_of_the_guest_get_addresses(scenario)
        await scenario.delete()
        assert await scenario.leftovers() == []
        assert await warnings(scenario) == []
