"""Why no host can run a VM with devices, pinned CPUs or huge pages."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from reconciler.machine.shortage import find_shortage

pytestmark = pytest.mark.unit

A10 = "nvidia.com/GA102GL_A10"
NEEDS = {"devices": [{"resourceName": A10}]}
INSUFFICIENT = f"0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient {A10}. preemption: 0/3 nodes are available"


def host(name: str, devices: int | str = 0, labels: Obj | None = None, **spec: object) -> Obj:
    allocatable = {A10: str(devices)} if devices else {}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": {"allocatable": allocatable}}


def user(host_name: str, kind: str = "hostDevices") -> Obj:
    domain = {"devices": {kind: [{"deviceName": A10}]}}
    return {
        "metadata": {"name": "vm", "namespace": "ns"},
        "spec": {"domain": domain},
        "status": {"nodeName": host_name},
    }


def message(spec: Obj, hosts: list[Obj], instances: list[Obj], explanation: str = "") -> str:
    shortage = find_shortage(spec, hosts, instances, explanation)
    return shortage.message if shortage else ""


def test_hosts_and_free_numbers_are_named() -> None:
    hosts = [host("b", 1), host("a", 2), host("c")]
    instances = [user("a"), user("a", "gpus"), user("b")]
    shortage = find_shortage(NEEDS, hosts, instances, INSUFFICIENT)
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


def test_vms_that_the_account_does_not_see_are_mentioned() -> None:
    text = message(NEEDS, [host("a", 2)], [user("a")], INSUFFICIENT)
    assert "a has 1 of 2 free, not counting VMs that the account does not see" in text


@pytest.mark.parametrize("explanation", ["", "0/1 nodes are available: 1 Insufficient memory."])
def test_other_causes_are_left_to_harvester(explanation: str) -> None:
    assert find_shortage(NEEDS, [host("a", 1)], [], explanation) is None


def test_similar_name_of_the_scheduler_is_another_resource() -> None:
    assert find_shortage(NEEDS, [host("a", 1)], [], f"1 Insufficient {A10}_40G.") is None


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
    able["status"]["allocatable"]["hugepages-1Gi"] = "4Gi"
    assert find_shortage(pinned, [able], [], "") is None
    text = message(pinned, [able], [], "0/1 nodes are available: 1 Insufficient hugepages-1Gi.")
    assert "8Gi of hugepages-1Gi free: a has 4Gi in all" in text
