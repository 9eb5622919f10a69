"""Maintenance of hosts: what Harvester and KubeVirt do with the VMs on them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import NODES, Obj, annotations_of, uid_of
from sandbox.harvester import kinds, maintenance
from sandbox.harvester.config import Host
from sandbox.harvester.fault_actions import FaultError
from sandbox.harvester.faults import Fault, Faults
from sandbox.processes import network
from sandbox.processes.apiserver import ApiServer
from tests.support.fixtures import entered
from tests.support.simulation import Place, Simulation, simulation

pytestmark = pytest.mark.integration

HOSTS = (Host("host-1"), Host("host-2"), Host("host-3", witness=True))
PINNED = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["host-1"]}]}
            ]
        }
    }
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def place(etcd_folder: Path) -> Iterator[Place]:
    """An API server of this module, for its own hosts."""
    server = ApiServer(etcd_folder, "maintained-harvester")
    asyncio.run(server.start())
    with network.claim() as (claimed, _):
        yield Place(server, str(claimed))
    asyncio.run(server.stop())


@pytest.fixture
def sim(place: Place, runner: asyncio.Runner) -> Iterator[Simulation]:
    with entered(simulation(place, f"maintenance-{next(_numbers)}", hosts=HOSTS), runner) as sim:
        yield sim
        runner.run(Faults(sim.client).clear())


async def running(sim: Simulation, name: str, **changes: Any) -> Obj:
    await sim.create_vm(name, **changes)
    return await sim.until(kinds.INSTANCES, name, lambda vmi: vmi["status"].get("interfaces"))


async def enter_maintenance(sim: Simulation, host: str) -> None:
    await Faults(sim.client).inject(Fault("host-maintenance", host))
    await sim.until(NODES, host, lambda node: annotations_of(node).get(maintenance.STATUS) == "completed")


def other(host: str) -> str:
    return {"host-1": "host-2", "host-2": "host-1"}[host]


async def test_vm_that_can_migrate_leaves_its_host_without_a_restart(sim: Simulation) -> None:
    before = await running(sim, "one", eviction_strategy="LiveMigrateIfPossible")
    host = before["status"]["nodeName"]
    await enter_maintenance(sim, host)
    after = await sim.client.get(kinds.INSTANCES, "one", sim.namespace)
    assert uid_of(after) == uid_of(before)
    assert after["status"]["nodeName"] == other(host)
    assert "evacuationNodeName" not in after["status"]
    assert (await sim.client.get(NODES, host))["spec"]["unschedulable"]
    await Faults(sim.client).clear()
    node = await sim.client.get(NODES, host)
    assert not node["spec"].get("unschedulable")
    assert maintenance.STATUS not in annotations_of(node)


@pytest.mark.parametrize("changes", [{}, {"eviction_strategy": "None"}], ids=["no-strategy", "strategy-none"])
async def test_vm_without_an_eviction_strategy_is_killed_and_restarted_elsewhere(
    sim: Simulation, changes: dict[str, str]
) -> None:
    before = await running(sim, "one", **changes)
    await enter_maintenance(sim, before["status"]["nodeName"])
    after = await sim.until(kinds.INSTANCES, "one", lambda vmi: uid_of(vmi) != uid_of(before))
    after = await sim.until(kinds.INSTANCES, "one", lambda vmi: vmi["status"].get("interfaces"))
    assert after["status"]["nodeName"] == other(before["status"]["nodeName"])


async def test_vm_that_migrates_waits_for_a_free_host(sim: Simulation) -> None:
    before = await running(sim, "one", eviction_strategy="LiveMigrateIfPossible")
    host = before["status"]["nodeName"]
    await maintenance.enable(sim.client, host)
    await sim.client.patch(NODES, other(host), "", {"spec": {"unschedulable": True}})
    await asyncio.sleep(0.5)
    assert uid_of(await sim.client.get(kinds.INSTANCES, "one", sim.namespace)) == uid_of(before)
    await sim.client.patch(NODES, other(host), "", {"spec": {"unschedulable": None}})
    await sim.until(kinds.INSTANCES, "one", lambda vmi: vmi["status"]["nodeName"] == other(host))
    await maintenance.disable(sim.client, host)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"affinity": PINNED}, "node scheduling requirements not met"),
        ({"access_mode": "ReadWriteOnce"}, "DisksNotLiveMigratable"),
    ],
    ids=["pinned", "local-disk"],
)
async def test_maintenance_is_refused_while_a_vm_cannot_leave(
    sim: Simulation, changes: dict[str, Any], reason: str
) -> None:
    vmi = await running(sim, "one", eviction_strategy="LiveMigrateIfPossible", **changes)
    host = vmi["status"]["nodeName"]
    with pytest.raises(FaultError, match="enabling maintenance mode is impossible") as refused:
        await Faults(sim.client).inject(Fault("host-maintenance", host))
    assert f"{reason}: {sim.namespace}/one" in str(refused.value)
    assert not (await sim.client.get(NODES, host))["spec"].get("unschedulable")
    await maintenance.enable(sim.client, host, force=True)
    await sim.until(NODES, host, lambda node: annotations_of(node).get(maintenance.STATUS) == "completed")
    await maintenance.disable(sim.client, host)


async def test_the_last_usable_host_cannot_be_maintained_and_a_witness_takes_no_vm(sim: Simulation) -> None:
    vmi = await running(sim, "one", eviction_strategy="LiveMigrateIfPossible")
    await enter_maintenance(sim, vmi["status"]["nodeName"])
    with pytest.raises(FaultError, match="is the last usable host"):
        await Faults(sim.client).inject(Fault("host-maintenance", other(vmi["status"]["nodeName"])))
    vmi = await sim.client.get(kinds.INSTANCES, "one", sim.namespace)
    assert vmi["status"]["nodeName"] != "host-3"


async def test_drain_stays_open_for_strategies_that_kubevirt_does_not_migrate(sim: Simulation) -> None:
    before = await running(sim, "one", eviction_strategy="External")
    host = before["status"]["nodeName"]
    await maintenance.enable(sim.client, host)
    vmi = await sim.until(kinds.INSTANCES, "one", lambda vmi: vmi["status"].get("evacuationNodeName") == host)
    assert uid_of(vmi) == uid_of(before)
    await asyncio.sleep(0.5)
    assert maintenance.DRAIN_REQUESTED in annotations_of(await sim.client.get(NODES, host))
    await maintenance.disable(sim.client, host)


@pytest.mark.parametrize("kind", ["forced", "upgrade"])
async def test_what_cannot_migrate_is_halted_and_not_started_again(sim: Simulation, kind: str) -> None:
    local = await running(sim, "local", eviction_strategy="LiveMigrateIfPossible", access_mode="ReadWriteOnce")
    host = local["status"]["nodeName"]
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}
    preferred = [{"weight": 100, "preference": here}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    before = await running(sim, "moving", eviction_strategy="LiveMigrateIfPossible", affinity=affinity)
    assert before["status"]["nodeName"] == host

    if kind == "forced":
        await maintenance.enable(sim.client, host, force=True)
    else:
        await maintenance.begin_upgrade(sim.client, host)
    try:
        await sim.until_gone(kinds.INSTANCES, "local")
        vm = await sim.client.get(kinds.VIRTUAL_MACHINES, "local", sim.namespace)
        assert vm["spec"]["runStrategy"] == "Halted"
        after = await sim.until(kinds.INSTANCES, "moving", lambda vmi: vmi["status"]["nodeName"] == other(host))
        assert uid_of(after) == uid_of(before)
        if kind == "forced":
            await sim.until(NODES, host, lambda node: annotations_of(node).get(maintenance.STATUS) == "completed")
    finally:
        await maintenance.disable(sim.client, host)
        await maintenance.end_upgrade(sim.client, host)
    assert maintenance.DRAIN_TAINT not in (await sim.client.get(NODES, host))["spec"].get("taints", [])
    vm = await sim.client.get(kinds.VIRTUAL_MACHINES, "local", sim.namespace)
    assert vm["spec"]["runStrategy"] == "Halted", "Harvester starts it neither way"
