"""Faults on request: each does what it says, is recorded, and ends when it is cleared."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import DEPLOYMENTS, NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES, Obj, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    ServerFault,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.harvester import kinds
from sandbox.harvester.fault_actions import FaultError
from sandbox.harvester.faultproxy import FaultProxy
from sandbox.harvester.faults import Fault, Faults
from sandbox.processes import network
from sandbox.processes.apiserver import ApiServer, Token
from tests.support.fixtures import entered
from tests.support.simulation import Place, Simulation, simulation, virtual_machine
from tests.support.waiting import ended, until

pytestmark = pytest.mark.integration

TOKEN = Token("fault-proxy-token", "another-user", ("system:masters",))
BOUND = 0.5
_numbers = itertools.count()


@pytest.fixture(scope="module")
def place(etcd_folder: Path) -> Iterator[Place]:
    """An API server of this module: the webhooks of the simulation stay on it."""
    server = ApiServer(etcd_folder, "faulty-harvester", tokens=[TOKEN])
    asyncio.run(server.start())
    with network.claim() as (claimed, _):
        yield Place(server, str(claimed))
    asyncio.run(server.stop())


@pytest.fixture
def sim(place: Place, runner: asyncio.Runner) -> Iterator[Simulation]:
    """A simulated Harvester, and a namespace of the test's own on it."""
    with entered(simulation(place, f"faults-{next(_numbers)}"), runner) as sim:
        yield sim


@pytest.fixture
def faults(sim: Simulation, runner: asyncio.Runner) -> Iterator[Faults]:
    """Faults of that Harvester; all of them can be cleared in the end."""
    faults = Faults(sim.client)
    yield faults
    runner.run(faults.clear())
    assert runner.run(faults.active()) == []


async def running(sim: Simulation, name: str) -> Obj:
    return await sim.until(kinds.INSTANCES, name, lambda vmi: vmi["status"].get("interfaces"))


async def host_of(sim: Simulation, name: str) -> str:
    return str((await sim.client.get(kinds.INSTANCES, name, sim.namespace))["status"]["nodeName"])


# Objects


@pytest.mark.parametrize(("release", "guarded"), [("1.7", False), ("1.8", True)])
async def test_vms_wait_for_the_load_balancer_controller_since_1_8(place: Place, release: str, guarded: bool) -> None:
    async with simulation(place, f"guarded-{release.replace('.', '-')}", harvester=release) as sim:
        faults = Faults(sim.client)
        vm = await sim.create_vm("before")
        assert (kinds.VM_GUARD in vm["metadata"]["finalizers"]) == guarded
        await faults.inject(Fault("balancers-stopped"))
        try:
            await sim.heard(DEPLOYMENTS, kinds.SYSTEM)
            await sim.client.delete(kinds.VIRTUAL_MACHINES, "before", sim.namespace)
            if guarded:
                only = [kinds.VM_GUARD]
                await sim.until(kinds.VIRTUAL_MACHINES, "before", lambda vm: vm["metadata"]["finalizers"] == only)
            else:
                await sim.until_gone(kinds.VIRTUAL_MACHINES, "before")
            # One that the controller has not seen needs nothing of it, until it is back.
            await sim.create_vm("meanwhile")
        finally:
            await faults.clear("balancers-stopped")

        await sim.until_gone(kinds.VIRTUAL_MACHINES, "before")
        if guarded:
            with_guard = lambda vm: kinds.VM_GUARD in vm["metadata"]["finalizers"]  # noqa: E731
            await sim.until(kinds.VIRTUAL_MACHINES, "meanwhile", with_guard)
        await sim.client.delete(kinds.VIRTUAL_MACHINES, "meanwhile", sim.namespace)
        await sim.until_gone(kinds.VIRTUAL_MACHINES, "meanwhile")


async def test_closed_hosts_leave_vms_waiting_until_they_open(sim: Simulation, faults: Faults) -> None:
    await sim.create_vm("before")
    await running(sim, "before")
    await faults.inject(Fault("unschedulable"))
    await sim.heard(NODES)
    await sim.create_vm("after")
    stuck = lambda vm: vm.get("status", {}).get("printableStatus") == "ErrorUnschedulable"  # noqa: E731
    await sim.until(kinds.VIRTUAL_MACHINES, "after", stuck)
    assert [str(fault) for fault in await faults.active()] == ["unschedulable"]
    await faults.clear("unschedulable")
    await running(sim, "after")
    assert (await sim.client.get(kinds.INSTANCES, "before", sim.namespace))["status"]["phase"] == "Running"


