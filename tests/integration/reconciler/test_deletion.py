"""Taking machines down: what is deleted in which order, and what stays because it belongs to others."""

from __future__ import annotations

import pytest

from caphv.api.object import EVENTS, PERSISTENT_VOLUME_CLAIMS, SECRETS
from reconciler.machine.vmclaims import without
from sandbox.harvester import kinds
from sandbox.harvester.faults import Fault, Faults
from tests.support import harvesterui
from tests.support.reconciler.case import AT_ONCE, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_unknown
from tests.support.reconciler.guestparts import hot_plug
from tests.support.waiting import until

pytestmark = pytest.mark.integration

HOLD = "example.com/hold"


async def test_everything_stays_until_the_vm_no_longer_exists(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.ready_machine("one")
    held = (await case.vm("one"))["metadata"].get("finalizers") or []
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"metadata": {"finalizers": [*held, HOLD]}})
    await case.ask_deletion(HARVESTER_MACHINES, "one")
    await case.vm("one", lambda vm: vm["metadata"].get("finalizers") == [HOLD])
    await case.until(
        HARVESTER_MACHINES,
        "one",
        lambda obj: "VirtualMachine one on Harvester" in condition_of(obj, "VMProvisioningReady")["message"],
    )
    assert await case.allocated(pool) == {f"{case.subnet}.1": f"{case.name}/one"}
    assert await case.names(SECRETS) == ["one-cloud-init"]
    since = case.environment.audit_position(case.environment.harvester)
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"metadata": {"finalizers": None}})
    await case.until_gone(HARVESTER_MACHINES, "one")
    assert await case.leftovers() == [f"Service {case.balancer}"]
    steps = [
        f"{event['verb']} {event['objectRef']['resource']}"
        for event in case.environment.requests(case.environment.harvester, since)
        if event["verb"] not in ("get", "list", "watch")
        and (case.target in event["requestURI"] or pool in event["requestURI"])
    ]
    assert steps[-2:] == ["delete secrets", "patch ippools"]


async def test_full_quota_does_not_keep_a_machine(case: Case) -> None:
    """Harvester refuses each update of a VM without a Pod over a full quota, the removal of finalizers included."""
    await case.ready_cluster()
    await case.ready_machine("one")
    await case.quota("limits.cpu", "1")
    await case.delete_machine("one")
    assert await case.leftovers() == [f"Service {case.balancer}"]


async def test_stopped_load_balancer_controller_keeps_a_machine_which_says_so(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    faults = Faults(case.harvester)
    await faults.inject(Fault("balancers-stopped"))
    try:
        await case.ask_deletion(HARVESTER_MACHINES, "one")
        says = is_false("VMProvisioningReady", "VMProvisioningInProgress", f"finalizer {kinds.VM_GUARD} is removed by")
        await case.until(HARVESTER_MACHINES, "one", says)
    finally:
        await faults.clear("balancers-stopped")
    await case.until_gone(HARVESTER_MACHINES, "one")
    assert await case.leftovers() == [f"Service {case.balancer}"]


async def test_disks_that_a_user_left_behind_go_with_the_machine(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "one")
    await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", "MachineNotFound"))
    assert len(await case.names(PERSISTENT_VOLUME_CLAIMS)) == 1
    await case.delete_machine("one")
    assert await case.names(PERSISTENT_VOLUME_CLAIMS) == []


async def test_disks_of_a_machine_with_a_longer_name_stay(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("a")
    await case.ready_machine("a-disk-x")
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "a")
    await case.until_gone(kinds.VIRTUAL_MACHINES, "a")
    since = case.environment.audit_position(case.environment.harvester)
    # Of the Go provider, which records no owner: only the name tells whose disk it is.
    unrecorded = {
        "metadata": {"name": "a-disk-y-disk-0-x7k2p", "namespace": case.target},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "harvester-longhorn",
        },
    }
    await case.harvester.create(PERSISTENT_VOLUME_CLAIMS, unrecorded)
    await case.delete_machine("a")
    recorded, left = sorted(await case.names(PERSISTENT_VOLUME_CLAIMS))
    assert recorded.startswith("a-disk-x-disk-0-")
    assert left == "a-disk-y-disk-0-x7k2p"
    await case.ask_deletion(PERSISTENT_VOLUME_CLAIMS, left)
    # Harvester would refuse it anyway, because a VM uses it: the provider must not even try.
    assert not [write for write in await case.writes(since) if "a-disk-x" in write]


