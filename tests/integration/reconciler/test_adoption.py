"""VMs that change hands: of the Go provider, after a move, on request; and release without Harvester."""

from __future__ import annotations

import pytest

from caphv.api.object import EVENTS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, SECRETS, annotations_of, uid_of
from reconciler.memory.periods import FORCE_DELETE_SECONDS
from sandbox.harvester import kinds
from sandbox.processes import pki
from tests.support.reconciler.case import AT_ONCE, CLUSTERS, HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.cases import create_later
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true
from tests.support.reconciler.ownership import (
    CLUSTER,
    ELSEWHERE,
    OWNER,
    OWNER_UID,
    left_behind,
    recorded,
    remove_from_harvester,
)

pytestmark = pytest.mark.integration

ADOPT = {"metadata": {"annotations": {"caphv.io/adopt": "true"}}}
FORCE = {"metadata": {"annotations": {"caphv.io/force-delete": "true"}}}
FAILED = "VMProvisioningFailed"


async def owners(case: Case, name: str) -> set[str]:
    """Management clusters that VM, disk and Secret are recorded for."""
    objects = [
        await case.vm(name),
        await case.get(PERSISTENT_VOLUME_CLAIMS, f"{name}-disk-0-x7k2p"),
        await case.get(SECRETS, f"{name}-cloud-init"),
    ]
    return {annotations_of(obj).get(CLUSTER, "no cluster") for obj in objects}


async def ours(case: Case) -> str:
    return uid_of(await case.management.get(NAMESPACES, "kube-system"))


async def test_taking_over_from_the_go_provider_is_one_request_and_restarts_nothing(case: Case) -> None:
    vm = await left_behind(case, "one", {})
    await case.until(kinds.VIRTUAL_MACHINES, "one", lambda obj: obj.get("status", {}).get("ready"))
    instance = uid_of(await case.get(kinds.INSTANCES, "one"))
    await case.ready_cluster()
    since = case.environment.audit_position(case.environment.harvester)
    await case.ready_machine("one", providerID=f"harvester://{uid_of(vm)}")
    assert await case.writes(since) == [f"patch /apis/kubevirt.io/v1/namespaces/{case.target}/virtualmachines/one"]
    assert uid_of(await case.get(kinds.INSTANCES, "one")) == instance
    after = await case.vm("one")
    assert after["spec"]["template"]["spec"] == vm["spec"]["template"]["spec"]
    for labels in (after["metadata"]["labels"], after["spec"]["template"]["metadata"]["labels"]):
        assert labels["harvesterhci.io/creator"] == "docker-machine-driver-harvester"
        assert labels["guestcluster.harvesterhci.io/name"] == case.name


async def test_provider_id_renews_all_records_after_a_move(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    vm = await left_behind(case, "one", recorded(case, "one"))
    address = f"{case.subnet}.3"
    await case.reserve(pool, address, f"{case.name}/one")
    await case.patch(kinds.IP_POOLS, pool, {"metadata": {"annotations": {f"addresses.caphv.io/{address}": "5e1f0e4c"}}})
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    machine = await case.ready_machine("one", providerID=f"harvester://{uid_of(vm)}")
    assert await owners(case, "one") == {await ours(case)}
    assert machine["status"]["allocatedIPAddress"] == address
    await case.until_event("one", "Normal", "VMAdopted")
    # Another client deletes the VM: its disk and Secret are the machine's all the same.
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "one")
    await case.until_gone(kinds.VIRTUAL_MACHINES, "one")
    await case.delete_machine("one")
    assert await case.allocated(pool) == {}
    assert await case.names(PERSISTENT_VOLUME_CLAIMS) == []


async def test_machine_left_behind_on_the_former_cluster_neither_takes_back_nor_deletes(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    vm = await case.vm("one")
    taken = {CLUSTER: ELSEWHERE, OWNER: f"HarvesterMachine/{case.name}/one", OWNER_UID: "new"}
    disks = await case.names(PERSISTENT_VOLUME_CLAIMS)
    for kind, name in [
        (PERSISTENT_VOLUME_CLAIMS, disks[0]),
        (SECRETS, "one-cloud-init"),
        (kinds.VIRTUAL_MACHINES, "one"),
    ]:
        await case.patch(kind, name, {"metadata": {"annotations": taken}})
    since = case.environment.audit_position(case.environment.harvester)
    await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", FAILED, "belongs to HarvesterMachine"))
    await case.delete_machine("one")
    assert await case.writes(since) == []
    assert uid_of(await case.vm("one")) == uid_of(vm)
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "one")
    await case.until_gone(kinds.VIRTUAL_MACHINES, "one")
    for kind, name in [(PERSISTENT_VOLUME_CLAIMS, disks[0]), (SECRETS, "one-cloud-init")]:
        await case.ask_deletion(kind, name)


