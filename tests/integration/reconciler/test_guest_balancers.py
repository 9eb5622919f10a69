"""Load balancers that guests created on Harvester are deleted with their cluster, and no others."""

from __future__ import annotations

import pytest

from caphv.api.guestparts import recorded_guest
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, annotations_of
from sandbox.harvester import kinds
from tests.support.reconciler.case import AT_ONCE, CLUSTERS, HARVESTER_CLUSTERS, HARVESTER_MACHINES, MASK, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_true
from tests.support.reconciler.guestparts import allocated, pool_of_guests, remove, service

pytestmark = pytest.mark.integration

FORCE = {"metadata": {"annotations": {"caphv.io/force-delete": "true"}}}


async def guest_pool(case: Case, number: int) -> str:
    """A pool for Services of guests, which is deleted after the test."""
    pool = await pool_of_guests(case, number, "default/production")
    case.pools.append(pool)
    return pool


async def ready(case: Case) -> None:
    """A cluster with one machine, whose VM proves what is the guest's."""
    await case.ready_cluster()
    await case.ready_machine(f"{case.name}-worker")


async def until_recorded(case: Case, name: str) -> None:
    """Wait until the load balancer carries the proof."""
    await case.until(kinds.LOAD_BALANCERS, name, lambda obj: (owner := recorded_guest(obj)) and owner.name == case.name)


async def test_only_load_balancers_of_the_deleted_cluster_are_deleted(case: Case, other: Case) -> None:
    namespace, other.target = other.target, case.target
    pool = await guest_pool(case, 1)
    await ready(case)
    await ready(other)
    for cluster in (case, other):
        for name in ("web", "api"):
            assert allocated(await service(cluster, f"{cluster.name}-{name}"))["ipPool"] == pool
            await until_recorded(cluster, f"{cluster.name}-{name}")
    # One that a user made by hand, with the labels of the cluster but for a VM.
    labels = {"cloudprovider.harvesterhci.io/cluster": case.name}
    by_hand = {"metadata": {"name": "by-hand", "namespace": case.target, "labels": labels}}
    by_hand["spec"] = {"workloadType": "vm", "ipam": "dhcp", "listeners": [], "backendServerSelector": {}}
    await case.harvester.create(kinds.LOAD_BALANCERS, kinds.typed(kinds.LOAD_BALANCERS, by_hand))

    await case.delete()

    assert await other.names(kinds.LOAD_BALANCERS) == ["by-hand", f"{other.name}-api", f"{other.name}-web"]
    holders = set((await case.allocated(pool)).values())
    assert holders == {f"{other.target}/{other.name}-{name}" for name in ("api", "web")}
    await case.until_event(case.name, "Normal", "GuestLoadBalancerDeleted")

    await other.delete()
    assert await case.allocated(pool) == {}
    await remove(case, "by-hand")
    other.target = namespace


async def test_load_balancer_of_two_guests_with_one_name_is_kept(case: Case) -> None:
    await guest_pool(case, 2)
    await ready(case)
    vm = await case.vm(f"{case.name}-worker")
    labels = {**vm["metadata"]["labels"], "caphv.io/cluster": f"elsewhere.{case.name}"}
    metadata = {"name": "twin", "namespace": case.target, "labels": labels}
    spec = {"runStrategy": "Halted", "template": {"spec": {"domain": vm["spec"]["template"]["spec"]["domain"]}}}
    await case.harvester.create(
        kinds.VIRTUAL_MACHINES, kinds.typed(kinds.VIRTUAL_MACHINES, {"metadata": metadata, "spec": spec})
    )
    # The provider hears of the twin before it hears of a later VM.
    await case.ready_machine(f"{case.name}-later")
    await service(case, "web")
    await case.delete()

    kept = await case.get(kinds.LOAD_BALANCERS, "web")
    assert recorded_guest(kept) is None
    await case.until_event(case.name, "Warning", "GuestLoadBalancersKept")
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "twin")
    await case.until_gone(kinds.VIRTUAL_MACHINES, "twin")
    await remove(case, "web")


async def test_forced_deletion_deletes_none(case: Case) -> None:
    await guest_pool(case, 3)
    await ready(case)
    await service(case, "web")
    await until_recorded(case, "web")
    await case.patch(HARVESTER_CLUSTERS, case.name, FORCE)
    await case.delete()

    assert await case.names(kinds.LOAD_BALANCERS) == ["web"]
    await case.until_event(case.name, "Warning", "GuestLoadBalancersKept")
    await remove(case, "web")


async def test_paused_cluster_keeps_its_load_balancers(case: Case) -> None:
    """A move pauses the cluster and deletes its objects on the management cluster only."""
    await guest_pool(case, 4)
    await ready(case)
    await case.pause(True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"))
    await service(case, "web")
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    await case.ask_deletion(HARVESTER_MACHINES, f"{case.name}-worker")
    for resource, name in ((HARVESTER_CLUSTERS, case.name), (HARVESTER_MACHINES, f"{case.name}-worker")):
        await case.patch(resource, name, {"metadata": {"finalizers": None}})
        await case.until_gone(resource, name)

    assert annotations_of(await case.get(kinds.LOAD_BALANCERS, "web")).keys().isdisjoint({"caphv.io/guest-of"})
    remains = (kinds.VIRTUAL_MACHINES, PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, kinds.LOAD_BALANCERS)
    for resource in remains:
        for name in await case.names(resource):
            await case.ask_deletion(resource, name)
            await case.until_gone(resource, name)


async def test_pool_in_use_names_its_holders_until_they_release_it(case: Case, other: Case) -> None:
    """Services of another guest have addresses of a pool that was created for this cluster."""
    ranges = {"subnet": f"{case.environment.prefix}.0.0/17", "gateway": case.gateway}
    ranges |= {"rangeStart": f"{case.subnet}.1", "rangeEnd": f"{case.subnet}.9", "vmNetwork": "default/production"}
    pool = f"{case.name}-{case.name}-vm-ippool"
    await case.ready_cluster(vmNetworkConfig={"ipPool": ranges, "gateway": case.gateway, "subnetMask": MASK})
    await ready(other)
    balancer = await service(other, "shop", ipPool=pool)
    await until_recorded(other, "shop")
    await case.ask_deletion(CLUSTERS, case.name)
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)

    names_holder = is_false("InfrastructureReady", "IPPoolInUse", f"Service default/shop of guest {other.name}")
    obj = await case.until(HARVESTER_CLUSTERS, case.name, names_holder)
    assert allocated(balancer)["ip"] in condition_of(obj, "InfrastructureReady")["message"]
    since = case.environment.audit_position(case.environment.harvester)

    await remove(other, "shop")
    await case.until_gone(HARVESTER_CLUSTERS, case.name, timeout=AT_ONCE)
    attempts = [
        event
        for event in case.environment.requests(case.environment.harvester, since)
        if event["verb"] == "delete" and pool in event["requestURI"]
    ]
    assert len(attempts) == 1
