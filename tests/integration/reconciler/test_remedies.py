"""A user who follows the remedy in a message gets a cluster or machine that works, without a further step."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import pytest

from caphv.api.names import ADOPT_ANNOTATION, OWNER_ANNOTATION, OWNER_UID_ANNOTATION
from caphv.api.object import NAMESPACES, SECRETS, SERVICE_ACCOUNTS, SERVICES, Obj, uid_of
from reconciler.cluster import cloudaccount, cloudconfig
from reconciler.machine import bootstrap
from sandbox.harvester import kinds
from tests.support.reconciler import inprocess
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import is_false, is_ready, is_true
from tests.support.reconciler.environment import Environment
from tests.support.reconciler.ownership import left_behind

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("runner", "alone")]

FOREIGN = {OWNER_ANNOTATION: "HarvesterCluster/other/other", OWNER_UID_ANNOTATION: "1"}
CONFIG = "CloudProviderConfigReady"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no watch reports is read again after a minute or ten: here, after half a second."""
    inprocess.install(monkeypatch)
    for module in (bootstrap, cloudaccount):
        monkeypatch.setattr(module, "_UNWATCHED", 0.5)
    monkeypatch.setattr(cloudconfig, "_ACCOUNT_CHECK", 0.5)


async def correct_the_selector_of_a_pool(case: Case) -> None:
    pool = await case.pool("pool", 1, 5, network="default/storage")
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.create_machine("one")
    await case.until(HARVESTER_MACHINES, "one", is_false("VMIPAllocated", "VMIPAllocationFailed"))
    await case.patch(kinds.IP_POOLS, pool, {"spec": {"selector": {"network": "default/production"}}})
    await case.until(HARVESTER_MACHINES, "one", is_ready)


async def delete_a_pool_of_another_owner(case: Case) -> None:
    name = f"{case.name}-{case.name}-vm-ippool"
    bounds = {"rangeStart": f"{case.subnet}.1", "rangeEnd": f"{case.subnet}.5", "gateway": case.gateway}
    bounds["vmNetwork"] = "default/production"
    described = {"subnet": f"{case.environment.prefix}.0.0/17", **bounds}
    pool = {
        "metadata": {"name": name, "annotations": FOREIGN},
        "spec": {"ranges": [{name: value for name, value in described.items() if name != "vmNetwork"}]},
        "status": {"total": 5, "available": 5, "lastAllocated": ""},
    }
    await case.harvester.create(kinds.IP_POOLS, kinds.typed(kinds.IP_POOLS, pool))
    network = {"ipPool": described, "gateway": case.gateway, "subnetMask": "255.255.128.0"}
    await case.cluster(vmNetworkConfig=network)
    says = is_false("VMIPPoolReady", "VMIPPoolCreationFailed", "belongs to HarvesterCluster/other/other")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await case.harvester.delete(kinds.IP_POOLS, name)
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def delete_a_cloud_init_secret_of_another_owner(case: Case) -> None:
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    metadata = {"name": "one-cloud-init", "namespace": case.target, "annotations": FOREIGN}
    await case.harvester.create(SECRETS, {"metadata": metadata})
    await case.ready_cluster()
    await case.create_machine("one")
    says = is_false("VMProvisioningReady", "VMProvisioningFailed", "delete it, or rename this machine")
    await case.until(HARVESTER_MACHINES, "one", says)
    await case.ask_deletion(SECRETS, "one-cloud-init")
    await case.until(HARVESTER_MACHINES, "one", is_ready)


async def delete_accounts_of_another_owner(case: Case) -> None:
    cluster = await case.ready_cluster()
    names = (case.name, f"{case.name}-{hashlib.sha256(uid_of(cluster).encode()).hexdigest()[:8]}")
    for name in names:
        metadata = {"name": name, "namespace": case.target, "annotations": FOREIGN}
        await case.harvester.create(SERVICE_ACCOUNTS, {"metadata": metadata})
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"cloudConfig": {"delivery": "File"}}})
    await case.until(HARVESTER_CLUSTERS, case.name, refused("belongs to another owner"))
    for name in names:
        await case.harvester.delete(SERVICE_ACCOUNTS, name, case.target)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(CONFIG))


