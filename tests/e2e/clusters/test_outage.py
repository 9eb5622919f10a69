"""An outage of Harvester's API, with the real Cluster API core: no machine is replaced, no condition flips."""

from __future__ import annotations

import asyncio

import pytest

from caphv.api.object import uid_of
from caphv.runtime.cache import Change
from caphv.runtime.kubeconfig import parse_kubeconfig
from operations.read.objects import condition_of
from reconciler.memory.periods import GRACE_SECONDS
from sandbox.cluster import ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester.faults import Fault, Faults
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(control_planes=1, workers=1, machines=("machines-b",))
# A MachineHealthCheck acts after two seconds, the provider reports an outage after the grace period.
OUTAGE_SECONDS = GRACE_SECONDS + 10.0
SUMMARIES = {
    "Cluster": ("Available", "InfrastructureReady", "WorkersAvailable", "ControlPlaneAvailable"),
    "Machine": ("Ready", "Available", "InfrastructureReady"),
    "HarvesterCluster": ("Ready", "InfrastructureReady"),
    "HarvesterMachine": ("Ready", "InfrastructureReady"),
}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("away", "HarvesterUnreachable"),
        pytest.param("unauthorized", "HarvesterAuthenticationFailed", marks=pytest.mark.long),
    ],
)
async def test_an_outage_changes_nothing_that_was_known(box: Sandbox, fault: str, reason: str) -> None:
    spec = in_network(SPEC, box.status()["network"])
    scenario = Scenario(box.folder, spec, timeout=300)
    client = parse_kubeconfig(box.kubeconfig("harvester-direct").read_bytes()).client(name="harvester")
    faults, flips = Faults(client), set[str]()

    def record(change: Change) -> None:
        kind = change.resource.kind
        for summary in SUMMARIES[kind] if change.new else ():
            condition = condition_of(change.new, summary)
            if condition.get("status", "True") != "True":
                flips.add(f"{kind} {change.key.name}: {summary} is {condition['status']}: {condition.get('message')}")

    def connection() -> tuple[str, str]:
        found = condition_of(scenario.view.harvester_cluster(), "HarvesterConnectionReady")
        return str(found.get("status")), str(found.get("reason"))

    def available() -> bool:
        clusters = list(scenario.view.clusters.store)
        return all(condition_of(cluster, "Available").get("status") == "True" for cluster in clusters)

    async with scenario.watching():
        try:
            await scenario.create()
            await scenario.bring_up()
            await until(available, "the Cluster is available", 120)
            view = scenario.view
            before = {uid_of(machine) for machine in view.machines.store}
            watched = (view.clusters, view.machines, view.harvester_clusters, view.harvester_machines)
            for informer in watched:
                informer.add_handler(record)

            await faults.inject(Fault(fault))
            await until(lambda: connection() == ("False", reason), "the outage is reported", 2 * GRACE_SECONDS)
            await asyncio.sleep(OUTAGE_SECONDS)
            await faults.clear(fault)
            await until(lambda: connection()[0] == "True", "the connection is back", 60)

            assert flips == set()
            assert {uid_of(machine) for machine in view.machines.store} == before
            for informer in watched:
                informer.remove_handler(record)
            await scenario.delete()
        finally:
            await faults.clear()
            await client.close()
