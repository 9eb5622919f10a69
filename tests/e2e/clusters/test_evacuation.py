"""Two hosts and a witness: hosts are emptied of guests with devices, which health checks would replace meanwhile.

Harvester has faults, and the provider is restarted and killed while a host is emptied.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from caphv.api import names
from caphv.api.object import NODES, Obj, annotations_of, at, key_of, uid_of
from caphv.runtime.cache import Change
from commands.main import cli
from sandbox.cluster import ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import kinds, maintenance
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.e2e import SHORT_AND_WHOLE, STORMS, holds, storm
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

UNHEALTHY_SECONDS = 5
GPU = "example.com/gpu"
SITE = ("harvester-1", "harvester-2")
WITNESS = "harvester-3"


@SHORT_AND_WHOLE
@pytest.mark.timeout(900)
async def test_hosts_with_devices_are_maintained_one_after_the_other(box: Sandbox, whole: bool) -> None:
    name = "devices-whole" if whole else "devices"
    spec = ClusterSpec(control_planes=3, workers=1, unhealthy_seconds=UNHEALTHY_SECONDS)
    spec = replace(in_network(spec, box.status()["network"]), name=name, namespace=name, target_namespace=name)
    scenario = Scenario(box.folder, spec, timeout=300)
    async with scenario.watching(), two_hosts_and_a_witness(scenario):
        await scenario.create()
        await scenario.bring_up()
        await until(lambda: all(holds(obj, "Available") for obj in scenario.view.clusters.store), "it works", 120)
        for vm in scenario.view.vms.store:
            await add_device(scenario, key_of(vm).name)
        before = {uid_of(machine) for machine in scenario.view.machines.store}
        absent = AbsentServers(scenario)

        for host in SITE if whole else SITE[:1]:
            leaving = [
                key_of(each).name for each in scenario.view.instances.store if each["status"]["nodeName"] == host
            ]
            assert leaving, "the machines are spread over both hosts"
            evacuation = asyncio.create_task(caphv(box, "evacuate", host, "--yes", "--wait", "--timeout", "5m"))
            await until(lambda: bool(moving(scenario)), "a machine begins to move", 60)
            await box.restart("provider")
            async with storm(box, *STORMS[whole]):
                result = await evacuation
            assert result.exit_code == 0, result.output
            assert host not in hosts(scenario)
            # Harvester would have refused it before.
            await maintenance.enable(scenario.harvester, host)
            await until(lambda host=host: completed(scenario, host), f"{host} is empty", 60)
            await maintenance.disable(scenario.harvester, host)
            result = await caphv(box, "evacuate", host, "--yes", "--cancel", "--wait", "--timeout", "2m")
            assert result.exit_code == 0, result.output

        if whole:
            await survive_an_upgrade(scenario)
        await until(lambda: not any(map(records, everything(scenario))), "no record is left", 60)
        await asyncio.sleep(2 * UNHEALTHY_SECONDS)
        assert {uid_of(machine) for machine in scenario.view.machines.store} == before, "a Machine was replaced"
        assert absent.most == 1, "members of etcd stop one at a time"
        await scenario.delete()
        assert await scenario.leftovers() == []


async def survive_an_upgrade(scenario: Scenario) -> None:
    """Have Harvester upgrade the host with fewer control plane machines, without an evacuation before."""
    host = min(SITE, key=lambda name: sum(each == name for each in hosts(scenario)))
    await maintenance.begin_upgrade(scenario.harvester, host)
    await until(lambda: host not in hosts(scenario), f"{host} is empty", 60)
    vms = {key_of(vm) for vm in scenario.view.vms.store}
    await until(lambda: {key_of(each) for each in scenario.view.instances.store} == vms, "all VMs run", 60)
    await maintenance.end_upgrade(scenario.harvester, host)


@asynccontextmanager
async def two_hosts_and_a_witness(scenario: Scenario) -> AsyncIterator[None]:
    """Devices on two hosts, and a third one that takes no VMs."""
    harvester = scenario.harvester
    for host in SITE:
        await harvester.patch(NODES, host, "", {"status": {"allocatable": {GPU: "9"}}}, subresource="status")
    taint = {"key": "node-role.kubernetes.io/etcd", "value": "true", "effect": "NoExecute"}
    label = {"labels": {names.WITNESS_LABEL: "true"}}
    await harvester.patch(NODES, WITNESS, "", {"metadata": label, "spec": {"taints": [taint]}})
    try:
        yield
    finally:
        unset = {"metadata": {"labels": {names.WITNESS_LABEL: None}}, "spec": {"taints": None}}
        await harvester.patch(NODES, WITNESS, "", unset)
        for host in SITE:
            annotations = {names.EVACUATE_ANNOTATION: None}
            await harvester.patch(NODES, host, "", {"metadata": {"annotations": annotations}})
            await maintenance.disable(harvester, host)
            await maintenance.end_upgrade(harvester, host)


async def add_device(scenario: Scenario, name: str) -> None:
    """Give a VM a device, as if it had started with it."""
    namespace = scenario.spec.target_namespace
    domain = {"domain": {"devices": {"hostDevices": [{"name": "gpu", "deviceName": GPU}]}}}
    await scenario.harvester.patch(kinds.VIRTUAL_MACHINES, name, namespace, {"spec": {"template": {"spec": domain}}})
    conditions = [kinds.condition("LiveMigratable", False, "HostDeviceNotLiveMigratable")]
    patch = {"spec": domain, "status": {"conditions": conditions}}
    await scenario.harvester.patch(kinds.INSTANCES, name, namespace, patch)


class AbsentServers:
    """How many control plane machines had no instance at once, at most."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self.most = scenario, 0
        scenario.view.instances.add_handler(self._observe)

    def _observe(self, _change: Change) -> None:
        view = self._scenario.view
        running = {key_of(instance).name for instance in view.instances.store}
        servers = {at(machine, "spec", "infrastructureRef", "name") for machine in view.control_planes()}
        self.most = max(self.most, len(servers - running))


def hosts(scenario: Scenario) -> list[str]:
    return [str(at(instance, "status", "nodeName") or "") for instance in scenario.view.instances.store]


def moving(scenario: Scenario) -> list[Obj]:
    machines = scenario.view.harvester_machines.store
    return [machine for machine in machines if names.EVACUATED_FROM_ANNOTATION in annotations_of(machine)]


def everything(scenario: Scenario) -> list[Obj]:
    view = scenario.view
    return [*view.machines.store, *view.harvester_machines.store, *view.vms.store]


def records(obj: Obj) -> list[str]:
    """What an evacuation has recorded on an object."""
    ours = (names.EVACUATED_FROM_ANNOTATION, names.EVACUATED_STRATEGY_ANNOTATION, names.AVOIDED_HOSTS_ANNOTATION)
    return [name for name in (*ours, names.SKIP_REMEDIATION_ANNOTATION) if name in annotations_of(obj)]


async def completed(scenario: Scenario, host: str) -> bool:
    node = await scenario.harvester.get(NODES, host)
    return annotations_of(node).get(maintenance.STATUS) == maintenance.COMPLETED


async def caphv(box: Sandbox, *words: str) -> Result:
    access = ("--harvester-kubeconfig", str(administrator(box)), "--kubeconfig", str(box.kubeconfig("management")))
    return await asyncio.to_thread(CliRunner().invoke, cli, [*words, *access])


def administrator(box: Sandbox) -> Path:
    """An administrator's kubeconfig of Harvester."""
    direct = box.folder / "harvester-direct.kubeconfig"
    return direct if direct.exists() else box.kubeconfig("harvester")
