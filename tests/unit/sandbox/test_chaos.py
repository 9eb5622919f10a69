"""Schedules of random faults, and what counts as a leftover on Harvester."""

from typing import Any

import pytest

from caphv.api.object import Obj, Resource
from caphv.api.resources import HARVESTER_MACHINES
from sandbox import chaos
from sandbox.consistency import problems
from sandbox.harvester import kinds
from sandbox.harvester.faults import KINDS

pytestmark = pytest.mark.unit


def test_a_seed_always_gives_the_same_schedule() -> None:
    assert chaos.schedule(7, 60) == chaos.schedule(7, 60)
    assert chaos.schedule(7, 60) != chaos.schedule(8, 60)


def test_twenty_seeds_of_a_minute_contain_every_fault_and_kills() -> None:
    steps = [step for seed in range(11, 31) for step in chaos.schedule(seed, 60)]
    assert {step.fault.name for step in steps if step.fault} == set(chaos.FAULTS)
    assert all(KINDS[name].in_transport for name in chaos.FAULTS)
    assert any(step.fault is None for step in steps)
    assert all(step.fault for seed in range(5) for step in chaos.schedule(seed, 60, kills=False))


class Server:
    """Answers lists from a table."""

    def __init__(self, objects: dict[Resource, list[Obj]]) -> None:
        self._objects = objects

    async def list(self, resource: Resource, _namespace: str = "") -> dict[str, Any]:
        return {"items": self._objects.get(resource, [])}


def vm(name: str, *disks: str) -> Obj:
    volumes = [{"name": disk, "persistentVolumeClaim": {"claimName": disk}} for disk in disks]
    return {"metadata": {"name": name}, "spec": {"template": {"spec": {"volumes": volumes}}}}


async def test_leftovers_and_duplicates_are_named() -> None:
    machine = {"metadata": {"name": "one"}, "spec": {"volumes": [{}]}}
    allocated = {"10.0.0.1": "team/one", "10.0.0.2": "team/one", "10.0.0.3": "team/old", "10.0.0.4": "other/x"}
    harvester = {
        kinds.VIRTUAL_MACHINES: [vm("one"), vm("two")],
        kinds.IP_POOLS: [{"metadata": {"name": "pool"}, "status": {"allocated": allocated}}],
    }
    found = await problems(
        Server({HARVESTER_MACHINES: [machine]}),  # type: ignore[arg-type]
        Server(harvester),  # type: ignore[arg-type]
        ["team"],
    )
    assert found == [
        "VM two has no machine",
        "VM one has 0 disks instead of 1",
        "address 10.0.0.3 of IPPool pool is held by team/old",
        "one holds 2 addresses",
    ]
