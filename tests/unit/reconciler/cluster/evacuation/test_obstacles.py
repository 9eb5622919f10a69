"""Machines that stay on a host that is evacuated, because they would find no other or are not to be touched."""

from __future__ import annotations

import time
from typing import Any

import pytest

from caphv.api import resources
from caphv.api.names import (
    EVACUATED_FROM_ANNOTATION,
    SKIP_REMEDIATION_ANNOTATION,
    SKIPPED_BY_US,
)
from caphv.api.object import PODS, Obj, annotations_of
from caphv.runtime.errors import Forbidden, ServerFault
from tests.support.reconciler.evacuation import (
    GPU,
    add_host,
    add_machine,
    add_node,
    add_pod,
    cluster,
    drained,
    evicts,
    found,
    halted,
    message_of,
    node_of,
    records,
    run,
    stop,
    vm_of,
)
from tests.support.reconciler.memorycase import TARGET, MemoryCase

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("mode", "moves"), [("ReadWriteOnce", False), ("ReadWriteMany", True)])
async def test_a_machine_with_a_device_and_a_disk_that_may_be_local_stays(
    monkeypatch: pytest.MonkeyPatch, mode: str, moves: bool
) -> None:
    case = await cluster(monkeypatch, "w")
    vm = vm_of(case, "w")
    vm["spec"]["template"]["spec"]["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": "disk-w"}}]
    case.harvester.put(vm)
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"accessModes": [mode]}}
    case.harvester.put({**claim, "metadata": {"name": "disk-w", "namespace": TARGET}})
    await case.reconcile()
    assert ("disk disk-w is not ReadWriteMany" in message_of(case)) is not moves
    assert (vm_of(case, "w")["spec"]["runStrategy"] == "Halted") is moves


async def test_nothing_is_stopped_that_could_not_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w", devices=0)
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert f"w stays on h0: no other host has 1 {GPU} free" in message_of(case)
    assert records(case, "w") == set()
    assert case.events.count(("Warning", "EvacuationBlocked")) == 1
    await case.reconcile()
    assert case.events.count(("Warning", "EvacuationBlocked")) == 1

    add_host(case, "h1")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_a_vm_whose_huge_pages_no_other_host_has_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    vm = vm_of(case, "w")
    memory = {"guest": "4Gi", "hugepages": {"pageSize": "1Gi"}}
    vm["spec"]["template"]["spec"]["domain"]["memory"] = memory
    case.harvester.put(vm)
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert "w stays on h0: no other host has 4Gi of hugepages-1Gi; reserve such pages" in message_of(case)
    assert records(case, "w") == set()

    host = case.harvester.find("Node", "h1")
    assert host is not None
    host["status"]["allocatable"]["hugepages-1Gi"] = "8Gi"
    case.harvester.put(host)
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


def pin(case: MemoryCase, name: str, *hosts: str) -> None:
    """Give a VM pinned CPUs, and these hosts an enabled CPU manager."""
    vm = vm_of(case, name)
    vm["spec"]["template"]["spec"]["domain"]["cpu"] = {"dedicatedCpuPlacement": True}
    case.harvester.put(vm)
    run(case, name, "h0")
    enable_cpu_manager(case, *hosts)


def enable_cpu_manager(case: MemoryCase, *hosts: str) -> None:
    for name in hosts:
        host = case.harvester.find("Node", name)
        assert host is not None
        host["metadata"]["labels"]["cpumanager"] = "true"
        case.harvester.put(host)


async def test_a_vm_with_pinned_cpus_is_not_stopped_without_another_host_that_can_pin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await cluster(monkeypatch, "w")
    pin(case, "w", "h0")
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert "w stays on h0: no other host that takes VMs has its CPU manager enabled" in message_of(case)
    assert records(case, "w") == set()

    enable_cpu_manager(case, "h1")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"


async def test_harvester_migrates_pinned_cpus_only_to_a_host_that_can_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch)
    add_machine(case, "w", devices=0)
    pin(case, "w", "h0")
    await case.reconcile()
    assert case.condition("HostsEvacuated") == ("False", "EvacuationBlocked")
    assert "w stays on h0: no other host that takes VMs has its CPU manager enabled" in message_of(case)
    assert records(case, "w") == set()

    enable_cpu_manager(case, "h1")
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "True"
    assert "Harvester migrates w" in message_of(case)


