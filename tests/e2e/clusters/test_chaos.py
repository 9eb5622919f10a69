"""Random faults from a seed while a cluster is created, scaled and deleted: in the end each object exists once.

Transport faults meet every request of the provider to Harvester, and the provider is killed in between. It runs with
the shipped, least-privilege roles. A seed with a short schedule runs always, twenty of a minute with
`make test-long`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import chaos, clusterclass
from sandbox.cluster import ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester.faults import Faults
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.consistency import wait_consistent
from tests.support.e2e import MOST_FAULTS

pytestmark = pytest.mark.e2e

CONVERGED_SECONDS = 240.0
SPEC = ClusterSpec(
    cluster_class=clusterclass.HARVESTER_RKE2,
    control_planes=1,
    workers=1,
    machines=("machines-b",),
    unhealthy_seconds=3600,
)


@pytest.mark.parametrize("seed", [MOST_FAULTS, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
async def test_a_short_storm_leaves_each_object_once(box: Sandbox, seed: int) -> None:
    await storm(box, seed, 15)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(11, 31))
async def test_a_long_storm_leaves_each_object_once(box: Sandbox, seed: int) -> None:
    await storm(box, seed, 60)


async def storm(box: Sandbox, seed: int, seconds: float) -> None:
    name = f"storm-{seed}"
    spec = replace(in_network(SPEC, box.status()["network"]), name=name, namespace=name, target_namespace=name)
    scenario = Scenario(box.folder, spec, timeout=seconds + CONVERGED_SECONDS)
    client = parse_kubeconfig(box.kubeconfig("harvester-direct").read_bytes()).client(name="harvester")
    steps = chaos.schedule(seed, seconds)
    async with scenario.watching():
        faults = asyncio.create_task(chaos.run(box, Faults(client), steps, lambda _step: None))
        try:
            await scenario.create()
            await scenario.bring_up()
            await scenario.scale(1, 2)
            await scenario.scale(1, 1)
            await faults
            left = await wait_consistent(scenario.management, client, [name], timeout=CONVERGED_SECONDS)
            assert left == [], f"seed {seed}: {left}"
            second = asyncio.create_task(chaos.run(box, Faults(client), chaos.schedule(-seed, seconds / 3), print))
            await scenario.delete()
            await second
            assert await scenario.leftovers() == [], f"seed {seed}"
        finally:
            faults.cancel()
            await asyncio.gather(faults, return_exceptions=True)
            await client.close()
