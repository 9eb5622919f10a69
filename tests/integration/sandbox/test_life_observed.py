"""The simulated KubeVirt reports the states of a VM in the order in which a real virt-controller did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

import pytest

from caphv.api.object import Obj
from caphv.runtime.cache import Change, Informer
from sandbox.harvester import fault_actions, kinds
from sandbox.processes import network
from sandbox.processes.apiserver import ApiServer
from tests.support.observed import Record, records
from tests.support.simulation import Place, Simulation, simulation
from tests.support.waiting import until

pytestmark = pytest.mark.integration

# Long enough that the simulator writes each state.
SLOW = {
    "claim_seconds": 1.2,
    "bind_seconds": 1.2,
    "start_seconds": 1.2,
    "stop_seconds": 0.6,
    "migrate_seconds": 1.2,
}
RECORDS = {record.name: record for record in records("kubevirt/life-v1.7.0.yaml")}


@pytest.fixture(scope="module")
def place(etcd_folder: Path) -> Iterator[Place]:
    server = ApiServer(etcd_folder, "observed-life")
    asyncio.run(server.start())
    with network.claim() as (claimed, _):
        yield Place(server, str(claimed))
    asyncio.run(server.stop())


def observed(record: Record, field: str) -> list[str]:
    values = [state[field] for state in record.outcome["states"] if state[field]]
    return [value for value, _ in groupby(values)]


@asynccontextmanager
async def words(sim: Simulation) -> AsyncIterator[tuple[list[str], list[Obj]]]:
    """The distinct values of `printableStatus`, and all states of the instance, as they come."""
    printed: list[str] = []
    instances: list[Obj] = []

    def vm_changed(change: Change) -> None:
        word = (change.obj.get("status") or {}).get("printableStatus")
        if word and (not printed or printed[-1] != word):
            printed.append(word)

    vms, vmis = (
        Informer(sim.client, kind, namespace=sim.namespace) for kind in (kinds.VIRTUAL_MACHINES, kinds.INSTANCES)
    )
    vms.add_handler(vm_changed)
    vmis.add_handler(lambda change: instances.append(change.obj))
    tasks = [vms.start(), vmis.start()]
    await asyncio.gather(vms.wait_synced(), vmis.wait_synced())
    try:
        yield printed, instances
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _restart(sim: Simulation) -> None:
    await fault_actions.restart(sim.client, f"{sim.namespace}/one")


async def _stop(sim: Simulation) -> None:
    patch = {"spec": {"runStrategy": "Halted"}}
    await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", sim.namespace, patch)


async def _migrate(sim: Simulation) -> None:
    await fault_actions.migrate(sim.client, f"{sim.namespace}/one")


async def test_creation_as_observed(place: Place) -> None:
    record = RECORDS["creation"]
    async with simulation(place, "observed-creation", **SLOW) as sim, words(sim) as (printed, instances):
        await sim.create_vm("one")
        await until(lambda: printed[-1:] == ["Running"], lambda: f"{printed}")
    assert printed == observed(record, "vm")
    phases = [phase for phase, _ in groupby(vmi["status"]["phase"] for vmi in instances)]
    assert phases == observed(record, "instance")

    reasons = [
        f"{entry['status']} {entry['reason']}"
        for vmi in instances
        for entry in vmi["status"].get("conditions") or ()
        if entry["type"] == "Synchronized"
    ]
    real = {state["Synchronized"].partition(":")[0] for state in record.outcome["states"] if "Synchronized" in state}
    assert set(reasons) == real


@pytest.mark.parametrize(
    ("name", "act", "last"),
    [("restart", _restart, "Running"), ("stop", _stop, "Stopped"), ("migrate", _migrate, "Running")],
)
async def test_change_of_a_running_vm_as_observed(
    place: Place, name: str, act: Callable[[Simulation], Awaitable[None]], last: str
) -> None:
    record = RECORDS[name]
    async with simulation(place, f"observed-{name}", **{**SLOW, "claim_seconds": 0.0, "bind_seconds": 0.0}) as sim:
        await sim.create_vm("one")
        await sim.until(kinds.VIRTUAL_MACHINES, "one", lambda vm: vm.get("status", {}).get("ready"))
        await sim.addresses("one")
        async with words(sim) as (printed, instances):
            await until(lambda: printed == ["Running"] and instances)
            await act(sim)
            await until(lambda: len(printed) > 1 and printed[-1] == last, lambda: f"{printed}")
            if name == "migrate":
                assert instances[-1]["status"]["nodeName"] != instances[0]["status"]["nodeName"]
    assert printed == observed(record, "vm")


async def test_agent_is_silent_after_a_migration_and_a_reboot(place: Place) -> None:
    async with simulation(place, "silent", agent_seconds=0.5) as sim:
        await sim.create_vm("one")
        before = await sim.addresses("one")
        for act in (fault_actions.migrate, fault_actions.reboot):
            async with words(sim) as (_, instances):
                await until(lambda: instances)
                await act(sim.client, "silent/one")
                # On a busy machine the agent may answer again before anyone looks.
                silent = await until(lambda: _silent(instances), "the agent's addresses are absent")
                assert {entry["infoSource"] for entry in silent["status"]["interfaces"]} == {"domain"}
                assert silent["status"]["phase"] == "Running"
                await until(lambda: _addresses(instances[-1]) == before, "the agent answers again")


def _silent(states: list[Obj]) -> Obj | None:
    """The first state of an instance without addresses."""
    return next((vmi for vmi in states if not _addresses(vmi)), None)


def _addresses(vmi: Obj) -> list[str]:
    return [entry["ipAddress"] for entry in vmi["status"]["interfaces"] if entry.get("ipAddress")]
