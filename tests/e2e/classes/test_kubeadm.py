"""Control planes of kubeadm: its real providers see the members of a real etcd, through port forwarding."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from caphv.api.object import SECRETS, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.runtime.etcd import find_pods, list_members
from caphv.runtime.exec import ExecError
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import clusterclass
from sandbox.cluster import EARLIER_VERSION, KUBERNETES_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.e2e import SHORT_AND_WHOLE, create_class_without_surge, holds
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PATIENCE = 300.0
CONTROL_PLANES = Resource("controlplane.cluster.x-k8s.io", "v1beta2", "kubeadmcontrolplanes", "KubeadmControlPlane")


async def members(client: ApiClient) -> set[str]:
    """Names of the members of etcd, as `caphv etcd` asks for them; empty while none answers."""
    try:
        return {member.name for member in await list_members(client, (await find_pods(client))[0])}
    except (ApiError, Unreachable, ExecError, IndexError):
        return set()


def nodes(scenario: Scenario) -> set[str]:
    """Names of the Nodes of the control plane's machines."""
    found = [(machine.get("status") or {}).get("nodeRef") or {} for machine in scenario.view.control_planes()]
    return {str(node.get("name")) for node in found}


async def control_plane(scenario: Scenario) -> Obj:
    """The KubeadmControlPlane of the cluster."""
    found: list[Any] = (await scenario.management.list(CONTROL_PLANES, scenario.spec.namespace))["items"]
    return found[0]


@SHORT_AND_WHOLE
async def test_etcd_has_a_member_for_each_machine(box: Sandbox, whole: bool) -> None:
    name = f"kubeadm-etcd{'-whole' if whole else ''}"
    spec = ClusterSpec(
        name=name,
        namespace=name,
        target_namespace=f"{name}-vms",
        control_planes=3,
        workers=1,
        cluster_class=clusterclass.HARVESTER_KUBEADM,
        version=EARLIER_VERSION.partition("+")[0],
        class_namespace=name if whole else "default",
        load_balancer="",
        machines=(),
    )
    scenario = Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=PATIENCE)
    async with scenario.watching():
        if whole:
            await create_class_without_surge(scenario)
        await scenario.create()
        await scenario.bring_up()
        secret = await scenario.management.get(SECRETS, f"{name}-kubeconfig", name)
        client = parse_kubeconfig(base64.b64decode(secret["data"]["value"])).client(name="workload")
        try:
            await etcd_follows_machines(scenario, client)
            if whole:
                await a_rollout_without_surge_keeps_the_quorum(scenario, client)
                await a_lost_quorum_is_reported_and_removes_nothing(scenario)
        finally:
            await client.close()
        await scenario.delete()
        assert await scenario.leftovers() == []


async def etcd_follows_machines(scenario: Scenario, client: ApiClient) -> None:
    async def they_agree() -> bool:
        return len(nodes(scenario)) == 3 and await members(client) == nodes(scenario)

    await until(they_agree, "etcd has a member for each machine", PATIENCE)
    await scenario.replace_lost(scenario.view.control_planes()[0])
    await until(they_agree, "etcd has a member for each machine after a replacement", PATIENCE)


async def a_rollout_without_surge_keeps_the_quorum(scenario: Scenario, client: ApiClient) -> None:
    """Each machine leaves before its successor comes."""
    counts: set[int] = set()
    count = lambda _change: counts.add(len(scenario.view.control_planes()))  # noqa: E731
    scenario.view.machines.add_handler(count)
    await scenario.upgrade(KUBERNETES_VERSION)
    scenario.view.machines.remove_handler(count)

    assert counts == {2, 3}
    assert len(nodes(scenario)) == 3
    assert await members(client) == nodes(scenario)


async def a_lost_quorum_is_reported_and_removes_nothing(scenario: Scenario) -> None:
    before = nodes(scenario)
    for machine in scenario.view.control_planes()[:2]:
        await scenario.destroy(machine["metadata"]["name"])

    async def is_unhealthy() -> bool:
        return not holds(await control_plane(scenario), "EtcdClusterHealthy")

    await until(is_unhealthy, "EtcdClusterHealthy is not true", PATIENCE)
    assert nodes(scenario) == before
