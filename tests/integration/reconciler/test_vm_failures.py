"""What happens to a VM behind the provider's back is reported at once, by condition and Event, and never covered up."""

from __future__ import annotations

import base64

import pytest

from caphv.api import names
from caphv.api.object import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    Obj,
    annotations_of,
    being_deleted,
    labels_of,
    uid_of,
)
from reconciler.machine.vmstatus import typed_addresses
from sandbox.harvester import fault_actions, kinds
from tests.support.reconciler.case import AT_ONCE, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import is_false, is_ready, is_true
from tests.support.reconciler.ownership import CLUSTER, OWNER, OWNER_UID, remove_from_harvester

pytestmark = pytest.mark.integration

_TERMS = [{"matchExpressions": [{"key": "nowhere", "operator": "Exists"}]}]
_NODE = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": _TERMS}}
# Patch of a VM that no host can run.
NOWHERE = {"spec": {"template": {"spec": {"affinity": {"nodeAffinity": _NODE}}}}}
FAILED, IN_PROGRESS, QUOTA = "VMProvisioningFailed", "VMProvisioningInProgress", "QuotaExhausted"


async def until_reported(case: Case, name: str, reason: str, text: str = "") -> Obj:
    """Wait for a machine that is not ready any more, and for the Event that says so."""
    found = await case.until(HARVESTER_MACHINES, name, is_false("VMProvisioningReady", reason, text), timeout=AT_ONCE)
    await case.until_event(name, "Warning", reason)
    assert is_false("Ready", reason)(found)
    assert found["status"]["initialization"]["provisioned"]
    return found


async def machine_without_address(case: Case, name: str) -> None:
    """Create a machine whose VM runs, but is never provisioned."""
    await case.create_machine(name, networkConfig={"address": "192.0.2.10", "gateway": "192.0.2.1"})
    says = is_false("VMProvisioningReady", IN_PROGRESS, "waiting for its address")
    await case.until(HARVESTER_MACHINES, name, says)


async def halt(case: Case, name: str, *, quota: bool) -> None:
    """Stop a VM as a user does, or as Harvester does because of a quota."""
    why = {names.INSUFFICIENT_QUOTA_ANNOTATION: "exceeded quota: tight"} if quota else {}
    patch = {"metadata": {"annotations": why}, "spec": {"runStrategy": "Halted"}}
    await case.patch(kinds.VIRTUAL_MACHINES, name, patch)


async def test_address_by_dhcp_follows(case: Case) -> None:
    await case.ready_cluster()
    before = (await case.ready_machine("one"))["status"]["addresses"]
    await fault_actions.change_address(case.harvester, f"{case.target}/one")
    vmi = await case.get(kinds.INSTANCES, "one")
    now = typed_addresses([vmi["status"]["interfaces"][0]["ipAddress"]])
    assert now != before
    found = await case.until(HARVESTER_MACHINES, "one", lambda obj: obj["status"]["addresses"] == now, timeout=AT_ONCE)
    assert is_ready(found)


async def test_restart_is_reported_and_identity_and_readiness_kept(case: Case) -> None:
    await case.ready_cluster()
    before = await case.ready_machine("one")
    vmi = await case.get(kinds.INSTANCES, "one")
    assert before["status"]["virtualMachine"] == {
        "uid": uid_of(await case.vm("one")),
        "instanceUID": uid_of(vmi),
        "host": vmi["status"]["nodeName"],
    }
    await case.ask_deletion(kinds.INSTANCES, "one")
    await case.until_event("one", "Normal", "VMRestarted")
    after = await case.until(
        HARVESTER_MACHINES, "one", lambda obj: obj["status"]["virtualMachine"]["instanceUID"] != uid_of(vmi)
    )
    ready = {entry["type"]: entry["lastTransitionTime"] for entry in before["status"]["conditions"]}["Ready"]
    assert [entry["lastTransitionTime"] for entry in after["status"]["conditions"] if entry["type"] == "Ready"] == [
        ready
    ]
    assert "Warning" not in {kind for kind, _ in await case.events("one")}
    assert after["spec"]["providerID"] == before["spec"]["providerID"]
    assert after["status"]["virtualMachine"]["instanceUID"] == uid_of(await case.get(kinds.INSTANCES, "one"))


