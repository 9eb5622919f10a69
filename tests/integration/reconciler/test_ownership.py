"""Whose a VM is: vanished ones are reported, foreign ones refused, those of the Go provider taken over."""

from __future__ import annotations

import json

import pytest

from caphv.api.object import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, annotations_of, uid_of
from sandbox.harvester import kinds
from tests.support.reconciler.case import AT_ONCE, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import is_false, is_ready, is_unknown
from tests.support.simulation import virtual_machine

pytestmark = pytest.mark.integration


async def test_vanished_vm_is_reported_and_never_recreated(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    before = await case.ready_machine("one")
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "one")
    found = await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", "MachineNotFound"))
    assert is_false("Ready", "MachineNotFound")(found)
    assert is_unknown("VMUpToDate", "MachineNotFound")(found)
    assert not found["status"]["ready"]
    assert found["status"]["initialization"]["provisioned"]
    assert found["spec"]["providerID"] == before["spec"]["providerID"]
    await case.until_event("one", "Warning", "MachineNotFound")
    # Neither a reconcile for another reason nor a restart changes that.
    await case.patch(HARVESTER_MACHINES, "one", {"metadata": {"annotations": {"example.com/touched": "yes"}}})
    await case.environment.provider.stop()
    await case.environment.provider.start()
    await case.ready_machine("two")
    assert await case.names(kinds.VIRTUAL_MACHINES) == ["two"]
    assert (await case.allocated(pool))[f"{case.subnet}.1"] == f"{case.name}/one"


async def test_machine_of_the_same_name_in_another_namespace_keeps_its_vm(case: Case, other: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    vm = await case.vm("one")
    disks = await case.names(PERSISTENT_VOLUME_CLAIMS)
    own = other.target
    other.target = case.target
    await other.ready_cluster()
    await other.create_machine("one")
    says = is_false("VMProvisioningReady", "VMProvisioningFailed", f"belongs to HarvesterMachine/{case.name}/one")
    await other.until(HARVESTER_MACHINES, "one", says)
    await other.delete()
    other.target = own
    assert uid_of(await case.vm("one")) == uid_of(vm)
    assert "deletionTimestamp" not in (await case.vm("one"))["metadata"]
    assert await case.names(PERSISTENT_VOLUME_CLAIMS) == disks
    assert await case.names(SECRETS) == ["one-cloud-init"]
    assert is_ready(await case.get(HARVESTER_MACHINES, "one"))


async def test_tenants_that_share_an_account_take_nothing_of_each_other(case: Case, other: Case) -> None:
    """One of them asks for adoption, or names the VM as its own; the machine of the other one exists."""
    await case.ready_cluster()
    await case.ready_machine("one")
    vm, balancer = await case.vm("one"), await case.get(SERVICES, case.balancer)
    own, other.target = other.target, case.target
    await other.ready_cluster()
    await other.create_machine("one", providerID=f"harvester://{uid_of(vm)}")
    await other.patch(HARVESTER_MACHINES, "one", {"metadata": {"annotations": {"caphv.io/adopt": "true"}}})
    says = is_false("VMProvisioningReady", "VMProvisioningFailed", "which exists in another namespace")
    await other.until(HARVESTER_MACHINES, "one", says)
    await other.delete()
    other.target = own
    assert annotations_of(await case.vm("one")) == annotations_of(vm)
    assert uid_of(await case.vm("one")) == uid_of(vm)
    assert uid_of(await case.get(SERVICES, case.balancer)) == uid_of(balancer)
    assert is_ready(await case.get(HARVESTER_MACHINES, "one"))


async def test_vm_of_the_go_provider_is_taken_over_as_it_is(case: Case) -> None:
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    secret = {"metadata": {"name": "one-cloud-init", "namespace": case.target}}
    text = "#cloud-config\npackages: [qemu-guest-agent]\n"
    await case.harvester.create(SECRETS, {**secret, "stringData": {"userdata": text}})
    old = virtual_machine(case.target, "one")
    (claim,) = json.loads(old["metadata"]["annotations"][kinds.CLAIM_TEMPLATES])
    claim["metadata"]["name"] = "one-disk-0-x7k2p"
    old["metadata"]["annotations"] = {kinds.CLAIM_TEMPLATES: json.dumps([claim])}
    old["spec"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = "one-disk-0-x7k2p"
    vm = await case.harvester.create(kinds.VIRTUAL_MACHINES, old)
    await case.ready_cluster()
    provider_id = f"harvester://{uid_of(vm)}"
    machine = await case.ready_machine("one", providerID=provider_id)
    taken = await case.vm("one")
    assert machine["spec"]["providerID"] == provider_id
    assert uid_of(taken) == uid_of(vm)
    labels = taken["spec"]["template"]["metadata"].pop("labels")
    assert labels["guestcluster.harvesterhci.io/name"] == case.name
    del vm["spec"]["template"]["metadata"]["labels"]
    assert taken["spec"] == vm["spec"], "nothing but labels, which need no restart, has changed"
    assert taken["metadata"]["annotations"]["caphv.io/owner"] == f"HarvesterMachine/{case.name}/one"
    await case.until_event("one", "Normal", "VMAdopted")
    await case.delete_machine("one")  # the fixture sees that disk and Secret have gone with it
    assert await case.names(PERSISTENT_VOLUME_CLAIMS) == []


async def test_restarted_vm_keeps_the_identity_of_the_machine(case: Case) -> None:
    await case.ready_cluster()
    before = await case.ready_machine("one")
    instance = await case.get(kinds.INSTANCES, "one")
    await case.ask_deletion(kinds.INSTANCES, "one")
    await case.until(kinds.INSTANCES, "one", lambda obj: uid_of(obj) != uid_of(instance))
    after = await case.until(HARVESTER_MACHINES, "one", is_ready)
    assert after["spec"]["providerID"] == before["spec"]["providerID"]
    assert uid_of(await case.vm("one", timeout=AT_ONCE)) in after["spec"]["providerID"]
