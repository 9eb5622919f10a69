"""Services of guests get addresses, with the VMs of the provider and on each release of Harvester."""

from __future__ import annotations

import pytest

from caphv.api.object import uid_of
from sandbox.harvester import kinds
from tests.support.reconciler.environment import Environment
from tests.support.reconciler.guestparts import allocated, pool_of_guests, remove, service
from tests.support.reconciler.ownharvester import on_harvester

pytestmark = pytest.mark.integration

CREATOR, GUEST = "harvesterhci.io/creator", "guestcluster.harvesterhci.io/name"
RELEASES = [
    pytest.param(release, marks=[] if release == "1.8.0" else pytest.mark.long)
    for release in ("1.5", "1.6", "1.7", "1.8.0", "1.8", "1.9")
]


@pytest.mark.parametrize("release", RELEASES)
async def test_services_of_a_guest_get_addresses(environment: Environment, release: str) -> None:
    async with on_harvester(environment, f"on-{release.replace('.', '-')}", harvester=release) as case:
        await case.ready_cluster()
        name = f"{case.name}-worker"
        await case.ready_machine(name)
        vm, instance = await case.vm(name), await case.get(kinds.INSTANCES, name)
        assert vm["metadata"]["labels"][GUEST] == case.name
        zones = {host.zone for host in case.environment.world.hosts}
        zoned = await case.until(
            kinds.INSTANCES, name, lambda obj: "topology.kubernetes.io/zone" in str(obj["metadata"])
        )
        assert zoned["metadata"]["annotations"]["topology.kubernetes.io/zone"] in zones
        assert allocated(await service(case, "by-dhcp", ipam="dhcp"))["ip"] == "0.0.0.0"

        # A pool without a network serves a guest whose instances hide theirs.
        anywhere = await pool_of_guests(case, 1, "")
        await case.until(kinds.INSTANCES, name, lambda obj: GUEST not in obj["metadata"]["labels"])
        assert allocated(await service(case, "first"))["ipPool"] == anywhere

        # A pool of the network of the VMs comes, and instances show theirs again.
        vlan = await pool_of_guests(case, 2, "default/production")
        await case.until(kinds.INSTANCES, name, lambda obj: obj["metadata"]["labels"].get(GUEST) == case.name)
        assert allocated(await service(case, "second"))["ipPool"] == vlan

        # Nothing restarted, and each address returns to its pool.
        assert uid_of(await case.get(kinds.INSTANCES, name)) == uid_of(instance)
        for balancer in ("by-dhcp", "first", "second"):
            await remove(case, balancer)
        for pool in (anywhere, vlan):
            assert await case.allocated(pool) == {}
            await case.harvester.delete(kinds.IP_POOLS, pool)