@pytest.mark.parametrize(
    ("name", "resource", "target"),
    [
        ("image-missing", kinds.IMAGES, "default/sles-15"),
        ("key-pair-missing", kinds.KEY_PAIRS, "default/caphv"),
        ("network-missing", kinds.NETWORKS, "default/production"),
    ],
    ids=["image", "key-pair", "network"],
)
async def test_missing_object_comes_back_as_it_was(
    sim: Simulation, faults: Faults, name: str, resource: Any, target: str
) -> None:
    namespace, _, bare = target.partition("/")
    before = await sim.client.get(resource, bare, namespace)
    await faults.inject(Fault(name, target))
    with pytest.raises(NotFound):
        await sim.client.get(resource, bare, namespace)
    with pytest.raises(FaultError, match="clear it first"):
        await faults.inject(Fault(name, target))
    await faults.clear(name, "default/other")
    assert await faults.active()
    await faults.clear(name, target)
    after = await sim.client.get(resource, bare, namespace)
    assert (after.get("spec"), after.get("status")) == (before.get("spec"), before.get("status"))


async def test_missing_image_comes_back_with_its_storage_class(sim: Simulation, faults: Faults) -> None:
    """Claims of the image would stay Pending without it."""
    before = await sim.client.get(kinds.IMAGES, "sles-15", "default")
    storage_class = before["status"]["storageClassName"]
    await faults.inject(Fault("image-missing", "default/sles-15"))

    # The controller deletes the class with an image that it has imported itself.
    with contextlib.suppress(NotFound):
        await sim.client.delete(STORAGE_CLASSES, storage_class)
    await faults.clear("image-missing", "default/sles-15")
    assert await sim.client.get(STORAGE_CLASSES, storage_class)


async def test_vms_of_a_failed_host_start_elsewhere(sim: Simulation, faults: Faults) -> None:
    await sim.create_vm("one")
    before = await running(sim, "one")
    failed = before["status"]["nodeName"]
    await faults.inject(Fault("host-failure", failed))
    (ready,) = (await sim.client.get(NODES, failed))["status"]["conditions"]
    assert ready["status"] == "Unknown"
    restarted = await sim.until(
        kinds.INSTANCES,
        "one",
        lambda vmi: uid_of(vmi) != uid_of(before) and vmi["status"].get("interfaces"),
    )
    assert restarted["status"]["nodeName"] not in ("", failed)
    assert restarted["status"]["interfaces"] == before["status"]["interfaces"]
    await faults.clear("host-failure")
    (ready,) = (await sim.client.get(NODES, failed))["status"]["conditions"]
    assert ready["status"] == "True"


async def test_vm_vanishes_and_leaves_its_disks(sim: Simulation, faults: Faults) -> None:
    await sim.create_vm("one")
    await running(sim, "one")
    await faults.inject(Fault("vm-vanishes", f"{sim.namespace}/one"))
    with pytest.raises(NotFound):
        await sim.client.get(kinds.VIRTUAL_MACHINES, "one", sim.namespace)
    await sim.until_gone(kinds.INSTANCES, "one")
    assert await sim.client.get(PERSISTENT_VOLUME_CLAIMS, "one-disk-0-x7k2p", sim.namespace)
    assert await faults.active() == []


async def test_live_migration_changes_the_host_and_nothing_else(sim: Simulation, faults: Faults) -> None:
    await sim.create_vm("one")
    before = await running(sim, "one")
    outcome = await faults.inject(Fault("migration", f"{sim.namespace}/one"))
    after = await sim.client.get(kinds.INSTANCES, "one", sim.namespace)
    assert uid_of(after) == uid_of(before)
    source, host = before["status"]["nodeName"], after["status"]["nodeName"]
    assert host not in ("", source)
    assert outcome.endswith(f"from {source} to {host}")
    # The new virt-launcher knows addresses again when the guest agent answers.
    nics = before["status"]["interfaces"]
    await sim.until(kinds.INSTANCES, "one", lambda vmi: vmi["status"]["interfaces"] == nics)
    # The simulation knows where it is now: a failure of the old host is nothing to it.
    await faults.inject(Fault("host-failure", source))
    await asyncio.sleep(BOUND)
    assert uid_of(await sim.client.get(kinds.INSTANCES, "one", sim.namespace)) == uid_of(before)