async def test_a_vm_with_pinned_cpus_that_maintenance_shuts_down_needs_no_other_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await cluster(monkeypatch)
    add_machine(case, "w", devices=0)
    pin(case, "w", "h0")
    vm = vm_of(case, "w")
    vm["metadata"]["labels"] = {"harvesterhci.io/maintain-mode-strategy": "ShutdownAndRestartAfterDisable"}
    case.harvester.put(vm)
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "True"
    assert "Harvester shuts down w" in message_of(case)


async def test_devices_of_other_namespaces_count_as_far_as_they_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w", devices=1)
    spec = vm_of(case, "w")["spec"]["template"]["spec"]
    obj = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "spec": spec}
    case.harvester.put({**obj, "metadata": {"name": "x", "namespace": "other"}, "status": {"nodeName": "h1"}})
    await case.reconcile()
    assert "no other host has" in message_of(case)

    listing = case.harvester.list

    async def only_own(resource: Any, namespace: str = "", **options: Any) -> Obj:
        if resource.kind == "VirtualMachineInstance" and not namespace:
            raise Forbidden(403, "Forbidden", "cannot list virtualmachineinstances")
        return await listing(resource, namespace, **options)

    monkeypatch.setattr(case.harvester, "list", only_own)
    messages: list[str] = []
    events: Any = case.context.events
    events.event = lambda _about, _kind, _reason, message: messages.append(message)
    await case.reconcile()
    assert any("devices in other namespaces were not counted: cannot list" in message for message in messages)
    grant = "list on virtualmachineinstances.kubevirt.io in all namespaces; cannot list"
    assert grant in message_of(case)
    await stop(case, "w")
    await case.reconcile()
    assert "waiting for its VM to start" in message_of(case)
    assert grant in message_of(case)

    run(case, "w", "h1")
    add_node(case, "w", boot="second")
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "True"
    assert "virtualmachineinstances" not in message_of(case)


@pytest.mark.parametrize("host", ["h1", ""], ids=["started", "starting"])
async def test_a_device_that_another_vm_takes_during_the_drain_ends_the_move(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    case = await cluster(monkeypatch, "w", devices=1)
    add_pod(case, "web", "w")
    case.workload.request = evicts(case)  # type: ignore[method-assign]
    await case.reconcile()
    assert EVACUATED_FROM_ANNOTATION in records(case, "w")
    spec = vm_of(case, "w")["spec"]["template"]["spec"]
    obj = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "spec": spec}
    case.harvester.put({**obj, "metadata": {"name": "x", "namespace": "other"}, "status": {"nodeName": host}})
    await case.workload.delete(PODS, "web", "default")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"
    assert records(case, "w") == set()
    assert f"w stays on h0: no other host has 1 {GPU} free" in message_of(case)


@pytest.mark.parametrize("is_drained", [True, False], ids=["to be held", "to be released"])
async def test_a_device_is_looked_for_again_although_other_machines_cannot_be_held(
    monkeypatch: pytest.MonkeyPatch, is_drained: bool
) -> None:
    case = await cluster(monkeypatch, "w", devices=1)
    add_machine(case, "b", devices=0)
    owners = {"m-w": "", **({} if is_drained else {"m-b": SKIPPED_BY_US})}
    for name, value in owners.items():
        owner = found(case, "Machine", name)
        owner["metadata"]["annotations"] = {SKIP_REMEDIATION_ANNOTATION: value}
        case.management.put(owner)
    if is_drained:
        host = case.harvester.find("Node", "h0")
        assert host is not None
        host["spec"]["taints"] = [{"key": "kubevirt.io/drain", "value": "draining", "effect": "NoSchedule"}]
        case.harvester.put(host)
    refusal = Forbidden(403, "Forbidden", "machines.cluster.x-k8s.io is forbidden")
    case.management.errors["patch Machine"] = refusal
    add_pod(case, "web", "w")
    case.workload.request = evicts(case)  # type: ignore[method-assign]
    await case.reconcile()
    assert "draining its Node, default/web left" in message_of(case)

    spec = vm_of(case, "w")["spec"]["template"]["spec"]
    obj = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "spec": spec}
    case.harvester.put({**obj, "metadata": {"name": "x", "namespace": "other"}, "status": {"nodeName": "h1"}})
    await case.workload.delete(PODS, "web", "default")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"
    assert f"w stays on h0: no other host has 1 {GPU} free" in message_of(case)