async def test_foreign_vm_is_taken_over_on_request_once(case: Case) -> None:
    vm = await left_behind(case, "one", recorded(case, "one"))
    await case.ready_cluster()
    await case.create_machine("one")
    says = is_false("VMProvisioningReady", FAILED, 'annotation caphv.io/adopt: "true"')
    await case.until(HARVESTER_MACHINES, "one", says)
    assert await owners(case, "one") == {ELSEWHERE}
    await case.patch(HARVESTER_MACHINES, "one", ADOPT)
    machine = await case.until(HARVESTER_MACHINES, "one", is_ready)
    assert await owners(case, "one") == {await ours(case)}
    assert machine["spec"]["providerID"] == f"harvester://{uid_of(vm)}"
    assert "caphv.io/adopt" not in annotations_of(machine)
    assert (await case.vm("one"))["spec"]["template"]["spec"] == vm["spec"]["template"]["spec"]


async def test_a_restored_machine_adopts_what_it_had_before_by_its_former_uid(case: Case) -> None:
    former = recorded(case, "one")
    await left_behind(case, "one", former)
    await case.ready_cluster()
    await case.create_machine("one")
    await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", FAILED))
    wrong = {"metadata": {"annotations": {"caphv.io/former-owner": f"{former[CLUSTER]}/another"}}}
    await case.patch(HARVESTER_MACHINES, "one", wrong)
    await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", FAILED, "belongs to HarvesterMachine"))
    assert await owners(case, "one") == {ELSEWHERE}
    proof = {"metadata": {"annotations": {"caphv.io/former-owner": f"{former[CLUSTER]}/{former[OWNER_UID]}"}}}
    await case.patch(HARVESTER_MACHINES, "one", proof)
    await case.until(HARVESTER_MACHINES, "one", is_ready)
    assert await owners(case, "one") == {await ours(case)}


# Addresses


async def test_address_of_a_namesake_in_another_management_cluster_is_neither_shared_nor_released(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    address = f"{case.subnet}.1"
    await case.reserve(pool, address, f"{case.name}/one")
    await case.patch(kinds.IP_POOLS, pool, {"metadata": {"annotations": {f"addresses.caphv.io/{address}": "5e1f0e4c"}}})
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    machine = await case.ready_machine("one")
    assert machine["status"]["allocatedIPAddress"] == f"{case.subnet}.2"
    found = await case.harvester.get(kinds.IP_POOLS, pool)
    assert annotations_of(found)[f"addresses.caphv.io/{case.subnet}.2"] == (await ours(case))[:8]
    await case.delete_machine("one")
    found = await case.harvester.get(kinds.IP_POOLS, pool)
    assert found["status"]["allocated"] == {address: f"{case.name}/one"}
    assert list(annotations_of(found)) == [f"addresses.caphv.io/{address}"]
    await case.reserve(pool, address, None)


async def test_vm_that_comes_while_its_machine_waits_for_an_address_ends_the_waiting(case: Case) -> None:
    pool = await case.pool("pool", 1, 1)
    await case.reserve(pool, f"{case.subnet}.1", "another/owner")
    vm = await left_behind(case, "two", {})
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.create_machine("one")
    await case.until(HARVESTER_MACHINES, "one", is_false("VMIPAllocated", "VMIPPoolExhausted"))
    vm["metadata"] |= {"name": "one", "annotations": {}, "resourceVersion": ""}
    vm["spec"]["template"]["spec"] |= {"volumes": []}  # no VM gets a volume of another one
    await case.harvester.create(kinds.VIRTUAL_MACHINES, vm)
    machine = await case.until(HARVESTER_MACHINES, "one", is_true("MachineCreated"))
    assert condition_of(machine, "VMIPAllocated") == {}
    await case.delete_machine("one")
    await case.reserve(pool, f"{case.subnet}.1", None)
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "two")
    await case.until_gone(kinds.VIRTUAL_MACHINES, "two")
    await case.ask_deletion(PERSISTENT_VOLUME_CLAIMS, "two-disk-0-x7k2p")
    await case.ask_deletion(SECRETS, "two-cloud-init")


