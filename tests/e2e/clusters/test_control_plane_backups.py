"""An upgrade of a control plane leaves backups of the machines that it replaced, and the deletion leaves nothing.

In the whole form, Harvester has faults and the provider is killed during the upgrade.
"""

from __future__ import annotations

import contextlib

import pytest

from caphv.api.object import Obj, at
from sandbox.cluster import LATER_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.e2e import MOST_FAULTS, SHORT_AND_WHOLE, storm
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

KEEP = 2


async def backups(scenario: Scenario) -> dict[str, Obj]:
    listed = await scenario.harvester.list(kinds.VM_BACKUPS, scenario.spec.target_namespace)
    return {str(at(item, "spec", "source", "name")): item for item in listed["items"]}


@SHORT_AND_WHOLE
async def test_upgrade_leaves_the_newest_backups_and_the_deletion_nothing(box: Sandbox, whole: bool) -> None:
    name = "backups-whole" if whole else "backups"
    spec = ClusterSpec(
        name=name,
        namespace=name,
        target_namespace=f"{name}-vms",
        control_planes=3,
        workers=0,
        machines=("machines-b",),
        unhealthy_seconds=3600,
        variables={"controlPlaneBackups": {"keep": KEEP}},
    )
    scenario = Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=300)
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()
        former = {machine["spec"]["infrastructureRef"]["name"] for machine in scenario.view.control_planes()}
        assert await backups(scenario) == {}

        async with storm(box, MOST_FAULTS, 60) if whole else contextlib.nullcontext():
            await scenario.upgrade(LATER_VERSION)

        async def are_kept() -> bool:
            return len(await backups(scenario)) == KEEP

        await until(are_kept, lambda: "the newest backups are kept")
        kept = await backups(scenario)
        assert set(kept) <= former, "workers and new machines have none"
        assert all(at(backup, "status", "readyToUse") is True for backup in kept.values())

        await scenario.delete()
        assert await scenario.leftovers() == []
