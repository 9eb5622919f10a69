"""Which room hosts have, and what else speaks against a change."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key, Obj
from operations.capacity.hosts import Host, Size, count_homeless, free_devices, hosts_of, overcommit_of
from operations.capacity.preflight import Demand, check_room, devices_of_machines, size_of
from operations.change.clusterparts import parts_and_deployments
from operations.change.disruptions import checks as disruptions
from operations.read.objects import HarvesterObjects
from operations.status.check import Check, Result
from tests.support.clusters import Builder, condition

pytestmark = pytest.mark.unit


def host(name: str, cpu: str = "8", memory: str = "32Gi", **more: Any) -> Obj:
    metadata = {"name": name, **{key: more.pop(key) for key in ("labels", "annotations") if key in more}}
    ready = condition("Ready", more.pop("ready", "True"))
    return {
        "metadata": metadata,
        "spec": more,
        "status": {"allocatable": {"cpu": cpu, "memory": memory}, "conditions": [ready]},
    }


def instance(name: str, where: str, **domain: Any) -> Obj:
    return {"metadata": {"namespace": "vms", "name": name}, "spec": {"domain": domain}, "status": {"nodeName": where}}


def pool(name: str, size: int, used: int) -> Obj:
    return {
        "metadata": {"name": name},
        "spec": {"ranges": [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": f"10.0.0.{9 + size}"}]},
        "status": {"allocated": {f"10.0.0.{10 + number}": f"team/{number}" for number in range(used)}},
    }


def checks(builder: Builder, harvester: HarvesterObjects | None, machines: int, size: Size) -> dict[str, Check]:
    parts, _ = parts_and_deployments(builder.objects(), Key("team", builder.name))
    return {check.id: check for check in check_room(parts, harvester, Demand(machines, size, []))}


def test_hosts_that_take_no_vms_do_not_count() -> None:
    found = HarvesterObjects(
        hosts=[
            host("a"),
            host("cordoned", unschedulable=True),
            host("away", ready="False"),
            host("witness", labels={"node-role.harvesterhci.io/witness": "true"}),
            host("maintained", annotations={"harvesterhci.io/maintain-status": "completed"}),
            host("evacuated", annotations={"caphv.io/evacuate": "true"}),
            host("tainted", taints=[{"key": "gpu", "effect": "NoSchedule"}]),
            host("drained", taints=[{"key": "kubevirt.io/drain", "effect": "NoExecute"}]),
            host("avoided", taints=[{"key": "gpu", "effect": "PreferNoSchedule"}]),
        ]
    )
    assert [each.name for each in hosts_of(found)] == ["a", "avoided"]


@pytest.mark.parametrize(
    ("growth", "count", "waits"), [(1, 1, False), (2, 1, False), (3, 1, True), (1, 2, True), (0, 9, False)]
)
def test_devices_of_all_machines_that_are_added_each_on_one_host(growth: int, count: int, waits: bool) -> None:
    """Two devices are free, on two hosts."""
    builder = Builder("shop")
    hosts = [host("a"), host("b"), host("closed", unschedulable=True)]
    for obj, number in zip(hosts, ("2", "1", "9"), strict=True):
        obj["status"]["allocatable"]["n.com/a"] = number
    used = instance("vm", "a", devices={"hostDevices": [{"deviceName": "n.com/a"}]})
    ended = instance("ended", "a", devices={"hostDevices": [{"deviceName": "n.com/a"}]})
    ended["status"]["phase"] = "Succeeded"
    found = HarvesterObjects(hosts=hosts, instances=[used, ended])
    parts, _ = parts_and_deployments(builder.objects(), Key("team", builder.name))
    machine = {"spec": {"devices": [{"resourceName": "n.com/a", "count": count}]}}
    demand = Demand(1, Size(), [devices_of_machines([{"spec": {}}, machine], growth)])
    checked = [check for check in check_room(parts, found, demand) if check.id == "devices"]
    assert [check.result for check in checked] == ([Result.WARNING if waits else Result.OK] if growth else [])
    if growth:
        assert checked[0].message.startswith("free devices n.com/a: 2; ")
        assert f"with them: {growth * count} needed" in checked[0].message


def test_the_pool_of_a_rollout_with_too_few_devices_is_warned_of() -> None:
    builder = Builder("shop")
    able = host("a")
    able["status"]["allocatable"]["n.com/a"] = "1"
    parts, _ = parts_and_deployments(builder.objects(), Key("team", builder.name))
    pools = [[{"n.com/a": 1}], [{"n.com/a": 1}] * 2, [{"n.com/a": 1}]]
    found = HarvesterObjects(hosts=[able])
    checked = [check for check in check_room(parts, found, Demand(1, Size(), pools)) if check.id == "devices"]
    assert [check.result for check in checked] == [Result.WARNING]


def with_pages(host_name: str, size: str) -> Obj:
    cpu = {"cores": 4, "dedicatedCpuPlacement": True, "isolateEmulatorThread": True}
    memory = {"guest": size, "hugepages": {"pageSize": "1Gi"}}
    amounts = {"cpu": "4", "memory": size}
    return instance("vm", host_name, cpu=cpu, memory=memory, resources={"limits": amounts, "requests": amounts})


def test_huge_pages_are_no_memory_but_a_resource_of_their_own() -> None:
    able = host("a", cpu="64", memory="60Gi")
    able["status"]["allocatable"]["hugepages-1Gi"] = "192Gi"
    found = HarvesterObjects(hosts=[able], instances=[with_pages("a", "128Gi")])
    (only,) = hosts_of(found)
    assert only.used == Size.of("5", "0")
    assert free_devices(found) == {"a": {"hugepages-1Gi": 64 * 1024**3}}

    builder = Builder("shop")
    parts, _ = parts_and_deployments(builder.objects(), Key("team", builder.name))
    for memory, result in (("64Gi", Result.OK), ("65Gi", Result.WARNING)):
        spec = {"cpu": 4, "memory": memory, "cpuPinning": True, "hugepages": "1Gi"}
        assert Size.of_machine(spec) == Size.of("4", "0")
        demand = Demand(1, Size.of_machine(spec), [devices_of_machines([{"spec": spec}], 1)])
        checked = {check.id: check for check in check_room(parts, found, demand)}
        assert (checked["capacity"].result, checked["devices"].result) == (Result.OK, result)
        assert f"free devices hugepages-1Gi: 64Gi; 1 more machine with them: {memory} needed" in (
            checked["devices"].message
        )


def test_what_vms_request_is_counted() -> None:
    resources = {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "250m", "memory": "6Gi"}}
    found = HarvesterObjects(
        hosts=[host("a")],
        instances=[
            instance("x", "a", resources=resources),
            instance("y", "a", cpu={"cores": 2}, memory={"guest": "1Gi"}),
            instance("z", "b", resources=resources),
        ],
    )
    (only,) = hosts_of(found)
    assert only.used == Size.of("2250m", "7Gi")
    assert str(only.free) == "5.8 CPU and 25 GiB"


def test_pods_of_all_namespaces_count_when_the_host_reports_them() -> None:
    def reported(text: str) -> Obj:
        return host("a", annotations={"management.cattle.io/pod-requests": text})

    own = instance("x", "a", resources={"requests": {"cpu": "4", "memory": "1Gi"}})
    found = HarvesterObjects(hosts=[reported('{"cpu":"3500m","memory":"20Gi","pods":"61"}')], instances=[own])
    (only,) = hosts_of(found)
    # The VM is younger than the report, which has more memory of others than it requests.
    assert (only.used, only.all_pods) == (Size.of("4", "20Gi"), True)
    for text in ("", "[]", "{", "null"):
        (only,) = hosts_of(HarvesterObjects(hosts=[reported(text)], instances=[own]))
        assert (only.used, only.all_pods) == (Size.of("4", "1Gi"), False)


def test_machines_that_find_no_host_are_an_error() -> None:
    full = HarvesterObjects(hosts=[host("a", memory="10Gi"), host("b", memory="7Gi")])
    found = checks(Builder(), full, 3, Size.of(2, "4Gi"))["capacity"]
    note = ", by the VMs that the identity may see"
    assert (found.result, found.message) == (Result.OK, f"hosts have room for 3 more VMs of 2 CPU and 4 GiB{note}")
    reported = {"management.cattle.io/pod-requests": '{"cpu":"1","memory":"1Gi"}'}
    every = HarvesterObjects(hosts=[host("a", annotations=reported)])
    assert checks(Builder(), every, 1, Size.of(2, "4Gi"))["capacity"].message.endswith(" of 2 CPU and 4 GiB")
    assert checks(Builder(), every, 9, Size.of(2, "40Gi"))["capacity"].message.startswith("no host has room for 9")
    found = checks(Builder(), full, 4, Size.of(2, "4Gi"))["capacity"]
    assert found.result is Result.ERROR
    assert found.message == "hosts have no room for 1 of 4 more VMs of 2 CPU and 4 GiB"


def test_addresses_of_all_pools_count() -> None:
    builder = Builder()
    builder.harvester_cluster["spec"]["vmNetworkConfig"] = {"ipPoolRefs": ["a", "b"]}
    found = HarvesterObjects(hosts=[host("a")], pools=[pool("a", 3, 3), pool("b", 4, 2), pool("other", 50, 0)])
    size = Size.of(1, "1Gi")
    assert checks(builder, found, 2, size)["addresses"].result is Result.OK
    short = checks(builder, found, 3, size)["addresses"]
    assert short.result is Result.ERROR
    assert short.message == "free addresses in IPPool a, b: 2, needed: 3"
    assert "caphv pools audit" in short.remedy


def test_a_harvester_that_cannot_be_read_forbids_nothing() -> None:
    assert {each.result for each in checks(Builder(), None, 1, Size()).values()} == {Result.SKIPPED}
    assert checks(Builder(), None, 0, Size()) == {}


def test_the_size_is_what_a_running_vm_requests() -> None:
    builder = Builder()
    parts, _ = parts_and_deployments(builder.objects(), Key("team", "shop"))
    machines = parts.harvester_machines.values()
    assert size_of(parts, machines, None) == Size.of(2, "4Gi")
    running = [
        instance(name, "a", resources={"requests": {"cpu": "125m", "memory": "3Gi"}}) for name in builder.machines
    ]
    assert size_of(parts, machines, HarvesterObjects(instances=running)) == Size.of("125m", "3Gi")


def sized(name: str, cpu: str, memory: str, *, limits: tuple[str, str]) -> Obj:
    """An instance with requests and limits."""
    resources = {
        "requests": {"cpu": cpu, "memory": memory},
        "limits": dict(zip(("cpu", "memory"), limits, strict=True)),
    }
    return instance(name, "a", resources=resources)


def test_a_machine_without_its_vm_requests_the_share_that_other_vms_show() -> None:
    builder = Builder()
    parts, _ = parts_and_deployments(builder.objects(), Key("team", "shop"))
    found = HarvesterObjects(instances=[sized("other", "500m", "2Gi", limits=("8", "3Gi"))])
    size = size_of(parts, parts.harvester_machines.values(), found)
    assert (size.cpu, int(size.memory)) == (Decimal("0.125"), 4 * 1024**3 * 2 // 3)
    # Three of two thirds of 3 GiB are 6 GiB.
    third = overcommit_of(found.instances).requests(Size.of(1, "3Gi"))
    assert count_homeless([Host("a", Size.of(8, "6Gi"), Size())], [third] * 3) == 0


def test_the_most_careful_share_of_limits_counts_and_without_a_vm_all_of_them() -> None:
    usual = sized("a", "250m", "2Gi", limits=("4", "3Gi"))
    dedicated = sized("b", "4", "1Gi", limits=("4", "2Gi"))
    found = overcommit_of([usual, dedicated, instance("c", "a"), {}])
    assert (found.cpu, found.memory, found.is_known) == (1, Decimal(2) / 3, True)
    for share in (
        overcommit_of([instance("d", "a", resources={"limits": {"cpu": "4", "memory": "2Gi"}})]),
        overcommit_of([]),
    ):
        assert (share.cpu, share.memory, share.is_known) == (None, None, False)
    assert overcommit_of([usual]).requests(Size.of(16, "3Gi")) == Size.of(1, "2Gi")
    unknown = overcommit_of([instance("c", "a", resources={"limits": {"cpu": "4"}})])
    assert (unknown.is_known, unknown.requests(Size.of(4, "1Gi"))) == (False, Size.of(4, "1Gi"))


@given(st.lists(st.integers(0, 20), max_size=6), st.lists(st.integers(1, 10), max_size=8))
def test_never_more_is_placed_than_there_is(rooms: list[int], sizes: list[int]) -> None:
    hosts = [Host(str(number), Size.of(99, room), Size()) for number, room in enumerate(rooms)]
    wanted = [Size.of(1, size) for size in sizes]
    left = count_homeless(hosts, wanted)
    assert 0 <= left <= len(wanted)
    placed = sorted(sizes)[: len(sizes) - left]
    assert sum(placed) <= sum(rooms)
    if sizes and rooms and max(rooms) >= min(sizes):
        assert left < len(sizes)


def test_a_budget_without_spare_pods_is_warned_of() -> None:
    def budget(name: str, expected: int, allowed: int) -> Obj:
        metadata = {"namespace": "shop", "name": name}
        return {"metadata": metadata, "status": {"expectedPods": expected, "disruptionsAllowed": allowed}}

    (check,) = disruptions(Key("team", "shop"), [budget("db", 1, 0), budget("web", 3, 1), budget("unused", 0, 0)])
    assert check.result is Result.WARNING
    assert "PodDisruptionBudget shop/db allows no eviction" in check.message
    assert "spec.deletion.nodeDrainTimeoutSeconds of the Machines" in check.remedy
    (check,) = disruptions(Key("team", "shop"), [budget("web", 3, 1)])
    assert check.result is Result.OK
