"""A pool of workers with GPUs grows beyond the devices: a machine says where they are, and takes a free one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from click.testing import CliRunner

from caphv.api.object import NODES, Obj, at, key_of
from commands.main import cli
from sandbox.cluster import ClusterSpec
from sandbox.environment import Sandbox
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.reconciler.case import HARVESTER_MACHINE_TEMPLATES, MACHINES
from tests.support.reconciler.conditions import condition_of, is_false
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

NAME = "gpus"
GPU = "nvidia.com/GA102GL_A10"
WAITS = is_false("VMProvisioningReady", "DevicesExhausted", f"no host of Harvester has 1 {GPU} free: ")


@pytest.mark.timeout(600)
async def test_fourth_machine_waits_for_one_of_three_devices_and_takes_the_first_free_one(box: Sandbox) -> None:
    devices = [{"resourceName": GPU, "nodeResource": "nvidia.com/gpu"}]
    spec = ClusterSpec(control_planes=1, workers=3, variables={"worker": {"devices": devices}}, unhealthy_seconds=300)
    spec = replace(in_network(spec, box.status()["network"]), name=NAME, namespace=NAME, target_namespace=NAME)
    scenario = Scenario(box.folder, spec, timeout=180)
    async with scenario.watching(), hosts_with_devices(scenario, {"harvester-1": 2, "harvester-2": 1}):
        await scenario.create()
        await scenario.bring_up()
        assert sorted(used_hosts(scenario)) == ["harvester-1", "harvester-1", "harvester-2"]
        await until(lambda: offers_gpus(scenario), "the template of the workers says what its Nodes offer", 30)

        output = await caphv(box, "scale", f"{NAME}/{NAME}", "--workers", "4", "--yes")
        assert f"free devices {GPU}: 0" in output
        await until(lambda: len(waiting(scenario)) == 1, "the fourth machine waits", 60)
        message = condition_of(waiting(scenario)[0], "VMProvisioningReady")["message"]
        assert "harvester-1 has 0 of 2 free, harvester-2 has 0 of 1 free" in message

        # The core deletes the machine with the annotation first, so that one with a device leaves the pool.
        waits = key_of(waiting(scenario)[0]).name
        freed = next(m for m in scenario.view.workers() if m["spec"]["infrastructureRef"]["name"] != waits)
        vm = freed["spec"]["infrastructureRef"]["name"]
        marked = {"metadata": {"annotations": {"cluster.x-k8s.io/delete-machine": ""}}}
        await scenario.management.patch(MACHINES, freed["metadata"]["name"], NAME, marked)
        await caphv(box, "scale", f"{NAME}/{NAME}", "--workers", "3", "--yes")
        await until(lambda: scenario.view.instances.get(NAME, vm) is None, "a device is free", 60)
        await until(lambda: host_of(scenario, waits), "the waiting machine takes it", 20)
        await scenario.scale(1, 3)
        assert sorted(used_hosts(scenario)) == ["harvester-1", "harvester-1", "harvester-2"]
        await scenario.delete()
        assert await scenario.leftovers() == []


@asynccontextmanager
async def hosts_with_devices(scenario: Scenario, counts: dict[str, int]) -> AsyncIterator[None]:
    for host, count in counts.items():
        await offer(scenario, host, count)
    try:
        yield
    finally:
        for host in counts:
            await offer(scenario, host, None)


async def offer(scenario: Scenario, host: str, count: int | None) -> None:
    amount = None if count is None else str(count)
    await scenario.harvester.patch(NODES, host, "", {"status": {"allocatable": {GPU: amount}}}, subresource="status")


async def offers_gpus(scenario: Scenario) -> bool:
    templates = (await scenario.management.list(HARVESTER_MACHINE_TEMPLATES, NAME))["items"]
    found = [template for template in templates if at(template, "spec", "template", "spec", "devices")]
    return bool(found) and all(at(item, "status", "capacity", "nvidia.com/gpu") == "1" for item in found)


def waiting(scenario: Scenario) -> list[Obj]:
    return [machine for machine in scenario.view.harvester_machines.store if WAITS(machine)]


def host_of(scenario: Scenario, vm: str) -> str:
    return str(at(scenario.view.instances.get(NAME, vm), "status", "nodeName") or "")


def used_hosts(scenario: Scenario) -> list[str]:
    """The hosts of the workers."""
    return [host_of(scenario, machine["spec"]["infrastructureRef"]["name"]) for machine in scenario.view.workers()]


async def caphv(box: Sandbox, *words: str) -> str:
    access = ("--kubeconfig", str(box.kubeconfig("management")))
    result = await asyncio.to_thread(CliRunner().invoke, cli, [*words, *access])
    assert result.exit_code == 0, result.output
    return str(result.output)
