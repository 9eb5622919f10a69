"""The main scenarios on the other releases of Harvester, with the real core.

On the newest they are those of `clusters/test_lifecycle.py`. `test_migration.py` has the takeover on each release.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from caphv.api.resources import VIRTUAL_MACHINES
from sandbox.cluster import LATER_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.harvester.releases import NEWEST_STABLE, RELEASES
from sandbox.scenario.lifecycle import Scenario, in_network
from sandbox.state import SandboxSettings
from tests.support.e2e import impatient_core, running_sandbox, services_of_the_guest_get_addresses

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

MODES = {"pool": {}, "dhcp": {"load_balancer": "", "machines": ()}}


@pytest.fixture(scope="module", params=sorted(RELEASES.keys() - {NEWEST_STABLE}))
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with this release of Harvester."""
    settings = SandboxSettings(
        older_versions=False, boot_seconds=0.5, register_seconds=0.2, harvester=str(request.param)
    )
    with impatient_core(), running_sandbox(tmp_path_factory.mktemp("release"), settings) as box:
        yield box


@pytest.mark.parametrize("mode", MODES)
async def test_life_of_a_cluster(box: Sandbox, mode: str) -> None:
    options = {"control_planes": 1, "workers": 1, **MODES[mode]}
    spec = ClusterSpec(name=mode, namespace=mode, target_namespace=f"{mode}-vms", **options)  # type: ignore[arg-type]
    scenario = Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=300)
    async with scenario.watching():
        await scenario.create()
        await scenario.bring_up()
        vms = (await scenario.harvester.list(VIRTUAL_MACHINES, spec.target_namespace))["items"]
        guarded = {kinds.VM_GUARD in vm["metadata"]["finalizers"] for vm in vms}
        assert guarded == {RELEASES[box.settings.harvester].guards_vms}
        await services_of_the_guest_get_addresses(scenario)
        await scenario.replace_lost(scenario.view.workers()[0])
        await scenario.scale(1, 2)
        await scenario.upgrade(LATER_VERSION)
        await scenario.delete()
        assert await scenario.leftovers() == []