async def test_volumes_of_users_and_of_the_csi_driver_outlive_the_machine(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    (disk,) = await case.names(PERSISTENT_VOLUME_CLAIMS)
    added, hot_plugged, in_ui = "photos", "pvc-a5028fd3-bbb2-4288-8638-c7c11ad7e5e4", "one-disk-1-k2j5x"
    for name in (added, hot_plugged, in_ui):
        await case.harvester.create(PERSISTENT_VOLUME_CLAIMS, harvesterui.volume(case.target, name))
    claim = await case.get(PERSISTENT_VOLUME_CLAIMS, added)
    await case.patch(kinds.VIRTUAL_MACHINES, "one", harvesterui.add_volume(await case.vm("one"), claim))
    for name in (hot_plugged, in_ui):
        await case.patch(kinds.VIRTUAL_MACHINES, "one", harvesterui.hot_plug(await case.vm("one"), name))
    claims = [await case.get(PERSISTENT_VOLUME_CLAIMS, name) for name in (disk, added, hot_plugged, in_ui)]
    vm = await case.patch(kinds.VIRTUAL_MACHINES, "one", harvesterui.save(await case.vm("one"), claims))
    assert all(name in vm["metadata"]["annotations"][kinds.CLAIM_TEMPLATES] for name in (added, hot_plugged, in_ui))
    await case.delete_machine("one")
    assert await case.names(PERSISTENT_VOLUME_CLAIMS) == sorted([added, hot_plugged, in_ui])
    await case.until_event("one", "Normal", "VMDeletionStarted")
    kept = f"elsewhere: {in_ui}, {added}, {hot_plugged}"
    assert any(kept in event["message"] for event in (await case.management.list(EVENTS, case.name))["items"])
    for name in (added, hot_plugged, in_ui):
        await case.ask_deletion(PERSISTENT_VOLUME_CLAIMS, name)


async def test_machine_whose_volume_another_vm_has_is_deleted(case: Case) -> None:
    await case.ready_cluster()
    for name in ("one", "two"):
        await case.ready_machine(name)
    shared = "pvc-84e07faf-871a-4223-9b00-5fce02790dd9"
    await case.harvester.create(PERSISTENT_VOLUME_CLAIMS, harvesterui.volume(case.target, shared))
    await harvesterui.hot_plug_twice(case.harvester, case.target, shared, "one", "two")
    await case.delete_machine("one")
    assert await case.names(kinds.VIRTUAL_MACHINES) == ["two"]
    disk, left = sorted(await case.names(PERSISTENT_VOLUME_CLAIMS), reverse=True)
    assert disk.startswith("two-disk-0-")
    assert left == shared
    assert shared in str((await case.vm("two"))["spec"]["template"]["spec"]["volumes"])
    await case.delete_machine("two")
    await case.ask_deletion(PERSISTENT_VOLUME_CLAIMS, shared)


async def test_disk_that_a_user_moved_to_another_vm_stays_there(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("two")
    spec = [{"volumeType": "image", "imageName": "default/sles-15", "volumeSize": "10Gi"}]
    spec.append({"volumeType": "storageClass", "storageClass": "harvester-longhorn", "volumeSize": "1Gi"})
    await case.ready_machine("one", volumes=spec)
    (moved,) = [name for name in await case.names(PERSISTENT_VOLUME_CLAIMS) if name.startswith("one-disk-1-")]
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"spec": without(await case.vm("one"), {moved})})
    await hot_plug(case, moved, "two")
    await case.delete_machine("one")
    assert moved in await case.names(PERSISTENT_VOLUME_CLAIMS)
    await case.delete_machine("two")
    await case.ask_deletion(PERSISTENT_VOLUME_CLAIMS, moved)


