"""What counts as a leftover on Harvester."""

from typing import Any

import pytest

from caphv.api.object import Obj, Resource
from caphv.api.resources import HARVESTER_MACHINES
from sandbox.harvester import kinds
from tests.support.consistency import problems

pytestmark = pytest.mark.unit


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