async def test_what_hosts_have_free_is_read_seldom_during_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w", devices=1)
    add_pod(case, "web", "w")
    case.workload.request = evicts(case)  # type: ignore[method-assign]
    await case.reconcile()
    case.harvester.errors = {"list": ServerFault(500, "x", "listed")}
    for _ in range(2):
        await case.reconcile()
        assert "draining its Node, default/web left" in message_of(case)

    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 30.0)
    await case.reconcile()
    assert "listed" in message_of(case)


async def test_nothing_is_stopped_while_what_hosts_have_free_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    add_pod(case, "web", "w")
    case.workload.request = evicts(case)  # type: ignore[method-assign]
    await case.reconcile()
    case.harvester.errors = {"list": ServerFault(500, "x", "listed")}
    await case.workload.delete(PODS, "web", "default")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"
    assert "listed" in message_of(case)


@pytest.mark.parametrize("kind", ["Machine", "HarvesterMachine"])
async def test_a_machine_that_is_paused_stays(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    case = await cluster(monkeypatch, "w")
    obj = found(case, kind, "m-w" if kind == "Machine" else "w")
    obj["metadata"]["annotations"] = {"cluster.x-k8s.io/paused": ""}
    case.management.put(obj)
    await case.reconcile()
    assert "w stays on h0: it is paused" in message_of(case)
    assert records(case, "w") == set()

    drained(case, "h0", "taint")
    await halted(case, "w")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"
    assert records(case, "w") == set()


async def test_what_users_have_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    machine = found(case, "Machine", "m-w")
    machine["metadata"]["annotations"] = {SKIP_REMEDIATION_ANNOTATION: ""}
    case.management.put(machine)
    case.workload.put({**node_of(case, "w"), "spec": {"unschedulable": True}})
    await case.reconcile()
    await stop(case, "w")
    await case.reconcile()
    run(case, "w", "h1")
    add_node(case, "w", boot="second")
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "True"
    assert annotations_of(found(case, "Machine", "m-w")) == {SKIP_REMEDIATION_ANNOTATION: ""}
    assert node_of(case, "w")["spec"]["unschedulable"] is True


async def test_a_machine_whose_record_is_of_another_owner_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    vm = vm_of(case, "w")
    vm["metadata"]["annotations"] = {}
    case.harvester.put(vm)
    await case.reconcile()
    assert "w stays on h0: its VirtualMachine is not recorded as this cluster's" in message_of(case)
    assert vm_of(case, "w")["spec"]["runStrategy"] == "RerunOnFailure"


async def test_machines_in_deletion_are_left_to_their_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await cluster(monkeypatch, "w")
    machine = found(case, "Machine", "m-w")
    machine["metadata"]["deletionTimestamp"] = "2026-11-27T10:00:00Z"
    case.management.put(machine)
    await case.reconcile()
    assert records(case, "w") == set()
    assert case.condition("HostsEvacuated") == ("False", "Evacuating")
    assert message_of(case) == "waiting for the deletion of w"
    await case.harvester.delete(resources.VIRTUAL_MACHINE_INSTANCES, "w", TARGET)
    await case.reconcile()
    assert case.condition("HostsEvacuated")[0] == "True"


async def test_a_machine_without_a_machine_of_cluster_api_leaves_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would replace it meanwhile, so nothing is kept from that."""
    case = await cluster(monkeypatch, "w")
    await case.management.delete(resources.machines("v1beta2"), "m-w", "team")
    add_node(case, "w")
    await case.reconcile()
    assert vm_of(case, "w")["spec"]["runStrategy"] == "Halted"
    assert annotations_of(found(case, "HarvesterMachine", "w"))[EVACUATED_FROM_ANNOTATION] == "h0"
