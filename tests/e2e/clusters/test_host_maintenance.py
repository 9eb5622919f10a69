"""The hosts of a Harvester are maintained, then upgraded: no guest restarts, no Machine is replaced or unready.

The provider restarts while a host is drained. Then hosts are maintained in spite of faults and killed providers, with
which Machines may be unready, but stay as well.
"""

from __future__ import annotations

import asyncio
import base64

import pytest

from caphv.api import names
from caphv.api.object import NODES, SECRETS, Obj, annotations_of, at, labels_of, uid_of
from caphv.runtime.cache import Change
from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox.cluster import ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import maintenance
from sandbox.harvester.faults import Fault, Faults
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.e2e import SHORT_AND_WHOLE, STORMS, holds, storm
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

HOSTS = ("harvester-1", "harvester-2", "harvester-3")


@SHORT_AND_WHOLE
@pytest.mark.timeout(900)
async def test_three_hosts_are_maintained_without_a_restart_or_a_new_machine(box: Sandbox, whole: bool) -> None:
    name = "moving-whole" if whole else "moving"
    spec = ClusterSpec(name=name, namespace=name, target_namespace=name, control_planes=3, workers=2)
    scenario = Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=300)
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()
        machines = {uid_of(machine) for machine in scenario.view.machines.store}
        guests = {uid_of(instance) for instance in scenario.view.instances.store}
        watch = Watch(scenario)
        faults = Faults(scenario.harvester)
        workload = await workload_client(scenario)
        for host in HOSTS:
            await faults.inject(Fault("host-maintenance", host))
            if host == HOSTS[1]:
                await box.restart("provider")
            await until(lambda host=host: completed(scenario, host), f"{host} is empty")
            await until(lambda host=host: is_empty(scenario, host), f"the view shows that {host} is empty")
            await until(lambda: zones_follow(scenario, workload), "the Nodes have the zones of their hosts")
            await faults.clear()
            await asyncio.sleep(1)
            assert {uid_of(instance) for instance in scenario.view.instances.store} == guests
            assert {uid_of(machine) for machine in scenario.view.machines.store} == machines

        for host in HOSTS:
            await maintenance.begin_upgrade(scenario.harvester, host)
            await until(lambda host=host: is_empty(scenario, host), f"{host} is empty")
            await maintenance.end_upgrade(scenario.harvester, host)
            assert {uid_of(instance) for instance in scenario.view.instances.store} == guests
        assert {uid_of(machine) for machine in scenario.view.machines.store} == machines
        # Machines have the annotation while their VMs migrate, and none has it afterwards.
        assert watch.shielded
        await until(lambda: not any(map(is_shielded, scenario.view.machines.store)), "remediation is allowed again")
        assert watch.unready == []

        async with storm(box, *STORMS[whole]):
            for host in HOSTS if whole else HOSTS[:1]:
                await maintenance.enable(scenario.harvester, host)
                await until(lambda host=host: completed(scenario, host), f"{host} is empty")
                await maintenance.disable(scenario.harvester, host)
        await until(lambda: not any(map(is_shielded, scenario.view.machines.store)), "remediation is allowed again")
        await until(lambda: zones_follow(scenario, workload), "the Nodes have the zones of their hosts")
        assert {uid_of(instance) for instance in scenario.view.instances.store} == guests
        assert {uid_of(machine) for machine in scenario.view.machines.store} == machines
        await workload.close()
        assert len(scenario.view.running()) == len(machines)
        await scenario.delete()


class Watch:
    """What objects reported while hosts were drained."""

    def __init__(self, scenario: Scenario) -> None:
        self.unready: list[str] = []
        self.shielded: set[str] = set()
        scenario.view.machines.add_handler(self._note_shield)
        for informer in (scenario.view.harvester_machines, scenario.view.harvester_clusters):
            informer.add_handler(self._note_readiness)

    def _note_readiness(self, change: Change) -> None:
        if change.new is not None and not holds(change.new, "Ready"):
            self.unready.append(str(change.key))

    def _note_shield(self, change: Change) -> None:
        if change.new is not None and is_shielded(change.new):
            self.shielded.add(str(change.key))


async def workload_client(scenario: Scenario) -> ApiClient:
    secret = await scenario.management.get(SECRETS, f"{scenario.spec.name}-kubeconfig", scenario.spec.namespace)
    return parse_kubeconfig(base64.b64decode(secret["data"]["value"])).client(name="workload")


async def zones_follow(scenario: Scenario, workload: ApiClient) -> bool:
    """Whether each Node and each machine has the zone of the host that its VM is on."""
    hosts = {obj["metadata"]["name"]: labels_of(obj) for obj in (await scenario.harvester.list(NODES))["items"]}
    expected = {
        str(instance["metadata"]["name"]): hosts[instance["status"]["nodeName"]][names.ZONE_LABEL]
        for instance in scenario.view.instances.store
    }
    nodes = (await workload.list(NODES))["items"]
    labels = {obj["metadata"]["name"]: labels_of(obj).get(names.ZONE_LABEL) for obj in nodes}
    domains = {
        obj["metadata"]["name"]: at(obj, "status", "failureDomain") for obj in scenario.view.harvester_machines.store
    }
    return labels == domains == expected


def is_shielded(machine: Obj) -> bool:
    return names.SKIP_REMEDIATION_ANNOTATION in annotations_of(machine)


def is_empty(scenario: Scenario, host: str) -> bool:
    return host not in {instance["status"]["nodeName"] for instance in scenario.view.instances.store}


async def completed(scenario: Scenario, host: str) -> bool:
    node = await scenario.harvester.get(NODES, host)
    return annotations_of(node).get(maintenance.STATUS) == maintenance.COMPLETED
