"""The simulated Harvester records the run strategy of a VM, with which a stopped VM starts again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from caphv.api.object import Key, Obj
from caphv.runtime.errors import Invalid
from sandbox.harvester import kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers
from sandbox.harvester.virtualmachines import VirtualMachines

pytestmark = pytest.mark.unit


class Harvester:
    """The writes to VMs, all of which admission may refuse."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.vms = self
        self.refuses = refuses
        self.patches: list[Obj] = []

    async def patch(self, _informer: Any, _key: Key, patch: Obj) -> Obj:
        if self.refuses:
            raise Invalid(500, "InternalError", "network default/production not found")
        self.patches.append(patch)
        return patch


@pytest.mark.parametrize(
    ("spec", "recorded", "written"),
    [
        ({"runStrategy": "Always"}, "", "Always"),
        ({"runStrategy": "Manual"}, "Always", "Manual"),
        ({"running": True}, "", "Always"),
        ({"runStrategy": "Always"}, "Always", ""),
        ({"runStrategy": "Halted"}, "Always", ""),
        ({"running": False}, "", ""),
    ],
)
async def test_strategy_of_a_vm_that_is_not_halted_is_recorded(spec: Obj, recorded: str, written: str) -> None:
    harvester = Harvester()
    vm = await record(harvester, spec, recorded)
    metadata = {"annotations": {kinds.RUN_STRATEGY: written}, "resourceVersion": "7"}
    assert harvester.patches == ([{"metadata": metadata}] if written else [])
    assert vm["metadata"]["annotations"].get(kinds.RUN_STRATEGY, "") == (written or recorded)


async def test_vm_whose_updates_are_refused_runs_without_a_record() -> None:
    spec = {"runStrategy": "Always"}
    assert (await record(Harvester(refuses=True), spec, ""))["spec"] == spec


async def record(harvester: Harvester, spec: Obj, recorded: str) -> Obj:
    annotations = {kinds.RUN_STRATEGY: recorded} if recorded else {}
    metadata = {"name": "one", "namespace": "vms", "resourceVersion": "7", "annotations": annotations}
    machines = VirtualMachines(cast(Informers, harvester), SimulatorConfig())
    return await machines._record_run_strategy({"metadata": metadata, "spec": spec})
