"""Talos on the sandbox, from the example: the machine API creates the cluster and changes its etcd."""

from __future__ import annotations

import pytest

from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import SECRETS, Obj, Resource, at, key_of, labels_of, uid_of
from caphv.api.resources import HARVESTER_MACHINE_TEMPLATES
from caphv.runtime.errors import RequestError
from sandbox import manifests
from sandbox.capi.resources import CLUSTERS, MACHINES
from sandbox.capi.state import node_name
from sandbox.capi.talos.kinds import CONFIGS, CONTROL_PLANES, client_config_name
from sandbox.capi.talos.machineclient import MachineClient
from sandbox.cluster import CLUSTER_LABEL, KUBERNETES_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.scenario.lifecycle import Scenario
from tests.support.clusterexamples import on_sandbox, with_few_machines
from tests.support.e2e import holds, seen
from tests.support.paths import CHECKOUT
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAME = "talos-life"
PATIENCE = 200.0


async def test_a_cluster_of_talos_lives_from_its_creation_to_its_deletion(box: Sandbox) -> None:
    wanted = on_sandbox(box, NAME, manifests.read([CHECKOUT / "examples" / "talos.yaml"]))
    with_few_machines(wanted)
    (cluster,) = (obj for obj in wanted if obj["kind"] == CLUSTERS.kind)
    spec = ClusterSpec(cluster["metadata"]["name"], NAME, NAME, 1, 1)
    scenario = Scenario(box.folder, spec, timeout=PATIENCE)
    async with scenario.watching():
        await scenario.apply(wanted)
        await scenario.bring_up()
        await seen(scenario.management, NAME, CLUSTERS, lambda obj: holds(obj, "Available"))
        await seen(scenario.management, NAME, CONTROL_PLANES, lambda obj: holds(obj, "Ready"))
        # The provider of control planes gives a Machine and its HarvesterMachine different names.
        assert all(node_name(machine) == infrastructure_ref(machine)[1] for machine in scenario.view.machines.store)

        await a_single_machine_is_replaced_for_another_version(scenario)
        await scale(scenario, 3)
        await a_deleted_machine_is_replaced(scenario)
        await scale(scenario, 2)

        await scenario.delete()
        assert await scenario.leftovers() == []
        await until(lambda: has_no_trace(scenario), "all objects of the cluster are deleted")


async def a_single_machine_is_replaced_for_another_version(scenario: Scenario) -> None:
    """Change the version of the control plane: another machine joins etcd before the first leaves it."""
    before = scenario.view.control_planes()
    patch = {"spec": {"version": KUBERNETES_VERSION}}
    await scenario.management.patch(CONTROL_PLANES, control_plane_name(scenario), NAME, patch)
    await until(lambda: was_deleted(scenario, before[0]), "the machine is replaced", seconds=PATIENCE)
    await scenario.bring_up()
    (machine,) = scenario.view.control_planes()
    assert machine["spec"]["version"] == KUBERNETES_VERSION
    await until(lambda: has_its_members(scenario), "etcd has one member")


async def scale(scenario: Scenario, replicas: int) -> None:
    """Scale the control plane, and check that each machine and no other has a member of etcd."""
    await scenario.management.patch(
        CONTROL_PLANES, control_plane_name(scenario), NAME, {"spec": {"replicas": replicas}}
    )
    scenario._control_planes = replicas
    await scenario.bring_up()
    await until(lambda: has_its_members(scenario), f"etcd has {replicas} members")


async def a_deleted_machine_is_replaced(scenario: Scenario) -> None:
    """Delete a Machine as a user does: its member is removed, and those of the others stay."""
    before = await members_of(scenario)
    victim = scenario.view.control_planes()[0]
    await scenario.management.delete(MACHINES, key_of(victim).name, NAME)
    await until(lambda: was_deleted(scenario, victim), "the machine is deleted", seconds=PATIENCE)
    await scenario.bring_up()
    await until(lambda: has_its_members(scenario), "etcd has the members of the machines")
    after = await members_of(scenario)
    assert len(before.items() & after.items()) == 2
    assert node_name(victim) not in after


def was_deleted(scenario: Scenario, deleted: Obj) -> bool:
    return all(uid_of(machine) != uid_of(deleted) for machine in scenario.view.machines.store)


def control_plane_name(scenario: Scenario) -> str:
    (cluster,) = scenario.view.clusters.store
    return str(at(cluster, "spec", "controlPlaneRef", "name"))


async def members_of(scenario: Scenario) -> dict[str, str]:
    """Members of etcd, by the names of their hosts, as a machine reports them."""
    (cluster,) = scenario.view.clusters.store
    secret = await scenario.management.get(SECRETS, client_config_name(key_of(cluster)), NAME)
    machine = scenario.view.control_planes()[-1]
    members = (await MachineClient(secret).call(machine, "EtcdMemberList"))["members"]
    return {member["hostname"]: member["id"] for member in members}


async def has_its_members(scenario: Scenario) -> bool:
    """Whether each machine and no other has a member. A machine that is being deleted may not answer."""
    try:
        members = await members_of(scenario)
    except RequestError:
        return False
    return members.keys() == {node_name(machine) for machine in scenario.view.control_planes()}


async def has_no_trace(scenario: Scenario) -> bool:
    """Whether the management cluster has no object of the cluster, templates and Secrets included."""
    kinds: tuple[Resource, ...] = (CONFIGS, CONTROL_PLANES, HARVESTER_MACHINE_TEMPLATES, SECRETS)
    left: list[Obj] = []
    for kind in kinds:
        found = (await scenario.management.list(kind, NAME))["items"]
        left += [obj for obj in found if kind is not SECRETS or CLUSTER_LABEL in labels_of(obj)]
    return not left