async def test_stopped_vm_is_not_started_behind_the_operators_back(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    since = case.environment.audit_position(case.environment.harvester)
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"spec": {"runStrategy": "Halted"}})
    await until_reported(case, "one", FAILED, "the VM is stopped")
    found = await case.until(HARVESTER_MACHINES, "one", is_false("VMUpToDate", "VMDiffers"))
    assert is_false("VMUpToDate", "VMDiffers", "runStrategy is Halted, not Always")(found)
    assert await case.writes(since) == []
    # Harvester starts it with the strategy that it had before the stop.
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"spec": {"runStrategy": "Always"}})
    found = await case.until(HARVESTER_MACHINES, "one", is_ready)
    assert is_true("VMUpToDate")(found)
    assert (await case.vm("one"))["spec"]["runStrategy"] == "Always"


@pytest.mark.parametrize("quota", [False, True])
async def test_vm_of_a_provisioned_machine_is_not_started_after_a_quota_either(case: Case, quota: bool) -> None:
    """Nor is the VM of a new machine that a user has stopped."""
    await case.ready_cluster()
    if quota:
        await case.ready_machine("one")
    else:
        await machine_without_address(case, "one")
    since = case.environment.audit_position(case.environment.harvester)
    await halt(case, "one", quota=quota)
    reason, says = (QUOTA, "the quota of its namespace is used up") if quota else (FAILED, "the VM is stopped")
    await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", reason, says), timeout=AT_ONCE)
    assert await case.writes(since) == []
    assert (await case.vm("one"))["spec"]["runStrategy"] == "Halted"


async def test_new_vm_that_a_quota_halts_again_is_not_started_at_once(case: Case) -> None:
    """Harvester's webhook admits each start over a quota that is not Rancher's, and the quota refuses the Pod."""
    await case.ready_cluster()
    await machine_without_address(case, "one")
    await case.patch(kinds.VIRTUAL_MACHINES, "one", NOWHERE)
    await halt(case, "one", quota=True)
    await case.vm("one", lambda vm: vm["spec"]["runStrategy"] == "Always", timeout=AT_ONCE)
    await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", IN_PROGRESS, "no host of Harvester"))
    since = case.environment.audit_position(case.environment.harvester)
    await halt(case, "one", quota=True)
    says = is_false("VMProvisioningReady", QUOTA, "is used up: raise it")
    await case.until(HARVESTER_MACHINES, "one", says, timeout=AT_ONCE)
    assert await case.writes(since) == []


async def test_paused_vm_is_reported(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    conditions = (await case.get(kinds.INSTANCES, "one"))["status"]["conditions"]
    stands = kinds.condition("Paused", True, "PausedIOError", "VMI was paused, low-level IO error detected")
    await case.patch(kinds.INSTANCES, "one", {"status": {"conditions": [*conditions, stands]}})
    await until_reported(case, "one", FAILED, "the VM is paused: unpause it")
    await case.patch(kinds.INSTANCES, "one", {"status": {"conditions": conditions}})
    await case.until(HARVESTER_MACHINES, "one", is_ready, timeout=AT_ONCE)


async def recreated(case: Case, name: str, **annotations: str | None) -> Obj:
    """Delete a VM and create a copy of it with these annotations."""
    vm = await case.vm(name)
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, name)
    await case.until_gone(kinds.VIRTUAL_MACHINES, name)
    copied = {name: vm["metadata"][name] for name in ("name", "namespace", "labels")}
    copied["annotations"] = {name: value for name, value in (annotations_of(vm) | annotations).items() if value}
    await case.harvester.create(
        kinds.VIRTUAL_MACHINES, kinds.typed(kinds.VIRTUAL_MACHINES, {"metadata": copied, "spec": vm["spec"]})
    )
    return await case.until(kinds.VIRTUAL_MACHINES, name, lambda obj: obj.get("status", {}).get("ready"))