async def delete_the_token_of_another_account(case: Case) -> None:
    await case.ready_cluster()
    await case.harvester.create(SECRETS, {"metadata": {"name": f"{case.name}-token", "namespace": case.target}})
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"cloudConfig": {"delivery": "File"}}})
    await case.until(HARVESTER_CLUSTERS, case.name, refused("is not the token of ServiceAccount"))
    await case.ask_deletion(SECRETS, f"{case.name}-token")
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(CONFIG))


async def delete_a_service_of_another_owner(case: Case) -> None:
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    labels = {"loadbalancer.harvesterhci.io/servicelb": "true"}
    metadata = {"name": case.balancer, "namespace": case.target, "annotations": FOREIGN, "labels": labels}
    spec = {"type": "LoadBalancer", "loadBalancerIP": "0.0.0.0", "ports": [{"port": 6443}]}
    await case.harvester.create(SERVICES, {"metadata": metadata, "spec": spec})
    await case.cluster()
    says = is_false("LoadBalancerReady", "InfrastructureProvisioningFailed", "belongs to HarvesterCluster/other/other")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await case.ask_deletion(SERVICES, case.balancer)
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def adopt_a_vm_made_by_hand(case: Case) -> None:
    await left_behind(case, "one", {}, marked=False)
    await case.ready_cluster()
    await case.create_machine("one")
    says = is_false("VMProvisioningReady", "VMProvisioningFailed", "this provider did not create it")
    await case.until(HARVESTER_MACHINES, "one", says)
    await case.patch(HARVESTER_MACHINES, "one", {"metadata": {"annotations": {ADOPT_ANNOTATION: "true"}}})
    await case.until(HARVESTER_MACHINES, "one", is_ready)


async def remove_user_data_that_talos_does_not_read(case: Case) -> None:
    await case.ready_cluster()
    await case.write_secret("bootstrap", {"value": "version: v1alpha1\nmachine:\n  type: worker\ncluster: {}\n"})
    await case.create_machine("one", guestConfig={"userData": "#cloud-config\nruncmd: [date]\n"})
    says = is_false("VMProvisioningReady", "VMProvisioningFailed", "which Talos does not read: remove it")
    await case.until(HARVESTER_MACHINES, "one", says)
    await case.patch(HARVESTER_MACHINES, "one", {"spec": {"guestConfig": None}})
    await case.vm("one")


async def put_a_kubeconfig_of_harvester_into_the_secret(case: Case) -> None:
    await case.identity(case.environment.management.kubeconfig())
    await case.write_secret("bootstrap", {"value": ""})
    await case.create_cluster()
    says = is_false("HarvesterConnectionReady", "HarvesterConnectionFailed", "is not a Harvester: it does not serve")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await case.identity()
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


def refused(text: str) -> Callable[[Obj], bool]:
    return is_false(CONFIG, "CloudProviderConfigGenerationFailed", text)


STEPS = (
    correct_the_selector_of_a_pool,
    delete_a_pool_of_another_owner,
    delete_a_cloud_init_secret_of_another_owner,
    delete_accounts_of_another_owner,
    delete_the_token_of_another_account,
    delete_a_service_of_another_owner,
    adopt_a_vm_made_by_hand,
    remove_user_data_that_talos_does_not_read,
    put_a_kubeconfig_of_harvester_into_the_secret,
)


@pytest.mark.parametrize("follow", STEPS, ids=[step.__name__ for step in STEPS])
async def test_a_remedy_that_is_followed_ends_the_state(
    environment: Environment, follow: Callable[[Case], Awaitable[None]]
) -> None:
    async with inprocess.opened(environment) as case, inprocess.running(case, inprocess.Hook()):
        await follow(case)
        assert await case.remove() == []


async def test_a_deleted_account_of_guests_is_noticed_and_recreated(environment: Environment) -> None:
    async with inprocess.opened(environment) as case, inprocess.running(case, inprocess.Hook()):
        await case.ready_cluster(cloudConfig={"delivery": "File"})
        await case.until(HARVESTER_CLUSTERS, case.name, is_true(CONFIG))
        before = await case.get(SERVICE_ACCOUNTS, case.name)
        await case.ask_deletion(SERVICE_ACCOUNTS, case.name)
        await case.until(SERVICE_ACCOUNTS, case.name, lambda obj: uid_of(obj) != uid_of(before))
        assert await case.remove() == []
