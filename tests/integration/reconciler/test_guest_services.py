"""Services of guests get addresses, with the VMs of the provider and on each release of Harvester."""

from __future__ import annotations

import pytest

from caphv.api.object import uid_of
from operations.doctor.guests import services
from operations.read.objects import HarvesterObjects
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


@pytest.mark.parametrize(("release", "is_chosen"), [("1.9", True), pytest.param("1.8", False, marks=pytest.mark.long)])
async def test_service_gets_the_only_address_of_the_network_that_it_names(
    environment: Environment, release: str, is_chosen: bool
) -> None:
    async with on_harvester(environment, f"chosen-{release.replace('.', '-')}", harvester=release) as case:
        await case.ready_cluster()
        machine = await case.ready_machine(f"{case.name}-worker", networks=["default/production", "default/storage"])
        of_production = await pool_of_guests(case, 1, "default/production")
        only = await case.storage_pool("only", 7, 7)
        scope = [{"namespace": case.target, "project": "*", "guestCluster": case.name}]
        await case.patch(kinds.IP_POOLS, only, {"spec": {"selector": {"scope": scope, "priority": 10}}})
        pools = [await case.get(kinds.IP_POOLS, name) for name in (of_production, only)]
        version = tuple(map(int, release.split(".")))
        text = services(HarvesterObjects(pools=pools), [machine], case.target, case.name, version)
        assert text.startswith(f"Services get addresses from IPPool {of_production}")
        address = f"{case.storage_subnet}.7"
        says = f"network: default/storage from IPPool {only} (always {address}"
        assert (says in text) == is_chosen
        assert ("has no effect before Harvester 1.9" in text) == (not is_chosen)

        assert allocated(await service(case, "first"))["ipPool"] == of_production
        chosen = allocated(await service(case, "chosen", network="default/storage"))
        assert (chosen["ipPool"] == only, chosen["ip"] == address) == (is_chosen, is_chosen)
        await remove(case, "chosen")
        again = allocated(await service(case, "again", network="default/storage"))
        assert (again["ip"] == address) == is_chosen
        for name in ("first", "again"):
            await remove(case, name)
        for pool in (of_production, only):
            assert await case.allocated(pool) == {}
        await case.harvester.delete(kinds.IP_POOLS, of_production)