async def test_another_vm_of_the_same_name_is_not_the_machines(case: Case) -> None:
    await case.ready_cluster()
    before = await case.ready_machine("one")
    again = await recreated(case, "one")
    lost = is_false("VMProvisioningReady", "MachineNotFound", "which deletes that VM")
    found = await case.until(HARVESTER_MACHINES, "one", lost)
    assert found["spec"]["providerID"] == before["spec"]["providerID"] != f"harvester://{uid_of(again)}"
    # It may have been restored from a backup: only a user can know.
    await case.patch(HARVESTER_MACHINES, "one", {"metadata": {"annotations": {names.ADOPT_ANNOTATION: "true"}}})
    taken = await case.until(HARVESTER_MACHINES, "one", is_ready)
    assert taken["status"]["virtualMachine"]["uid"] == uid_of(again)
    assert taken["spec"]["providerID"] == before["spec"]["providerID"]
    noted = {names.VM_UID_ANNOTATION: uid_of(again)}
    await case.until(HARVESTER_MACHINES, "one", lambda obj: noted.items() <= annotations_of(obj).items())
    # One that Harvester restored from a backup older than its adoption has no record.
    again = await recreated(case, "one", **dict.fromkeys((OWNER, OWNER_UID, CLUSTER)))
    kept = is_false("VMProvisioningReady", "MachineNotFound", "which keeps that VM")
    await case.until(HARVESTER_MACHINES, "one", kept)
    disks = await case.names(PERSISTENT_VOLUME_CLAIMS)
    await case.delete_machine("one")
    left = await case.vm("one")
    assert uid_of(left) == uid_of(again)
    assert not being_deleted(left)
    assert disks == await case.names(PERSISTENT_VOLUME_CLAIMS) != []
    await remove_from_harvester(case, "one")


# Zones


async def test_zone_of_the_host_is_on_the_node_in_one_request_and_follows_a_migration(case: Case) -> None:
    await case.ready_cluster()
    await case.connect_workload()
    name = f"{case.name}-one"
    await case.ready_machine(name)
    zone = await zone_of(case, name)
    await case.register_node(name)
    node = await until_zone(case, name, zone)
    assert node["spec"]["providerID"]
    version = node["metadata"]["resourceVersion"]
    await fault_actions.migrate(case.harvester, f"{case.target}/{name}")
    other = await zone_of(case, name)
    assert other != zone
    moved = await until_zone(case, name, other)
    assert node["spec"] == moved["spec"]
    assert moved["metadata"]["resourceVersion"] != version
    found = await case.until(
        HARVESTER_MACHINES, name, lambda obj: obj["status"]["failureDomain"] == other, timeout=AT_ONCE
    )
    assert is_ready(found)
    await case.until_event(name, "Normal", "VMMigrated")
    assert ("Warning", "VMRestarted") not in await case.events(name)


async def zone_of(case: Case, name: str) -> str:
    host = (await case.get(kinds.INSTANCES, name))["status"]["nodeName"]
    return labels_of(await case.harvester.get(NODES, host))[names.ZONE_LABEL]


async def until_zone(case: Case, name: str, zone: str) -> Obj:
    def there(node: Obj) -> bool:
        return labels_of(node).get(names.ZONE_LABEL) == zone

    return await case.until(NODES, name, there, client=case.workload, timeout=AT_ONCE)


# Drift


