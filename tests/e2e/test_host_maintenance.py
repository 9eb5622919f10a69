"""The hosts of a Harvester are maintained one after the other: no guest restarts, no Machine is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from caphv.api.object import NODES, annotations_of, uid_of
from sandbox.cluster import ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import maintenance
from sandbox.harvester.faults import Fault, Faults
from sandbox.scenario.lifecycle import Scenario, in_network
from sandbox.state import SandboxSettings
from tests.support.e2e import running_sandbox
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

HOSTS = ("harvester-1", "harvester-2", "harvester-3")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with running_sandbox(
        tmp_path_factory.mktemp("hosts"), SandboxSettings(older_versions=False, boot_seconds=0.5, register_seconds=0.2)
    ) as box:
        yield box


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


async def completed(scenario: Scenario, host: str) -> bool:
    node = await scenario.harvester.get(NODES, host)
    return annotations_of(node).get(maintenance.STATUS) == maintenance.COMPLETED
