"""Hosts are evacuated: machines with devices leave, one at a time, and a provider may die after each of its writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from caphv.api import names, remedies
from caphv.api.object import NAMESPACES, NODES, PODS, Obj, annotations_of, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, RequestError
from sandbox.harvester import kinds, maintenance
from tests.support.printed import Person
from tests.support.reconciler import inprocess
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_ready, is_true
from tests.support.reconciler.environment import Environment
from tests.support.reconciler.servers import control_plane, machines_of
from tests.support.waiting import ended, until

pytestmark = pytest.mark.integration

GPU = "example.com/gpu"
EVACUATED = is_true("HostsEvacuated")
SECONDS = 60.0
RECORDS = (
    names.EVACUATED_FROM_ANNOTATION,
    names.EVACUATED_STRATEGY_ANNOTATION,
    names.EVACUATION_STARTED_ANNOTATION,
    names.EVACUATED_BOOT_ANNOTATION,
    names.CORDONED_BY_EVACUATION_ANNOTATION,
    names.SKIP_REMEDIATION_ANNOTATION,
)


@contextlib.asynccontextmanager
async def devices(harvester: ApiClient, count: int = 9) -> AsyncIterator[None]:
    """Hosts with devices; afterwards, none of them is evacuated or in maintenance."""
    hosts = [node["metadata"]["name"] for node in (await harvester.list(NODES))["items"]]
    for host in hosts:
        patch = {"status": {"allocatable": {GPU: str(count)}}}
        await harvester.patch(NODES, host, "", patch, subresource="status")
    try:
        yield
    finally:
        for host in hosts:
            await evacuate(harvester, host, None)
            await maintenance.disable(harvester, host)
            await maintenance.end_upgrade(harvester, host)


async def evacuate(harvester: ApiClient, host: str, value: str | None = "true") -> None:
    await harvester.patch(NODES, host, "", {"metadata": {"annotations": {names.EVACUATE_ANNOTATION: value}}})


@contextlib.asynccontextmanager
async def cluster(case: Case, *servers: str, workers: tuple[str, ...] = ()) -> AsyncIterator[ApiClient]:
    """A cluster of guests, each with a device of its host; answers a client of its API."""
    client = await control_plane(case, *servers, workers=workers)
    for name in (*servers, *workers):
        await case.until(HARVESTER_MACHINES, name, is_ready)
        domain = {"domain": {"devices": {"hostDevices": [{"name": "gpu", "deviceName": GPU}]}}}
        await case.patch(kinds.VIRTUAL_MACHINES, name, {"spec": {"template": {"spec": domain}}})
        # As if it had started with its device.
        await case.patch(kinds.INSTANCES, name, {"spec": domain})
    try:
        yield client
    finally:
        await client.close()


async def host_of(case: Case, name: str) -> str:
    return str((await case.get(kinds.INSTANCES, name))["status"]["nodeName"])


async def identities(case: Case) -> dict[str, tuple[str, str, object, object]]:
    """What a machine keeps: uids of VM and machine, its addresses, and the run strategy of its VM."""
    kept = {}
    for name in await case.names(HARVESTER_MACHINES):
        vm, machine = await case.get(kinds.VIRTUAL_MACHINES, name), await case.get(HARVESTER_MACHINES, name)
        kept[name] = (uid_of(vm), uid_of(machine), machine["status"].get("addresses"), vm["spec"]["runStrategy"])
    return kept


async def records(case: Case, client: ApiClient, *machines: str) -> set[str]:
    """All that is recorded of an evacuation."""
    objs: list[Obj] = list((await client.list(NODES))["items"])
    for name, machine in machines_of(*machines).items():
        objs += [await case.get(kinds.VIRTUAL_MACHINES, name), await case.get(HARVESTER_MACHINES, name)]
        objs.append(await case.get(MACHINES, machine))
    return set(RECORDS) & {annotation for obj in objs for annotation in annotations_of(obj)}


def says(*parts: str) -> object:
    """A test for a HarvesterCluster whose condition says something."""

    def matches(obj: Obj) -> bool:
        message = condition_of(obj, "HostsEvacuated").get("message", "")
        return all(part in message for part in parts)

    return matches


async def test_a_host_is_evacuated_then_maintained(case: Case) -> None:
    async with devices(case.harvester), cluster(case, "a", workers=("w",)) as client:
        before, host = await identities(case), await host_of(case, "w")
        if await host_of(case, "a") != host:
            # Of the control plane, this VM can migrate.
            unset = {"spec": {"template": {"spec": {"domain": {"devices": {"hostDevices": None}}}}}}
            await case.patch(kinds.VIRTUAL_MACHINES, "a", unset)
        with contextlib.suppress(ApiError):
            await client.create(NAMESPACES, {"metadata": {"name": "default"}})
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "x", "controller": True}
        spec = {"nodeName": "w", "terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": "none"}]}
        metadata = {"name": "web", "namespace": "default", "ownerReferences": [owner]}
        await client.create(PODS, {"metadata": metadata, "spec": spec})

        await evacuate(case.harvester, host)
        await case.until(HARVESTER_CLUSTERS, case.name, EVACUATED, timeout=SECONDS)
        assert await host_of(case, "w") != host
        assert await identities(case) == before
        assert await records(case, client, "a", "w") == set()
        assert not (await client.get(NODES, "w"))["spec"].get("unschedulable")
        assert "web" not in {item["metadata"]["name"] for item in (await client.list(PODS, "default"))["items"]}
        await case.until(HARVESTER_MACHINES, "w", is_ready)
        for reason in ("EvacuationStarted", "Evacuated"):
            await case.until_event(case.name, "Normal", reason)
        events = await case.events("w") | await case.events(case.name)
        assert ("Warning", "VMProvisioningFailed") not in events, "an evacuation is no failure"

        # Now Harvester agrees to what it would have refused, and the rest is its own.
        await maintenance.enable(case.harvester, host)
        await case.harvester.patch(NODES, host, "", {"metadata": {"annotations": {names.EVACUATE_ANNOTATION: None}}})
        await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: not condition_of(obj, "HostsEvacuated"))
        vm = await case.vm("w", lambda vm: names.AVOIDED_HOSTS_ANNOTATION not in annotations_of(vm))
        assert "NotIn" not in str(vm["spec"]["template"]["spec"]["affinity"])


async def test_a_device_that_is_not_free_keeps_a_machine_until_it_is(case: Case) -> None:
    async with devices(case.harvester, count=0), cluster(case, "a") as client:
        host = await host_of(case, "a")
        await evacuate(case.harvester, host)
        await case.until(HARVESTER_CLUSTERS, case.name, says(f"a stays on {host}: no other host has 1 {GPU} free"))
        await case.until_event(case.name, "Warning", "EvacuationBlocked")
        assert await records(case, client, "a") == set()

        async with devices(case.harvester):
            await evacuate(case.harvester, host)
            await case.until(HARVESTER_CLUSTERS, case.name, EVACUATED, timeout=SECONDS)
            assert await host_of(case, "a") != host


@contextlib.asynccontextmanager
async def cpu_manager(harvester: ApiClient, *hosts: str) -> AsyncIterator[None]:
    """Hosts whose CPU manager is enabled."""

    async def label(value: str | None) -> None:
        for host in hosts:
            await harvester.patch(NODES, host, "", {"metadata": {"labels": {"cpumanager": value}}})

    await label("true")
    try:
        yield
    finally:
        await label(None)


async def test_pinned_cpus_keep_a_machine_until_another_host_can_pin(case: Case) -> None:
    """Harvester requires such hosts by the affinity of the VM, in which no user has written that."""
    async with devices(case.harvester), cluster(case, "a") as client:
        host = await host_of(case, "a")
        async with cpu_manager(case.harvester, host):
            limits = (await case.vm("a"))["spec"]["template"]["spec"]["domain"]["resources"]["limits"]
            cpu = {"dedicatedCpuPlacement": True}
            pinned = {"domain": {"cpu": cpu, "resources": {"requests": limits}}}
            await case.patch(kinds.VIRTUAL_MACHINES, "a", {"spec": {"template": {"spec": pinned}}})
            await case.patch(kinds.INSTANCES, "a", {"spec": pinned})
            assert "cpumanager" in str((await case.vm("a"))["spec"]["template"]["spec"]["affinity"])

            await evacuate(case.harvester, host)
            reason = f"a stays on {host}: no other host that takes VMs has its CPU manager enabled"
            await case.until(HARVESTER_CLUSTERS, case.name, says(reason))
            assert await records(case, client, "a") == set()

            (other, *_) = {node["metadata"]["name"] for node in (await case.harvester.list(NODES))["items"]} - {host}
            async with cpu_manager(case.harvester, other):
                await case.until(HARVESTER_CLUSTERS, case.name, EVACUATED, timeout=SECONDS)
                assert await host_of(case, "a") == other


@pytest.mark.parametrize("kind", ["forced", "upgrade"])
async def test_what_harvester_has_halted_is_started_again(case: Case, kind: str) -> None:
    async with devices(case.harvester), cluster(case, "a", workers=("w",)) as client:
        before, host = await identities(case), await host_of(case, "w")
        # KubeVirt's report about an instance with a device.
        for name in ("a", "w"):
            status = {"conditions": [kinds.condition("LiveMigratable", False, "HostDeviceNotLiveMigratable")]}
            await case.patch(kinds.INSTANCES, name, {"status": status})
        if kind == "forced":
            await maintenance.enable(case.harvester, host, force=True)
        else:
            await maintenance.begin_upgrade(case.harvester, host)
        await case.until_event(case.name, "Normal", "StoppedByHarvester")
        moved = await case.until(
            kinds.INSTANCES, "w", lambda vmi: vmi["status"].get("nodeName") not in (None, host), timeout=SECONDS
        )
        assert moved["status"]["nodeName"] != host
        await case.until(
            HARVESTER_MACHINES,
            "w",
            lambda obj: names.EVACUATED_FROM_ANNOTATION not in annotations_of(obj),
            timeout=SECONDS,
        )
        after = await identities(case)
        assert {name: kept[:3] for name, kept in after.items()} == {name: kept[:3] for name, kept in before.items()}
        await maintenance.disable(case.harvester, host)
        await maintenance.end_upgrade(case.harvester, host)
        await until(lambda: no_records(case, client, "a", "w"), "an evacuation has left records", seconds=SECONDS)


async def no_records(case: Case, client: ApiClient, *machines: str) -> bool:
    return not await records(case, client, *machines)


async def test_a_host_is_evacuated_by_command(case: Case, tmp_path: Path) -> None:
    person = Person(tmp_path, case.environment.management, case.environment.harvester)
    async with devices(case.harvester), cluster(case, "a") as client:
        host = await host_of(case, "a")
        access = f"--harvester-kubeconfig {person.kubeconfig('harvester')}"
        checks = await person.sees(f"caphv evacuate {host} {access} --dry-run", status=0)
        assert f"{case.name}/{case.name}: stopped and started elsewhere, one at a time: a" in checks
        assert await host_of(case, "a") == host

        _, output = await person.runs(f"caphv evacuate {host} {access} --wait --timeout 60s")
        assert f"a leaves {host}" in output
        assert await host_of(case, "a") != host, output
        assert "Nothing to change" in await person.sees(f"caphv evacuate {host} {access}", status=0)
        await person.follows(remedies.CANCEL_EVACUATION, output, options="--wait --timeout 60s")
        await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: not condition_of(obj, "HostsEvacuated"))
        assert await records(case, client, "a") == set()


@pytest.mark.usefixtures("runner", "alone")
async def test_a_provider_that_dies_after_each_write_continues(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    inprocess.install(monkeypatch)
    async with inprocess.opened(environment) as case, devices(case.harvester):
        servers = tuple(f"{case.name}-{letter}" for letter in "abc")
        worker = f"{case.name}-w"
        async with contextlib.AsyncExitStack() as stack:
            async with inprocess.running(case):
                client = await stack.enter_async_context(cluster(case, *servers, workers=(worker,)))
                before, host = await identities(case), await host_of(case, servers[0])

            unready: list[set[str]] = []
            watch = asyncio.create_task(watch_servers(case, servers, unready))
            hooks = [inprocess.DiesAfterWrite() for _ in range(60)]
            await evacuate(case.harvester, host)
            async with inprocess.running(case, *hooks):
                await case.until(HARVESTER_CLUSTERS, case.name, EVACUATED, timeout=4 * SECONDS)
            await ended(watch)
            # Record, hold, cordon, stop, start, uncordon, settle, release, finish.
            assert sum(hook.stopped.is_set() for hook in hooks) >= 9
            assert max(map(len, unready)) == 1, "etcd members stop one at a time"
            assert host not in {await host_of(case, name) for name in (*servers, worker)}
            assert await identities(case) == before
            assert await records(case, client, *servers) == set()
            assert not [node for node in (await client.list(NODES))["items"] if node["spec"].get("unschedulable")]
        await evacuate(case.harvester, host, None)
        async with inprocess.running(case):
            assert await case.remove() == []


async def watch_servers(case: Case, servers: tuple[str, ...], unready: list[set[str]]) -> None:
    """Note which control plane machines do not run, as long as this is not cancelled."""
    while True:
        # What is asked while a server is busy is asked again.
        with contextlib.suppress(RequestError):
            unready.append(set(servers) - set(await case.names(kinds.INSTANCES)))
        await asyncio.sleep(0.1)
