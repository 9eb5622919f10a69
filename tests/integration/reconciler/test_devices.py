"""Machines with devices of their host: they wait for one, say where it exists, and take a free one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from caphv.api.object import NODES, Obj, at
from sandbox.harvester import kinds
from tests.support.reconciler.case import AT_ONCE, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true

pytestmark = pytest.mark.integration

GPU = "nvidia.com/GA102GL_A10"
READY = "VMProvisioningReady"


@contextlib.asynccontextmanager
async def devices(case: Case, *counts: int) -> AsyncIterator[list[str]]:
    """Give the hosts so many devices each; answers the names of the hosts."""
    hosts = sorted(node["metadata"]["name"] for node in (await case.harvester.list(NODES))["items"])

    for host, count in zip(hosts, counts, strict=False):
        await offer(case, host, GPU, str(count))
    try:
        yield hosts
    finally:
        for host in hosts:
            await offer(case, host, GPU, None)


async def offer(case: Case, host: str, resource: str, amount: str | None) -> None:
    patch = {"status": {"allocatable": {resource: amount}}}
    await case.harvester.patch(NODES, host, "", patch, subresource="status")


async def test_machine_names_the_hosts_of_its_device_and_takes_a_free_one_at_once(case: Case) -> None:
    await case.ready_cluster()
    wanted = {"devices": [{"resourceName": GPU}]}
    async with devices(case, 2, 1) as hosts:
        for name in ("one", "two", "three"):
            await case.ready_machine(name, **wanted)
        await case.create_machine("four", **wanted)
        message = f"no host of Harvester has 1 {GPU} free: {hosts[0]} has 0 of 2 free, {hosts[1]} has 0 of 1 free"
        machine = await case.until(HARVESTER_MACHINES, "four", is_false(READY, "DevicesExhausted", message))
        assert f"Insufficient {GPU}" in condition_of(machine, READY)["message"]
        assert condition_of(machine, "Ready")["status"] == "False"

        freed = await case.get(kinds.INSTANCES, "two")
        await case.delete_machine("two")
        vmi = await case.until(kinds.INSTANCES, "four", lambda vmi: at(vmi, "status", "nodeName"), timeout=AT_ONCE)
        assert vmi["status"]["nodeName"] == freed["status"]["nodeName"]
        await case.until(HARVESTER_MACHINES, "four", is_ready)
        await case.until(HARVESTER_MACHINES, "four", is_true("VMUpToDate"))
        for name in ("one", "three", "four"):
            await case.delete_machine(name)


async def test_machine_whose_gpu_host_lacks_memory_has_no_advice_to_free_a_device(case: Case) -> None:
    await case.ready_cluster()
    async with devices(case, 1):
        await case.create_machine("one", memory="9000Ti", devices=[{"resourceName": GPU}])
        await case.until(HARVESTER_MACHINES, "one", _waits_for("Insufficient memory"))
        await asyncio.sleep(12)  # a missing device would be reported by now
        machine = await case.get(HARVESTER_MACHINES, "one")
        condition = condition_of(machine, READY)
        assert condition["reason"] == "VMProvisioningInProgress"
        assert f"Insufficient {GPU}" in condition["message"]
        assert "delete or stop a VM" not in condition["message"]
        await case.delete_machine("one")


def _waits_for(text: str) -> Callable[[Obj], bool]:
    return lambda machine: text in condition_of(machine, READY).get("message", "")


async def test_device_that_is_not_enabled_is_named_and_taken_once_it_is(case: Case) -> None:
    await case.ready_cluster()
    async with devices(case) as hosts:
        await _know(case, hosts[0], "1")
        await case.create_machine("one", devices=[{"resourceName": GPU}])
        message = f"{GPU} is not enabled on Harvester"
        await case.until(HARVESTER_MACHINES, "one", is_false(READY, "DevicesExhausted", message))
        await offer(case, hosts[0], GPU, "1")
        await case.until(HARVESTER_MACHINES, "one", is_ready)
        await case.delete_machine("one")
        await _know(case, hosts[0], None)


async def _know(case: Case, host: str, amount: str | None) -> None:
    """Let Harvester have a device that is not enabled."""
    patch = {"status": {"capacity": {GPU: amount}}}
    await case.harvester.patch(NODES, host, "", patch, subresource="status")


async def test_device_that_harvester_does_not_know_is_named_with_its_refusal(case: Case) -> None:
    await case.ready_cluster()
    await case.create_machine("one", devices=[{"resourceName": "nvidia.com/NONE"}])
    await case.until(
        HARVESTER_MACHINES, "one", is_false(READY, "VMProvisioningFailed", "resource name nvidia.com/NONE not found")
    )


async def test_devices_that_are_moved_renamed_or_added_on_harvester_are_no_drift(case: Case) -> None:
    await case.ready_cluster()
    async with devices(case, 3):
        await case.ready_machine("one", devices=[{"resourceName": GPU}])
        await case.until(HARVESTER_MACHINES, "one", is_true("VMUpToDate"))

        def request(*names: str, **more: object) -> Obj:
            listed = [{"name": name, "deviceName": GPU} for name in names]
            return {"spec": {"template": {"spec": {"domain": {"devices": {"hostDevices": listed, **more}}}}}}

        gpu = {"name": "harvester-1-000004000", "deviceName": GPU}
        await case.patch(kinds.VIRTUAL_MACHINES, "one", request(gpus=[gpu]))
        vm = await case.vm("one", lambda vm: _devices(vm) == [gpu["name"]])
        assert "gpus" not in vm["spec"]["template"]["spec"]["domain"]["devices"]
        await case.patch(kinds.VIRTUAL_MACHINES, "one", request(gpu["name"], "harvester-1-000004001"))
        await case.patch(kinds.VIRTUAL_MACHINES, "one", request())
        await case.until(HARVESTER_MACHINES, "one", is_false("VMUpToDate", "VMDiffers", f"devices lack 1 {GPU}"))
        await case.patch(kinds.VIRTUAL_MACHINES, "one", request(gpu["name"], "harvester-1-000004001"))
        await case.until(HARVESTER_MACHINES, "one", is_true("VMUpToDate"))
        await case.delete_machine("one")


async def test_pinned_machine_says_that_no_host_can_pin_and_starts_where_one_can(case: Case) -> None:
    await case.ready_cluster()
    pinning = {"cpuPinning": True, "isolateEmulatorThread": True, "numaPassthrough": True, "hugepages": "1Gi"}
    await case.create_machine("one", memory="4Gi", **pinning)

    def names_both(machine: Obj) -> bool:
        message = condition_of(machine, READY).get("message", "")
        return "no host of Harvester offers hugepages-1Gi" in message and "CPU manager" in message

    await case.until(HARVESTER_MACHINES, "one", names_both)
    host = (await case.harvester.list(NODES))["items"][-1]["metadata"]["name"]
    await case.harvester.patch(NODES, host, "", {"metadata": {"labels": {"cpumanager": "true"}}})
    await offer(case, host, "hugepages-1Gi", "4Gi")
    try:
        await case.until(HARVESTER_MACHINES, "one", is_ready)
        vmi = await case.get(kinds.INSTANCES, "one")
        assert vmi["status"]["nodeName"] == host
        domain = vmi["spec"]["domain"]
        assert domain["resources"]["requests"]["memory"] == domain["resources"]["limits"]["memory"]
        assert domain["memory"]["hugepages"] == {"pageSize": "1Gi"}
        assert domain["cpu"]["numa"] == {"guestMappingPassthrough": {}}
        await case.until(HARVESTER_MACHINES, "one", is_true("VMUpToDate"))
        await case.delete_machine("one")
    finally:
        await case.harvester.patch(NODES, host, "", {"metadata": {"labels": {"cpumanager": None}}})
        await offer(case, host, "hugepages-1Gi", None)


def _devices(vm: Obj) -> list[str]:
    listed = at(vm, "spec", "template", "spec", "domain", "devices", "hostDevices") or ()
    return [device["name"] for device in listed]