async def test_vm_with_a_disk_of_one_host_cannot_be_migrated(sim: Simulation, faults: Faults) -> None:
    vm = virtual_machine(sim.namespace, "one")
    annotations = vm["metadata"]["annotations"]
    annotations[kinds.CLAIM_TEMPLATES] = annotations[kinds.CLAIM_TEMPLATES].replace("Many", "Once")
    await sim.client.create(kinds.VIRTUAL_MACHINES, vm)
    await sim.until(kinds.INSTANCES, "one", lambda vmi: vmi["status"]["phase"] == "Running")
    with pytest.raises(FaultError, match="one-disk-0-x7k2p is not ReadWriteMany"):
        await faults.inject(Fault("migration", f"{sim.namespace}/one"))


async def test_address_by_dhcp_changes_and_a_static_one_does_not(
    sim: Simulation, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    static = f"{sim.prefix}.8.200"
    await sim.create_vm("leased")
    await sim.create_vm("static", address=static)
    (before,) = await sim.addresses("leased")
    assert await sim.addresses("static") == [static]
    await faults.inject(Fault("address-change", f"{sim.namespace}/leased"))
    (after,) = await sim.addresses("leased")
    assert after != before
    with monkeypatch.context() as patch:
        patch.setattr("sandbox.harvester.fault_actions.TIMEOUT_SECONDS", 1.0)
        with pytest.raises(FaultError, match=f"kept {static}"):
            await faults.inject(Fault("address-change", f"{sim.namespace}/static"))
    await faults.inject(Fault("address-change", f"{sim.namespace}/leased"))
    assert await sim.addresses("leased") not in ([after], [])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("vm-vanishes", "nowhere/one"), "VirtualMachine nowhere/one not found on Harvester"),
        (Fault("host-failure", "no-such-host"), "existing: harvester-1, harvester-2, harvester-3"),
        (Fault("migration", "one"), "'one': must be NAMESPACE/NAME"),
        (Fault("host-failure"), "host-failure takes HOST"),
        (Fault("slow", "one"), "slow takes no target"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else None,
)
async def test_fault_that_cannot_be_is_refused(faults: Faults, fault: Fault, message: str) -> None:
    with pytest.raises(FaultError, match=message):
        await faults.inject(fault)
    assert await faults.active() == []


# Transport


@contextlib.asynccontextmanager
async def proxied(server: ApiServer) -> AsyncIterator[tuple[FaultProxy, ApiClient]]:
    """A fault proxy before an API server, and a client that goes through it."""
    access = Kubeconfig(server=server.url, ca=server.ca.certificate.decode(), token=TOKEN.value)
    own = server.folder / server.name
    async with FaultProxy(access, certificate=own / "tls.crt", key=own / "tls.key").serving() as proxy:
        client = Kubeconfig(server=proxy.url, ca=access.ca, token=access.token).client(name="proxied", timeout=5)
        try:
            yield proxy, client
        finally:
            await client.close()


def namespace(name: str) -> Obj:
    return kinds.typed(NAMESPACES, {"metadata": {"name": name}})


async def test_proxy_passes_on_everything_while_nothing_is_wrong(place: Place) -> None:
    async with proxied(place.server) as (proxy, client):
        created = await client.create(NAMESPACES, namespace("passed-on"))
        listed = await client.list(NAMESPACES, label_selector="kubernetes.io/metadata.name in (passed-on, other)")
        assert [uid_of(item) for item in listed["items"]] == [uid_of(created)]
        watch = client.watch(NAMESPACES, resource_version=created["metadata"]["resourceVersion"])
        changed = asyncio.create_task(anext(watch))
        await client.patch(NAMESPACES, "passed-on", "", {"metadata": {"labels": {"a": "b"}}})
        kind, obj = await asyncio.wait_for(changed, 5)
        assert (kind, obj["metadata"]["labels"]["a"]) == ("MODIFIED", "b")
        await watch.aclose()
        await client.delete(NAMESPACES, "passed-on")
        with pytest.raises(NotFound):
            await client.get(NAMESPACES, "no such name")
        assert proxy.requests == 6


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("unauthorized", Unauthorized),
        ("forbidden", Forbidden),
        ("too-many-requests", TooManyRequests),
        ("server-error", ServerFault),
        ("unavailable", ServerFault),
        ("away", Unreachable),
    ],
)
async def test_requests_are_refused_until_the_fault_ends(place: Place, name: str, error: type[Exception]) -> None:
    async with proxied(place.server) as (proxy, client):
        proxy.apply([Fault(name)])
        for _ in range(3):
            with pytest.raises(error):
                await client.get(NAMESPACES, "default")
        proxy.apply([])
        await client.get(NAMESPACES, "default")


