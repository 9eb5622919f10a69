"""Why no host can run a VM with devices, pinned CPUs or huge pages."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from reconciler.machine.shortage import find_refusal, find_shortage

pytestmark = pytest.mark.unit

A10 = "nvidia.com/GA102GL_A10"
NEEDS = {"devices": [{"resourceName": A10}]}
T4 = "nvidia.com/TU104GL_T4"


def host(name: str, devices: int | str = 0, labels: Obj | None = None, ready: str = "True", **spec: object) -> Obj:
    status = {
        "allocatable": {A10: str(devices)} if devices else {},
        "conditions": [{"type": "Ready", "status": ready}],
    }
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": status}


def user(host_name: str, kind: str = "hostDevices", phase: str = "Running") -> Obj:
    domain = {"devices": {kind: [{"deviceName": A10}]}}
    return {
        "metadata": {"name": "vm", "namespace": "ns"},
        "spec": {"domain": domain},
        "status": {"nodeName": host_name, "phase": phase},
    }


def scheduler(*reasons: str) -> str:
    text = f"0/3 nodes are available: {', '.join(reasons)}."
    return f"{text} preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."


def message(spec: Obj, hosts: list[Obj], instances: list[Obj], explanation: str = "") -> str:
    shortage = find_shortage(spec, hosts, instances, explanation)
    return shortage.message if shortage else ""


def test_hosts_and_free_numbers_are_named() -> None:
    hosts = [host("b", 1), host("a", 2), host("c")]
    instances = [user("a"), user("a", "gpus"), user("b")]
    shortage = find_shortage(NEEDS, hosts, instances, scheduler("1 Insufficient cpu", f"3 Insufficient {A10}"))
    assert shortage
    assert shortage.devices
    assert shortage.message == (
        f"no host of Harvester has 1 {A10} free: a has 0 of 2 free, b has 0 of 1 free; delete or stop a VM that uses "
        "it, or enable another one"
    )


def test_host_that_takes_no_vms_does_not_count() -> None:
    text = message(NEEDS, [host("a", 1), host("b", 1, unschedulable=True)], [user("a")])
    assert "a has 0 of 1 free, b has 1 of 1 free but takes no VMs" in text


def test_count_must_be_free_on_one_host() -> None:
    needs = {"devices": [{"resourceName": A10, "count": 2}]}
    assert f"no host of Harvester has 2 {A10} free: a has 1 of 1" in message(needs, [host("a", 1), host("b", 1)], [])


def test_device_of_no_host() -> None:
    text = message(NEEDS, [host("a"), host("b")], [])
    assert text.startswith(f"no host of Harvester offers {A10}: enable such a device there")


def test_vms_that_the_account_does_not_see_are_mentioned_if_more_hosts_lack_the_device_than_visibly_do() -> None:
    hosts = [host("a", 2), host("b"), host("c", 1, unschedulable=True)]
    text = message(NEEDS, hosts, [user("a")], scheduler("1 node(s) were unschedulable", f"2 Insufficient {A10}"))
    assert "a has 1 of 2 free, c has 1 of 1 free but takes no VMs, not counting VMs that the account does not" in text


@pytest.mark.parametrize(
    "explanation",
    [
        "",
        scheduler("1 Insufficient memory", f"2 Insufficient {A10}"),
        scheduler("1 Insufficient memory", "2 Insufficient cpu", f"2 Insufficient {A10}"),
        scheduler("1 node(s) didn't match Pod's node affinity/selector", f"2 Insufficient {A10}"),
        scheduler("2 node(s) didn't match Pod's node affinity/selector", f"1 Insufficient {A10}"),
        scheduler("1 node(s) had untolerated taint {a: b}", f"2 Insufficient {A10}"),
    ],
)
def test_other_causes_are_left_to_harvester_although_other_hosts_lack_the_device(explanation: str) -> None:
    assert find_shortage(NEEDS, [host("a", 1), host("b"), host("c")], [], explanation) is None


def test_devices_that_are_on_different_hosts() -> None:
    both = {"devices": [{"resourceName": A10}, {"resourceName": T4}]}
    hosts = [host("a", 1), host("b"), host("c")]
    hosts[1]["status"]["allocatable"][T4] = "1"
    text = scheduler(f"2 Insufficient {A10}", f"2 Insufficient {T4}")
    assert message(both, hosts, [], text).startswith(
        f"no host of Harvester has all of 1 {A10}, 1 {T4} free: a has 1 {A10} free, b has 1 {T4} free; "
    )
    hosts[2]["status"]["allocatable"] |= {A10: "1", T4: "1"}
    assert find_shortage(both, hosts, [], scheduler("1 Insufficient memory")) is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_instance_that_has_ended_holds_no_device(phase: str) -> None:
    explanation = scheduler("1 Insufficient memory", f"2 Insufficient {A10}")
    assert find_shortage(NEEDS, [host("a", 1), host("b"), host("c")], [user("a", phase=phase)], explanation) is None


@pytest.mark.parametrize(
    "closed",
    [
        {"ready": "Unknown"},
        {"unschedulable": True},
        {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        {"taints": [{"key": "k", "effect": "NoExecute"}]},
    ],
)
def test_host_that_takes_no_vms_offers_nothing(closed: Obj) -> None:
    able = host("a", 1, {"cpumanager": "true"}, **closed)
    assert "a has 1 of 1 free but takes no VMs" in message(NEEDS, [able], [])
    assert "enabled (a: enabled, but takes no VMs)" in message({"cpuPinning": True}, [able], [])


def test_device_that_kubevirt_does_not_permit() -> None:
    refused = f"HostDevice {A10} is not permitted in permittedHostDevices configuration"
    shortage = find_refusal(NEEDS, f"failed to render launch manifest: {refused}")
    assert shortage
    assert shortage.devices
    assert shortage.message.startswith(f"{A10} is not enabled on Harvester: enable such a device there")
    assert find_refusal({}, refused) is None
    assert find_refusal(NEEDS, refused.replace(A10, T4)) is None
    assert find_refusal(NEEDS, "") is None


def test_similar_name_of_the_scheduler_is_another_resource() -> None:
    assert find_shortage(NEEDS, [host("a", 1)], [], f"1 Insufficient {A10}_40G.") is None
    assert find_shortage(NEEDS, [host("a", 1)], [], f"1 Insufficient {A10}.") is not None


def test_many_hosts_are_shortened() -> None:
    hosts = [host(f"h{number:02}", 1) for number in range(20)]
    text = message(NEEDS, hosts, [user(f"h{number:02}") for number in range(20)])
    assert "h07 has 0 of 1 free, and 12 further hosts" in text
    assert "h08" not in text


def test_cpu_manager_and_huge_pages() -> None:
    pinned = {"cpuPinning": True, "hugepages": "1Gi", "memory": "8Gi"}
    shortage = find_shortage(pinned, [host("a")], [], "")
    assert shortage
    assert not shortage.devices
    assert "no host of Harvester offers hugepages-1Gi" in shortage.message
    assert "CPU manager" in shortage.message

    able = host("a", labels={"cpumanager": "true"})
    able["status"]["allocatable"]["hugepages-1Gi"] = "16Gi"
    hosts = [able, host("b")]
    assert find_shortage(pinned, hosts, [], "") is None
    # The other host has no pages at all.
    assert find_shortage(pinned, hosts, [], "1 Insufficient cpu, 1 Insufficient hugepages-1Gi.") is None
    text = message(pinned, hosts, [], "0/2 nodes are available: 2 Insufficient hugepages-1Gi.")
    assert "8Gi of hugepages-1Gi free: a has 16Gi in all; delete or stop" in text
    able["status"]["allocatable"]["hugepages-1Gi"] = "4Gi"
    assert "8Gi of hugepages-1Gi free: a has 4Gi in all" in message(pinned, hosts, [])


def test_host_with_the_device_must_be_the_one_that_can_pin() -> None:
    hosts = [host("a", 1), host("b", labels={"cpumanager": "true"})]
    shortage = find_shortage({**NEEDS, "cpuPinning": True}, hosts, [], f"1 Insufficient {A10}")
    assert shortage
    assert not shortage.devices
    assert shortage.message.endswith("enable it on a")
