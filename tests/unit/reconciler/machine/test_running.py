"""What a healthy VM passes through is neither a Warning nor the end of readiness; what lasts is reported."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Obj
from reconciler.machine.vmpolicy import AGENT_SECONDS, CREATION_SECONDS, RESTART_SECONDS, SHORTAGE_SECONDS
from reconciler.machine.vmstatus import typed_addresses
from tests.support.reconciler.vmlife import AGENT, CLAIM, NICS, UUID, VmLife

pytestmark = pytest.mark.unit

FAILED, IN_PROGRESS = "VMProvisioningFailed", "VMProvisioningInProgress"
ABSENT = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "PVC does not exist"}]}
UNBOUND = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims",
        }
    ]
}


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> VmLife:
    return VmLife(monkeypatch)


async def ready(life: VmLife) -> VmLife:
    await life.runs()
    assert life.condition("Ready")[0] == "True"
    life.events.clear()
    return life


@pytest.mark.parametrize("seconds", [3.0, CREATION_SECONDS - 1])
async def test_creation_whose_volumes_come_after_the_instance_warns_of_nothing(life: VmLife, seconds: float) -> None:
    await life.state("Stopped")
    await life.passes(seconds)
    await life.state("ErrorPvcNotFound", "Pending", **ABSENT)
    await life.passes(seconds)
    life.claims[CLAIM] = "Pending"
    await life.state("ErrorUnschedulable", "Scheduling", **UNBOUND)
    await life.passes(seconds)
    life.claims[CLAIM] = "Bound"
    await life.state("Starting", "Scheduled")
    await life.passes(seconds)
    await life.runs(agent=False)
    await life.passes(seconds)
    await life.runs()
    assert life.warnings() == []
    assert life.flips() == ["False", "True"]


@pytest.mark.parametrize(
    ("word", "phase", "claims", "names"),
    [
        ("ErrorPvcNotFound", "Pending", {}, f"PersistentVolumeClaim {CLAIM} (does not exist)"),
        ("ErrorUnschedulable", "Scheduling", {CLAIM: "Pending"}, f"PersistentVolumeClaim {CLAIM} (Pending)"),
        ("ErrorUnschedulable", "Scheduling", {CLAIM: "Bound"}, "no host of Harvester can run the VM"),
    ],
)
async def test_new_vm_that_lacks_something_for_a_minute_has_failed(
    life: VmLife, word: str, phase: str, claims: dict[str, str], names: str
) -> None:
    life.claims = claims
    await life.state(word, phase, **UNBOUND)
    await life.passes(CREATION_SECONDS - 1)
    _, reason, message = life.condition("VMProvisioningReady")
    assert (reason, life.warnings()) == (IN_PROGRESS, [])
    assert names in message
    await life.passes(2)
    _, reason, message = life.condition("VMProvisioningReady")
    assert (reason, life.warnings()) == (FAILED, [FAILED])
    assert names in message


async def test_a_vm_without_a_host_names_the_hosts_that_are_down(life: VmLife) -> None:
    down = {"type": "Ready", "status": "Unknown"}
    life.hosts = [{"metadata": {"name": "harvester-1"}, "status": {"conditions": [down]}}]
    life.claims = {CLAIM: "Bound"}
    await life.state("ErrorUnschedulable", "Scheduling", **UNBOUND)
    await life.passes(CREATION_SECONDS - 1)
    _, _, message = life.condition("VMProvisioningReady")
    assert "no host of Harvester can run the VM: harvester-1 is not ready" in message


async def test_reboot_in_the_guest_is_outage(life: VmLife) -> None:
    await ready(life)
    await life.runs(agent=False)
    await life.passes(AGENT_SECONDS - 1)
    assert life.obj["status"]["addresses"] == typed_addresses(["10.0.0.1"])
    await life.runs()
    assert (life.events, life.flips(), life.flips("GuestAgentConnected")) == ([], ["True"], ["True"])


async def test_live_migration_is_outage(life: VmLife) -> None:
    await ready(life)
    await life.state("Migrating", "Running", interfaces=NICS, conditions=[AGENT])
    await life.runs(agent=False, host="h2")
    await life.passes(60)
    await life.runs(host="h2")
    assert [(kind, reason) for kind, reason, _ in life.events] == [("Normal", "VMMigrated")]
    assert life.flips() == ["True"]


GPU = "nvidia.com/GA102GL_A10"
INSUFFICIENT = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": f"0/1 nodes are available: 1 Insufficient {GPU}.",
        }
    ]
}


def gpu_host(name: str, count: int) -> Obj:
    status = {"allocatable": {GPU: str(count)}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name}, "spec": {}, "status": status}


async def test_device_that_is_not_free_is_named_and_warned_of_once(life: VmLife) -> None:
    life.obj["spec"]["devices"] = [{"resourceName": GPU}]
    life.hosts = [gpu_host("h1", 1)]
    domain = {"devices": {"hostDevices": [{"deviceName": GPU}]}}
    life.other_instances = [{"metadata": {"name": "x"}, "spec": {"domain": domain}, "status": {"nodeName": "h1"}}]
    await life.state("ErrorUnschedulable", "Scheduling", **INSUFFICIENT)
    for seconds, (named, warnings) in (
        (SHORTAGE_SECONDS - 1, (IN_PROGRESS, [])),
        (2, ("DevicesExhausted", ["DevicesExhausted"])),
        (2 * CREATION_SECONDS, ("DevicesExhausted", ["DevicesExhausted"])),
    ):
        await life.passes(seconds)
        _, reason, message = life.condition("VMProvisioningReady")
        assert (reason, life.warnings()) == (named, warnings)
        assert message.startswith(f"no host of Harvester has 1 {GPU} free: h1 has 0 of 1 free; ")

    # No watch reports what other hosts do.
    life.hosts = [gpu_host("h1", 1), gpu_host("h2", 2) | {"spec": {"unschedulable": True}}]
    await life.passes(40)
    assert "h2 has 2 of 2 free but takes no VMs" in life.condition("Ready")[2]
    await life.runs()
    assert life.condition("Ready")[0] == "True"


async def test_devices_that_others_free_and_take_are_no_news(life: VmLife) -> None:
    life.obj["spec"]["devices"] = [{"resourceName": GPU, "count": 3}]
    await life.state("ErrorUnschedulable", "Scheduling", **INSUFFICIENT)
    await life.passes(SHORTAGE_SECONDS + 1)
    writes, patch = 0, life._write

    async def count(*arguments: Any) -> None:
        nonlocal writes
        writes += 1
        await patch(*arguments)

    life._write = count  # type: ignore[method-assign]
    for number in range(6):
        life.hosts = [gpu_host("h1", number % 2 + 1)]
        await life.reconcile()
    assert (life.warnings(), writes) == (["DevicesExhausted"], 0)
    await life.passes(60)
    assert f"no host of Harvester has 3 {GPU} free: h1 has 2 of 2 free" in life.condition("VMProvisioningReady")[2]
    assert life.warnings() == ["DevicesExhausted"]

    # It is news again after the VM has run.
    await life.runs()
    await life.state("ErrorUnschedulable", "Scheduling", **INSUFFICIENT)
    await life.passes(2 * CREATION_SECONDS)
    assert life.warnings().count("DevicesExhausted") == 2


async def test_restart_of_the_provider_repeats_no_warning_of_a_device(life: VmLife) -> None:
    life.obj["spec"]["devices"] = [{"resourceName": GPU}]
    await life.state("ErrorUnschedulable", "Scheduling", **INSUFFICIENT)
    await life.passes(SHORTAGE_SECONDS + 1)
    life.restart_provider()
    await life.reconcile()
    assert life.condition("VMProvisioningReady")[1] == "DevicesExhausted"
    await life.passes(SHORTAGE_SECONDS + 1)
    assert life.warnings() == ["DevicesExhausted"]


async def test_shortage_that_follows_another_cause_is_noticed(life: VmLife) -> None:
    life.obj["spec"]["devices"] = [{"resourceName": GPU}]
    life.hosts = [gpu_host("h1", 1)]
    await life.state("ErrorUnschedulable", "Scheduling")
    await life.passes(2 * CREATION_SECONDS)
    assert life.condition("VMProvisioningReady")[1] == FAILED
    life.hosts = []
    await life.passes(40)
    assert life.condition("VMProvisioningReady")[1] == "DevicesExhausted"


async def test_device_that_is_not_enabled_is_named_although_the_vm_is_starting(life: VmLife) -> None:
    """The words are those of KubeVirt v1.8.3, which creates no Pod for such a VM."""
    life.obj["spec"]["devices"] = [{"resourceName": GPU}]
    text = f"failed to render launch manifest: HostDevice {GPU} is not permitted in permittedHostDevices configuration"
    refusal = {"type": "Synchronized", "status": "False", "reason": "FailedCreate", "message": text}
    await life.state("Starting", "Pending", conditions=[refusal])
    await life.passes(SHORTAGE_SECONDS + 1)
    _, reason, message = life.condition("VMProvisioningReady")
    assert (reason, life.warnings()) == ("DevicesExhausted", ["DevicesExhausted"])
    assert message.startswith(f"{GPU} is not enabled on Harvester: enable such a device there")
    await life.runs()
    assert life.condition("Ready")[0] == "True"


async def test_machine_without_devices_names_none(life: VmLife) -> None:
    await life.state("ErrorUnschedulable", "Scheduling", **INSUFFICIENT)
    await life.passes(2 * CREATION_SECONDS)
    assert life.condition("VMProvisioningReady")[1] == FAILED


async def test_restart_that_a_user_requested_is_outage(life: VmLife) -> None:
    """The words and phases are those of virt-controller 1.7; see tests/observed/kubevirt."""
    await ready(life)
    await life.state("Stopping", "Running", deleting=True, interfaces=NICS)
    await life.passes(RESTART_SECONDS / 2)
    await life.state("Stopped", "Succeeded", deleting=True)
    await life.passes(1)
    await life.state("Stopped")
    await life.passes(1)
    await life.state("Starting", "Scheduling", uid="j")
    await life.passes(1)
    await life.state("ErrorUnschedulable", "Scheduling", uid="j")
    await life.passes(1)
    await life.runs(agent=False, uid="j")
    await life.passes(60)
    await life.runs(uid="j")
    assert [(kind, reason) for kind, reason, _ in life.events] == [("Normal", "VMRestarted")]
    assert life.flips() == ["True"]


async def test_guest_that_does_not_shut_down_in_time_for_a_restart_has_not_crashed(life: VmLife) -> None:
    await ready(life)
    await life.state("Stopping", "Running", deleting=True)
    await life.state("Stopping", "Failed", deleting=True)
    await life.state("Stopped")
    await life.runs(uid="j")
    assert (life.warnings(), life.flips()) == ([], ["True"])


async def test_restart_that_does_not_end_is_reported(life: VmLife) -> None:
    await ready(life)
    await life.state("Stopping", "Running", deleting=True)
    await life.passes(RESTART_SECONDS - 30)
    await life.state("Starting", "Scheduling", uid="j")
    await life.passes(29)
    assert life.warnings() == []
    await life.passes(2)
    assert (life.warnings(), life.flips()) == ([IN_PROGRESS], ["True", "False"])


@pytest.mark.parametrize(
    ("word", "phase", "strategy", "reason"),
    [
        ("Stopping", "Running", "Halted", IN_PROGRESS),
        ("Stopped", None, "Halted", FAILED),
        ("Stopped", "Succeeded", "RerunOnFailure", FAILED),
        ("Stopped", None, "Manual", FAILED),
        ("Running", "Failed", "Always", FAILED),
        ("CrashLoopBackOff", None, "Always", FAILED),
        ("Unknown", "Unknown", "Always", FAILED),
        ("ErrorPvcNotFound", "Pending", "Always", FAILED),
    ],
)
async def test_end_of_a_ready_machines_vm_is_reported_at_once(
    life: VmLife, word: str, phase: str | None, strategy: str, reason: str
) -> None:
    await ready(life)
    await life.state(word, phase, strategy=strategy)
    await life.passes(2)
    assert (life.condition("Ready")[:2], life.warnings()) == (("False", reason), [reason])


async def test_restart_after_a_failure_is_a_warning(life: VmLife) -> None:
    await ready(life)
    await life.state("Running", "Failed")
    await life.state("Starting", "Scheduling", uid="j")
    await life.runs(uid="j", host="h2")
    assert life.warnings() == [FAILED, "VMRestarted"]
    assert life.flips() == ["True", "False", "True"]


async def test_silent_agent_is_a_condition_of_its_own_after_minutes(life: VmLife) -> None:
    await ready(life)
    await life.runs(agent=False)
    await life.passes(AGENT_SECONDS + 1)
    await life.passes(AGENT_SECONDS)
    assert life.warnings() == ["GuestAgentSilent"]
    assert life.condition("GuestAgentConnected")[:2] == ("False", "GuestAgentSilent")
    await life.runs()
    assert (life.flips(), life.flips("GuestAgentConnected")) == (["True"], ["True", "False", "True"])


STATIC = {"networkConfig": {"address": "10.0.0.7", "gateway": "10.0.0.1"}}


async def test_guest_without_agent_gets_its_static_address_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    life = VmLife(monkeypatch, **STATIC)
    await life.runs(agent=False)
    await life.passes(AGENT_SECONDS - 1)
    assert life.condition("Ready")[0] == "False"
    assert life.condition("GuestAgentConnected") == ("", "", "")
    await life.passes(2)
    assert life.obj["status"]["addresses"] == typed_addresses(["10.0.0.7"])
    assert (life.condition("Ready")[0], life.warnings()) == ("True", ["GuestAgentSilent"])


async def test_guest_without_agent_gets_its_reserved_address(monkeypatch: pytest.MonkeyPatch) -> None:
    life = VmLife(monkeypatch, vmNetworkConfig={"ipPoolRef": "pool", "gateway": "10.0.0.1", "subnetMask": "255.0.0.0"})
    life.obj["status"]["allocatedIPAddress"] = "10.0.0.8"
    await life.runs(agent=False)
    await life.passes(AGENT_SECONDS + 1)
    assert life.obj["status"]["addresses"] == typed_addresses(["10.0.0.8"])


async def test_guest_without_agent_and_with_dhcp_says_what_is_missing(life: VmLife) -> None:
    await life.runs(agent=False)
    await life.passes(AGENT_SECONDS + 1)
    assert (life.condition("Ready")[0], life.warnings()) == ("False", ["GuestAgentSilent"])
    assert "its address is not known without it" in life.condition("GuestAgentConnected")[2]


@pytest.mark.parametrize(
    ("uuid", "status"), [(UUID.upper(), "True"), ("00000000-0000-4000-8000-000000000002", "False")]
)
async def test_joined_node_proves_the_address_without_a_wait(
    monkeypatch: pytest.MonkeyPatch, uuid: str, status: str
) -> None:
    life = VmLife(monkeypatch, **STATIC)
    life.node = node(uuid)
    await life.runs(agent=False)
    await life.passes(2)
    assert life.condition("Ready")[0] == status


# The Node of an earlier machine


def node(uuid: str, provider_id: str = "rke2://one") -> Obj:
    info = {"nodeInfo": {"systemUUID": uuid}}
    metadata = {"name": "one", "creationTimestamp": "2020-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"providerID": provider_id}, "status": info}


@pytest.mark.parametrize(
    ("uuid", "provider_id"),
    [(UUID, "rke2://one"), (UUID.upper(), "rke2://one"), ("another", "harvester://vm"), ("", "rke2://one")],
)
async def test_provider_id_of_a_node_counts_if_its_system_is_the_vms(life: VmLife, uuid: str, provider_id: str) -> None:
    """Whichever is older: the clocks of workload and management cluster differ."""
    life.obj["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    life.node = node(uuid)
    await life.runs()
    assert life.obj["spec"]["providerID"] == provider_id
    life.node = node(UUID)
    await life.runs()
    assert life.obj["spec"]["providerID"] == "rke2://one"


async def test_node_of_an_earlier_machine_is_left_alone_before_the_vm_has_an_instance(life: VmLife) -> None:
    life.node = node("another")
    await life.state("Stopped")
    assert "providerID" not in life.obj["spec"]