async def test_machine_whose_network_no_longer_exists_is_deleted(case: Case) -> None:
    await case.ready_cluster()
    network = await case.harvester.get(kinds.NETWORKS, "production", "default")
    await case.harvester.create(kinds.NETWORKS, {**network, "metadata": {"name": "own", "namespace": case.target}})
    await case.create_machine("one", networks=[f"{case.target}/own"])
    await case.until(kinds.INSTANCES, "one", lambda vmi: vmi["status"]["phase"] == "Running")
    await case.harvester.delete(kinds.NETWORKS, "own", case.target)
    await case.delete_machine("one")
    assert await case.leftovers() == [f"Service {case.balancer}"]


async def test_address_is_released_by_its_holder_only(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.ready_machine("one")
    address = f"{case.subnet}.1"
    await case.harvester.patch(kinds.IP_POOLS, pool, "", {"status": {"allocated": {address: "another/owner"}}})
    await case.delete_machine("one")
    assert await case.allocated(pool) == {address: "another/owner"}
    await case.reserve(pool, address, None)


async def test_machine_that_never_had_a_vm_gives_its_address_back(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.write_secret("unusable", {"value": "#!/bin/sh\n"})
    await case.create_machine("one", bootstrap="unusable")
    await case.until(
        HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", "VMProvisioningFailed", "a shell script")
    )
    assert [*(await case.allocated(pool)).values()] == [f"{case.name}/one"]
    await case.delete_machine("one")
    assert await case.allocated(pool) == {}


async def test_machine_of_an_unready_cluster_just_is_deleted(case: Case) -> None:
    await case.create_cluster()
    await case.create_machine("one")
    await case.delete_machine("one")
    await case.identity()


async def test_deletion_waits_for_a_harvester_that_refuses_and_then_continues(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    await case.identity(case.environment.identity(token="expired"))
    reported = await case.until(
        HARVESTER_MACHINES, "one", is_unknown("VMProvisioningReady", "HarvesterAuthenticationFailed")
    )
    assert reported["status"]["ready"], "nothing shows that the VM is not well"
    await case.ask_deletion(HARVESTER_MACHINES, "one")
    await case.until(HARVESTER_MACHINES, "one", lambda obj: "deletionTimestamp" in obj["metadata"])
    assert await case.names(kinds.VIRTUAL_MACHINES) == ["one"]
    await case.identity()
    await case.until_gone(HARVESTER_MACHINES, "one")
    assert await case.names(kinds.VIRTUAL_MACHINES) == []


async def test_stuck_disk_is_named(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    (disk,) = await case.names(PERSISTENT_VOLUME_CLAIMS)
    await case.patch(PERSISTENT_VOLUME_CLAIMS, disk, {"metadata": {"finalizers": [HOLD]}})
    await case.ask_deletion(HARVESTER_MACHINES, "one")
    await case.until(HARVESTER_MACHINES, "one", lambda obj: disk in condition_of(obj, "VMProvisioningReady")["message"])
    assert await case.names(SECRETS) == ["one-cloud-init"]
    await case.patch(PERSISTENT_VOLUME_CLAIMS, disk, {"metadata": {"finalizers": None}})
    await case.until_gone(HARVESTER_MACHINES, "one", timeout=AT_ONCE)


async def test_instance_that_outlives_its_vm_is_waited_for(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.ready_machine("one")
    await case.patch(kinds.INSTANCES, "one", {"metadata": {"finalizers": [HOLD]}})
    await case.ask_deletion(HARVESTER_MACHINES, "one")

    async def waits() -> bool:
        machine = await case.get(HARVESTER_MACHINES, "one")
        return "on Harvester to" in condition_of(machine, "VMProvisioningReady")["message"]

    await until(waits, lambda: "the machine does not say what it waits for")
    assert await case.allocated(pool) == {f"{case.subnet}.1": f"{case.name}/one"}
    await case.patch(kinds.INSTANCES, "one", {"metadata": {"finalizers": None}})
    await case.until_gone(HARVESTER_MACHINES, "one")
    assert await case.allocated(pool) == {}