async def test_vm_made_by_hand_is_neither_adopted_nor_deleted(case: Case) -> None:
    await left_behind(case, "one", {}, marked=False)
    await case.ready_cluster()
    await case.create_machine("one")
    refused = is_false("VMProvisioningReady", "VMProvisioningFailed", "this provider did not create it")
    await case.until(HARVESTER_MACHINES, "one", refused)
    await case.delete_machine("one")
    assert await case.names(kinds.VIRTUAL_MACHINES) == ["one"]
    assert await case.names(PERSISTENT_VOLUME_CLAIMS) == ["one-disk-0-x7k2p"]
    await remove_from_harvester(case, "one")


async def test_unmarked_address_is_left_to_another_vm_of_the_name(case: Case, other: Case) -> None:
    """The Go provider of another management cluster marks nothing, but its VM is to be seen."""
    await left_behind(other, "one", {})
    pool = await case.pool("pool", 1, 5)
    address = f"{case.subnet}.1"
    await case.reserve(pool, address, f"{case.name}/one")
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    machine = await case.ready_machine("one")
    assert machine["status"]["allocatedIPAddress"] == f"{case.subnet}.2"
    await case.delete_machine("one")
    assert await case.allocated(pool) == {address: f"{case.name}/one"}
    await case.reserve(pool, address, None)
    await other.ask_deletion(kinds.VIRTUAL_MACHINES, "one")
    await other.until_gone(kinds.VIRTUAL_MACHINES, "one")
    await other.ask_deletion(PERSISTENT_VOLUME_CLAIMS, "one-disk-0-x7k2p")
    await other.ask_deletion(SECRETS, "one-cloud-init")
    await other.cluster()


# Release


async def test_machine_is_released_on_request_while_harvester_is_unreachable(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.ready_machine("one")
    server = "https://127.0.0.1:1"
    authority = case.environment.harvester.ca.certificate
    await case.identity(pki.kubeconfig(server, authority, name="away", user="caphv", credentials={"token": "none"}))
    await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: obj["spec"]["server"] == server)
    await case.ask_deletion(HARVESTER_MACHINES, "one")
    says = is_false("VMProvisioningReady", "HarvesterUnreachable", 'caphv.io/force-delete: "true"')
    await case.until(HARVESTER_MACHINES, "one", says)
    await case.until_event("one", "Warning", "HarvesterUnreachable")
    await case.patch(HARVESTER_MACHINES, "one", FORCE)
    await case.until_gone(HARVESTER_MACHINES, "one", timeout=2 * FORCE_DELETE_SECONDS)
    await case.until_event("one", "Warning", "ForcedDeletion")
    (message,) = [
        event["message"]
        for event in (await case.management.list(EVENTS, case.name))["items"]
        if event["reason"] == "ForcedDeletion"
    ]
    for left in (f"VirtualMachine {case.target}/one", "Secret one-cloud-init", f"address {case.subnet}.1", pool):
        assert left in message
    assert await case.names(kinds.VIRTUAL_MACHINES) == ["one"]
    await case.identity()
    await remove_from_harvester(case, "one")
    await case.reserve(pool, f"{case.subnet}.1", None)


async def test_force_changes_nothing_while_harvester_answers(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    await case.patch(HARVESTER_MACHINES, "one", FORCE)
    await case.delete_machine("one")
    assert await case.names(kinds.VIRTUAL_MACHINES) == []
    assert ("Warning", "ForcedDeletion") not in await case.events("one")


async def test_machine_without_its_cluster_waits_until_it_is_released(case: Case, other: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    cluster = await case.get(CLUSTERS, case.name)
    await case.patch(CLUSTERS, case.name, {"metadata": {"finalizers": None}})
    await case.ask_deletion(CLUSTERS, case.name)
    await case.until_gone(CLUSTERS, case.name)
    await create_later(other)
    await case.ask_deletion(HARVESTER_MACHINES, "one")
    says = is_false(
        "VMProvisioningReady", "HarvesterConnectionFailed", "the Cluster or its HarvesterCluster no longer exists"
    )
    await case.until(HARVESTER_MACHINES, "one", says)
    await case.patch(HARVESTER_MACHINES, "one", FORCE)
    await case.until_gone(HARVESTER_MACHINES, "one", timeout=AT_ONCE)
    await case.until_event("one", "Warning", "ForcedDeletion")
    await remove_from_harvester(case, "one")
    # For the end of the test, and with its finalizer: a HarvesterCluster without a Cluster is never deleted.
    await case.create(CLUSTERS, case.name, cluster["spec"], finalizers=cluster["metadata"]["finalizers"])
