"""The hosts of a Harvester are maintained one after the other: no guest restarts, no Machine is replaced."""

from __future__ import annotations

import asyncio

import pytest

from caphv.api.object import NODES, annotations_of, uid_of
from sandbox.cluster import ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import maintenance
from sandbox.harvester.faults import Fault, Faults
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

HOSTS = ("harvester-1", "harvester-2", "harvester-3")


async def test_three_hosts_are_maintained_without_a_restart_or_a_new_machine(box: Sandbox) -> None:
    spec = ClusterSpec(name="moving", namespace="moving", target_namespace="moving", control_planes=3, workers=2)
    scenario = Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=300)
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()
        machines = {uid_of(machine) for machine in scenario.view.machines.store}
        guests = {uid_of(instance) for instance in scenario.view.instances.store}
        faults = Faults(scenario.harvester)
        for host in HOSTS:
            await faults.inject(Fault("host-maintenance", host))
            await until(lambda host=host: completed(scenario, host), f"{host} is empty")
            assert host not in {instance["status"]["nodeName"] for instance in scenario.view.instances.store}
            await faults.clear()
            await asyncio.sleep(1)
            assert {uid_of(instance) for instance in scenario.view.instances.store} == guests
            assert {uid_of(machine) for machine in scenario.view.machines.store} == machines
        assert len(scenario.view.running()) == len(machines)
        await scenario.delete()


async def completed(scenario: Scenario, host: str) -> bool:
    node = await scenario.harvester.get(NODES, host)
    return annotations_of(node).get(maintenance.STATUS) == maintenance.COMPLETED
