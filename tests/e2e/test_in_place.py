"""Machines of the real Cluster API core and their disks grow in place; any other change replaces them as ever.

Harvester has faults and the provider is killed while CPUs are added, and the provider restarts while disks are.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from caphv.api import names
from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import Obj, Resource, annotations_of, at, uid_of
from caphv.api.resources import EXTENSION_CONFIGS
from caphv.runtime.kubeconfig import parse_kubeconfig
from operations.change.plan.planning import plan_of_manifests
from sandbox import clusterclass
from sandbox.capi.core import GATES_VARIABLE
from sandbox.cluster import EARLIER_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.scenario.lifecycle import Scenario, in_network
from sandbox.state import SandboxSettings, State
from tests.support.e2e import (
    SHORT_AND_WHOLE,
    STORMS,
    create_class_without_surge,
    holds,
    impatient_core,
    running_sandbox,
    storm,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PATIENCE = 300.0
SETTINGS = SandboxSettings(older_versions=False, webhooks=True, kubeadm=True, boot_seconds=0.3, register_seconds=0.1)
NAMESPACES = ("grow", "grow-whole", "grow-kubeadm")
OPTION = "--runtime-extension-bind-address="
Identities = dict[str, tuple[str, str, str]]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox whose core updates in place, with the runtime extension registered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(GATES_VARIABLE, "RuntimeSDK=true,InPlaceUpdates=true")
        with impatient_core(), running_sandbox(tmp_path_factory.mktemp("in-place"), SETTINGS) as box:
            asyncio.run(register(box))
            yield box


async def register(box: Sandbox) -> None:
    """Register the extension for the namespaces of this module, as a user does."""
    state = State.load(box.folder)
    assert state
    (option,) = [word for word in state.processes["provider"].command if word.startswith(OPTION)]
    authority = (box.folder / "provider-webhooks" / "ca.crt").read_bytes()
    config = {
        "metadata": {"name": "caphv"},
        "spec": {
            "clientConfig": {
                "url": f"https://{option.removeprefix(OPTION)}",
                "caBundle": base64.b64encode(authority).decode(),
            },
            "namespaceSelector": {
                "matchExpressions": [
                    {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(NAMESPACES)}
                ]
            },
        },
    }
    client = parse_kubeconfig(box.kubeconfig("management").read_bytes()).client(name="management")
    try:
        await client.create(EXTENSION_CONFIGS, kinds.typed(EXTENSION_CONFIGS, config))

        async def is_discovered() -> bool:
            return holds(await client.get(EXTENSION_CONFIGS, "caphv"), "Discovered")

        await until(is_discovered, "the core has discovered the extension", 60)
    finally:
        await client.close()


@SHORT_AND_WHOLE
async def test_workers_grow_without_a_replacement(box: Sandbox, whole: bool) -> None:
    name = NAMESPACES[whole]
    scenario = scenario_of(
        box, name, control_planes=1, workers=3, variables={"worker": {"cpuCount": 4, "cpuMax": 8, "memoryMax": "8Gi"}}
    )
    async with scenario.watching():
        await scenario.create()
        await roll_out_without_surge(scenario)
        await scenario.bring_up()
        before = identities(scenario, scenario.view.workers())
        await all_can_grow(scenario, 3)
        grown = {"cpuCount": 8, "cpuMax": 8, "memoryMax": "8Gi"}
        await is_planned_in_place(scenario, grown)
        assert await planned(scenario, {**grown, "cpuMax": 16}) == [(0, 3)]

        await set_variable(scenario, "worker", grown)
        await until(lambda: any(map(is_updating, scenario.view.machines.store)), "a machine is updated", PATIENCE)
        async with storm(box, *STORMS[whole]):
            await until(lambda: sizes(scenario, scenario.view.workers()) == [8, 8, 8], "all have grown", PATIENCE)
        await has_rolled_out(scenario, lambda: sizes(scenario, scenario.view.workers()) == [8, 8, 8])
        assert identities(scenario, scenario.view.workers()) == before
        # Neither the finalizer nor the identity of the machine is lost.
        for machine in scenario.view.workers():
            obj = harvester_machine(scenario, machine)
            assert obj["metadata"]["finalizers"] == [names.MACHINE_FINALIZER]
            assert obj["spec"]["providerID"] == machine["spec"]["providerID"]

        # The machines keep their VMs with larger and additional disks, too, whenever the provider stops.
        worker = {**grown, "volumes": larger_disks(scenario)}
        wanted = [[volume["volumeSize"] for volume in worker["volumes"]]] * 3
        await is_planned_in_place(scenario, worker)
        await set_variable(scenario, "worker", worker)
        await restart_until(box, lambda: disks(scenario) == wanted, 30 if whole else 2)
        await has_rolled_out(scenario, lambda: disks(scenario) == wanted)
        assert identities(scenario, scenario.view.workers()) == before

        if whole:
            await another_image_replaces_workers(scenario, before)
        await scenario.delete()
        assert await scenario.leftovers() == []


@pytest.mark.long
async def test_control_plane_of_kubeadm_grows_without_a_replacement(box: Sandbox) -> None:
    name = NAMESPACES[2]
    scenario = scenario_of(
        box,
        name,
        control_planes=3,
        workers=1,
        cluster_class=clusterclass.HARVESTER_KUBEADM,
        version=EARLIER_VERSION.partition("+")[0],
        class_namespace=name,
        load_balancer="",
        machines=(),
        variables={"controlPlane": {"cpuCount": 2, "cpuMax": 4}},
    )
    async with scenario.watching():
        await create_class_without_surge(scenario)
        await scenario.create()
        await scenario.bring_up()
        before = identities(scenario, scenario.view.control_planes())
        await all_can_grow(scenario, 3)

        await set_variable(scenario, "controlPlane", {"cpuCount": 4, "cpuMax": 4})
        await has_rolled_out(scenario, lambda: sizes(scenario, scenario.view.control_planes()) == [4, 4, 4])
        assert identities(scenario, scenario.view.control_planes()) == before
        await scenario.delete()
        assert await scenario.leftovers() == []


def scenario_of(box: Sandbox, name: str, **fields: Any) -> Scenario:
    spec = ClusterSpec(name=name, namespace=name, target_namespace=f"{name}-vms", **fields)
    return Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=PATIENCE)


async def roll_out_without_surge(scenario: Scenario) -> None:
    rolling = {"maxSurge": 0, "maxUnavailable": 1}
    rollout = {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}
    path = "/spec/topology/workers/machineDeployments/0/rollout"
    await patch_cluster(scenario, {"op": "add", "path": path, "value": rollout})


async def set_variable(scenario: Scenario, name: str, value: object) -> None:
    (cluster,) = scenario.view.clusters.store
    variables = [entry["name"] for entry in cluster["spec"]["topology"]["variables"]]
    path = f"/spec/topology/variables/{variables.index(name)}/value"
    await patch_cluster(scenario, {"op": "replace", "path": path, "value": value})


async def planned(scenario: Scenario, worker: Obj) -> list[tuple[int, int]]:
    """For each pool that changes, how many machines a plan updates in place and replaces."""
    (cluster,) = scenario.view.clusters.store
    spec = copy.deepcopy(cluster["spec"])
    (variable,) = [entry for entry in spec["topology"]["variables"] if entry["name"] == "worker"]
    variable["value"] = worker
    head = {"apiVersion": scenario.view.clusters.resource.api_version, "kind": "Cluster"}
    metadata = {name: cluster["metadata"][name] for name in ("name", "namespace")}
    manifest = {**head, "metadata": metadata, "spec": spec}
    plan = await plan_of_manifests(scenario.management, [manifest], scenario.spec.namespace, with_harvester=False)
    assert [change.error for change in plan.objects] == [""]
    return [(pool.updated, pool.replaced) for found in plan.clusters for pool in found.pools]


async def is_planned_in_place(scenario: Scenario, worker: Obj) -> None:
    """Wait until a plan updates the workers in place.

    The MachineDeployment reports the end of its rollout, and machines that their VMs are as wanted, some time later.
    """

    async def is_reached() -> bool:
        return await planned(scenario, worker) == [(3, 0)]

    await until(is_reached, "the change is planned in place", 60)


async def patch_cluster(scenario: Scenario, operation: Obj) -> None:
    informer = scenario.view.clusters
    name, namespace = scenario.spec.name, scenario.spec.namespace
    await scenario.management.patch(informer.resource, name, namespace, [operation], patch_type="json")


async def all_can_grow(scenario: Scenario, count: int) -> None:
    def condition_is_true() -> bool:
        return sum(holds(machine, "VMCanGrow") for machine in scenario.view.harvester_machines.store) == count

    await until(condition_is_true, f"{count} VMs can grow", 60)


async def has_annotation(scenario: Scenario) -> None:
    """Wait until the MachineSet has the annotation of its MachineDeployment, which the core sends to the provider."""
    sets = Resource("cluster.x-k8s.io", "v1beta2", "machinesets", "MachineSet")

    async def is_copied() -> bool:
        found: list[Obj] = (await scenario.management.list(sets, scenario.spec.namespace))["items"]
        return any(names.IN_PLACE_ANNOTATION in annotations_of(obj) for obj in found)

    await until(is_copied, "the annotation is on the MachineSet", PATIENCE)


async def has_rolled_out(scenario: Scenario, is_reached: Any) -> None:
    def is_over() -> bool:
        machines = scenario.view.machines.store
        return is_reached() and all(not is_updating(machine) and holds(machine, "UpToDate") for machine in machines)

    await until(is_over, "the rollout is over", PATIENCE)


def is_updating(machine: Obj) -> bool:
    return names.UPDATE_IN_PROGRESS_ANNOTATION in annotations_of(machine)


def larger_disks(scenario: Scenario) -> list[Obj]:
    """The volumes of workers with a larger first disk and an additional empty one."""
    machine = harvester_machine(scenario, scenario.view.workers()[0])
    disk, *others = machine["spec"]["volumes"]
    (vm, *_) = scenario.view.vms.store
    template, *_ = json.loads(annotations_of(vm)[names.VOLUME_CLAIM_TEMPLATES_ANNOTATION])
    empty = {"volumeType": "storageClass", "storageClass": template["spec"]["storageClassName"]}
    empty |= {"volumeSize": "10Gi", "accessMode": "ReadWriteMany"}
    return [{**disk, "volumeSize": "60Gi"}, *others, empty]


def disks(scenario: Scenario) -> list[list[str]]:
    """Capacities of the disks that the instance of each worker has."""
    namespace = scenario.spec.target_namespace
    capacities = []
    for machine in scenario.view.workers():
        vmi = scenario.view.instances.get(namespace, infrastructure_ref(machine)[1])
        states = [state for state in at(vmi, "status", "volumeStatus") or () if state["target"]]
        sizes = [at(state, "persistentVolumeClaimInfo", "capacity", "storage") for state in states]
        capacities.append([size for size in sizes if size])
    return capacities


async def restart_until(box: Sandbox, is_reached: Any, times: int) -> None:
    for _ in range(times):
        if is_reached():
            return
        await box.restart("provider")


async def another_image_replaces_workers(scenario: Scenario, before: Identities) -> None:
    """An image, like any other field but the sizes, needs new VMs. Policy `Only` stops the rollout before."""
    pool = "/spec/topology/workers/machineDeployments/0"
    metadata = {"annotations": {names.IN_PLACE_ANNOTATION: "Only"}}
    await patch_cluster(scenario, {"op": "add", "path": f"{pool}/metadata", "value": metadata})
    await has_annotation(scenario)
    image = await scenario.harvester.get(kinds.IMAGES, "sles-15", "default")
    other = {"metadata": {"name": "other", "namespace": "default"}, "spec": {**image["spec"], "displayName": "other"}}
    await scenario.harvester.create(kinds.IMAGES, kinds.typed(kinds.IMAGES, other))
    disk = {"volumeType": "image", "imageName": "default/other", "volumeSize": "40Gi", "bootOrder": 1}
    await set_variable(scenario, "worker", {"cpuCount": 8, "cpuMax": 8, "memoryMax": "8Gi", "volumes": [disk]})

    def are_outdated() -> bool:
        return not any(holds(machine, "UpToDate") for machine in scenario.view.workers())

    await until(are_outdated, "the core wants other workers", PATIENCE)
    # No event tells that nothing happens.
    await asyncio.sleep(10)
    assert identities(scenario, scenario.view.workers()) == before
    await patch_cluster(scenario, {"op": "remove", "path": f"{pool}/metadata"})

    def are_new() -> bool:
        workers = identities(scenario, scenario.view.workers())
        return len(workers) == 3 and not before.keys() & workers.keys()

    await has_rolled_out(scenario, are_new)


def identities(scenario: Scenario, machines: list[Obj]) -> Identities:
    """Of each Machine the uids of Machine, VM and its instance."""
    found = {}
    for machine in machines:
        name = infrastructure_ref(machine)[1]
        informers = (scenario.view.vms, scenario.view.instances)
        objects = [informer.get(scenario.spec.target_namespace, name) for informer in informers]
        vm, instance = (uid_of(obj) if obj else "" for obj in objects)
        found[machine["metadata"]["name"]] = (uid_of(machine), vm, instance)
    return found


def sizes(scenario: Scenario, machines: list[Obj]) -> list[int]:
    """CPUs that the instances of machines have."""
    namespace = scenario.spec.target_namespace
    instances = [scenario.view.instances.get(namespace, infrastructure_ref(machine)[1]) for machine in machines]
    return [at(vmi, "status", "currentCPUTopology", "sockets") or 0 for vmi in instances]


def harvester_machine(scenario: Scenario, machine: Obj) -> Obj:
    found = scenario.view.harvester_machines.get(scenario.spec.namespace, infrastructure_ref(machine)[1])
    assert found is not None
    return found