async def test_conflict_meets_writes_only(place: Place) -> None:
    async with proxied(place.server) as (proxy, client):
        proxy.apply([Fault("conflict")])
        await client.get(NAMESPACES, "default")
        with pytest.raises(Conflict):
            await client.patch(NAMESPACES, "default", "", {"metadata": {"labels": {"never": "written"}}})
        assert "never" not in (await client.get(NAMESPACES, "default"))["metadata"]["labels"]


@pytest.mark.parametrize(("name", "takes_effect"), [("cut-before", False), ("cut-after", True)])
async def test_writes_are_cut_before_or_after_their_effect(place: Place, name: str, takes_effect: bool) -> None:
    async with proxied(place.server) as (proxy, client):
        proxy.apply([Fault(name)])
        await client.get(NAMESPACES, "default")
        with pytest.raises(Unreachable):
            await client.create(NAMESPACES, namespace(name))
        proxy.apply([])
        existing = {item["metadata"]["name"] for item in (await client.list(NAMESPACES))["items"]}
        assert (name in existing) is takes_effect


async def test_the_first_creation_of_each_object_is_rejected(place: Place) -> None:
    async with proxied(place.server) as (proxy, client):
        proxy.apply([Fault("create-once")])
        for name in ("once-a", "once-b"):
            with pytest.raises(Forbidden):
                await client.create(NAMESPACES, namespace(name))
            await client.create(NAMESPACES, namespace(name))


async def test_slow_answers_come_late(place: Place) -> None:
    async with proxied(place.server) as (proxy, client):
        proxy.apply([Fault("slow", delay=BOUND)])
        started = time.monotonic()
        await client.get(NAMESPACES, "default")
        assert BOUND <= time.monotonic() - started < 4


async def test_a_share_of_the_requests_gets_through(place: Place) -> None:
    async with proxied(place.server) as (proxy, client):
        proxy.apply([Fault("forbidden", share=0.5)])
        refused = 0
        for _ in range(60):
            try:
                await client.get(NAMESPACES, "default")
            except Forbidden:
                refused += 1
        assert 10 < refused < 50


@pytest.mark.parametrize(
    ("name", "error"),
    [("watches-gone", Gone), ("watches-cut", Unreachable), ("unauthorized", None), ("away", Unreachable)],
)
async def test_open_watches_end(place: Place, name: str, error: type[Exception] | None) -> None:
    async with proxied(place.server) as (proxy, client):
        version = (await client.list(NAMESPACES))["metadata"]["resourceVersion"]
        opened = asyncio.Event()
        watch = client.watch(NAMESPACES, resource_version=version, on_open=opened.set)
        seen = asyncio.create_task(anext(watch, None))
        await asyncio.wait_for(opened.wait(), 5)
        proxy.apply([Fault(name)])
        outcome = await asyncio.wait_for(asyncio.gather(seen, return_exceptions=True), 5)
        assert type(outcome[0]) is (error or type(None))
        # While it lasts, new watches fare no better.
        with pytest.raises((ApiError, Unreachable)):
            await anext(client.watch(NAMESPACES, resource_version=version))


async def test_proxy_follows_what_is_recorded(sim: Simulation, faults: Faults, place: Place) -> None:
    async with proxied(place.server) as (proxy, client):
        following = asyncio.create_task(proxy.follow(sim.client))
        await faults.inject(Fault("slow", delay=0.01))
        outcome = await faults.inject(Fault("forbidden", share=0.9))
        assert outcome == "forbidden (90% of requests)"
        await faults.inject(Fault("forbidden"))
        assert [str(fault) for fault in await faults.active()] == ["slow (0.01 s)", "forbidden"]
        await until(lambda: refuses(client), "requests are not refused")
        await faults.clear()
        await until(lambda: serves(client), "requests are still refused")
        await ended(following)


async def refuses(client: ApiClient) -> bool:
    try:
        await client.get(NAMESPACES, "default")
    except Forbidden:
        return True
    return False


async def serves(client: ApiClient) -> bool:
    return not await refuses(client)