async def test_vm_as_harvester_stores_it_is_up_to_date(case: Case) -> None:
    await case.ready_cluster()
    terms = [{"matchExpressions": [{"key": "kubevirt.io/schedulable", "operator": "Exists"}]}]
    machine = await case.ready_machine(
        "one",
        control_plane=True,
        failure_domain="zone-1",
        memory="4096Mi",
        networks=["default/production", "default/storage"],
        firmware={"efi": True, "secureBoot": True},
        tpm={"enabled": True},
        nodeAffinity={"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
    )
    assert is_true("VMUpToDate")(machine)


async def test_drift_is_reported_in_both_directions_and_passes_without_a_request_to_harvester(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    since = case.environment.audit_position(case.environment.harvester)
    cores = {"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 4}}}}}}
    await case.patch(kinds.VIRTUAL_MACHINES, "one", cores)
    says = is_false("VMUpToDate", "VMDiffers", "cores is 4, not 2")
    found = await case.until(HARVESTER_MACHINES, "one", says, timeout=AT_ONCE)
    assert is_ready(found)  # a difference is for people; the machine works
    await case.until_event("one", "Warning", "VMDrifted")
    await case.patch(HARVESTER_MACHINES, "one", {"spec": {"cpu": 4}})
    says = is_false("VMUpToDate", "VMDiffers", "CPU limit is 2, not 4")
    await case.until(HARVESTER_MACHINES, "one", says, timeout=AT_ONCE)
    limits = {"spec": {"template": {"spec": {"domain": {"resources": {"limits": {"cpu": "4"}}}}}}}
    await case.patch(kinds.VIRTUAL_MACHINES, "one", limits)
    await case.until(HARVESTER_MACHINES, "one", is_true("VMUpToDate"), timeout=AT_ONCE)
    assert await case.writes(since) == []


async def test_series_of_a_machine_is_deleted_with_it(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    labels = frozenset({("cluster", f"{case.name}/{case.name}"), ("machine", f"{case.name}/one")})
    provider = case.environment.provider
    assert (await provider.metrics())["caphv_machine_status", labels] == 1
    await case.delete_machine("one")
    await case.ready_machine("two")
    assert ("caphv_machine_status", labels) not in await provider.metrics()


# What the guest is given


async def test_template_of_bootstrap_data_reaches_a_guest_that_boots(case: Case) -> None:
    await case.ready_cluster()
    text = "## template: jinja\n#cloud-config\nhostname: '{{ v1.local_hostname }}'\nruncmd:\n- echo {{ hostname }}\n"
    await case.write_secret("bootstrap", {"value": text})
    await case.ready_machine("one", guestConfig={"userData": "#cloud-config\nruncmd: [date]\n"})


async def test_other_formats_than_cloud_config_are_refused_by_their_name(case: Case) -> None:
    await case.ready_cluster()
    await case.write_secret("bootstrap", {"value": "{}", "format": "ignition"})
    await case.create_machine("one")
    says = is_false("VMProvisioningReady", FAILED, "bootstrap Secret bootstrap: format is 'ignition', not cloud-config")
    await case.until(HARVESTER_MACHINES, "one", says)
    await case.write_secret("bootstrap", {"value": '{"ignition": {"version": "3.4.0"}}'})
    says = is_false("VMProvisioningReady", FAILED, "bootstrap data is an Ignition configuration")
    await case.until(HARVESTER_MACHINES, "one", says, timeout=AT_ONCE)


async def test_machine_configuration_of_talos_reaches_the_guest_as_it_is(case: Case) -> None:
    await case.ready_cluster()
    text = "version: v1alpha1\nmachine:\n  type: worker # a join token follows\n  token: abc.def\ncluster: {}\n"
    await case.write_secret("bootstrap", {"value": text})
    await case.create_machine("one", guestConfig={"userData": "#cloud-config\nruncmd: [date]\n"})
    says = is_false(
        "VMProvisioningReady", FAILED, "spec.guestConfig.userData is cloud-config, which Talos does not read"
    )
    await case.until(HARVESTER_MACHINES, "one", says)
    await case.create_machine("two")
    await case.vm("two")
    secret = await case.harvester.get(SECRETS, "two-cloud-init", case.target)
    assert base64.b64decode(secret["data"]["userdata"]).decode() == text


async def test_guest_config_is_in_the_user_data(case: Case) -> None:
    await case.ready_cluster()
    await case.write_secret("bootstrap", {"value": "#cloud-config\ntimezone: UTC\npackages: [jq]\n"})
    extra = "#cloud-config\ntimezone: Europe/Berlin\nlocale: C.UTF-8\npackages: [vim]\n"
    config = {"installGuestAgent": False, "disableFstrimTimer": True, "userData": extra}
    await case.create_machine("one", guestConfig=config)
    await case.vm("one")
    user, _ = await case.user_data("one")
    assert user["packages"] == ["iptables", "vim", "jq"]
    assert user["runcmd"] == [["systemctl", "disable", "--now", "fstrim.timer"]]
    assert (user["timezone"], user["locale"]) == ("UTC", "C.UTF-8")


async def test_user_data_of_the_spec_that_is_broken_is_named(case: Case) -> None:
    await case.ready_cluster()
    await case.create_machine("one", guestConfig={"userData": "#!/bin/sh\n"})
    says = is_false("VMProvisioningReady", FAILED, "spec.guestConfig.userData is a shell script")
    await case.until(HARVESTER_MACHINES, "one", says)
    await case.patch(HARVESTER_MACHINES, "one", {"spec": {"guestConfig": {"userData": "locale: C.UTF-8\n"}}})
    assert annotations_of(await case.vm("one", timeout=AT_ONCE))
