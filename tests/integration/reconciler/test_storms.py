"""Harvester refuses, is slow or away: no storm of requests, conditions say so, and all continues when it is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest

from caphv.api.object import Obj, uid_of
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.harvester import kinds
from sandbox.harvester.faultproxy import FaultProxy
from sandbox.harvester.faults import Fault
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready
from tests.support.reconciler.environment import Environment

pytestmark = pytest.mark.integration

STORM_SECONDS = 3.0
SETTLED = 5.0
# Other tests have the machine at the same time; without an event, all would wait for minutes.
CONTINUES = 10.0
UNDISTURBED = 15.0
# A key that has failed for STORM_SECONDS comes again within twice of that; a VM that was refused, within 15 s.
WELL_AGAIN = 20.0

# What a storm may cost the API server: requests of one cluster with two machines, in STORM_SECONDS.
MOST_REQUESTS = 90
CONNECTION = "HarvesterConnectionReady"


@pytest.fixture
def proxy(environment: Environment, runner: asyncio.Runner) -> Iterator[FaultProxy]:
    """A way to Harvester that can be troubled; it outlives the case, which needs it to be deleted."""
    stack = AsyncExitStack()
    server = environment.harvester
    access = Kubeconfig(server=server.url, ca=server.ca.certificate.decode())
    own = server.folder / server.name
    proxy = FaultProxy(access, certificate=own / "tls.crt", key=own / "tls.key")
    runner.run(stack.enter_async_context(proxy.serving()))
    yield proxy
    runner.run(stack.aclose())


async def ready_cluster(case: Case, proxy: FaultProxy) -> None:
    """Create a cluster whose Harvester is behind the proxy, and wait until machines can come."""
    await new_cluster(case, proxy)
    await case.ready()


async def new_cluster(case: Case, proxy: FaultProxy) -> None:
    """Create a cluster whose Harvester is behind the proxy."""
    kubeconfig = case.environment.identity()
    kubeconfig["clusters"][0]["cluster"]["server"] = proxy.url
    await case.identity(kubeconfig)
    await case.write_secret("bootstrap", {"value": "#cloud-config\n{}\n"})
    await case.create_cluster()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("away", "HarvesterUnreachable"),
        ("unauthorized", "HarvesterAuthenticationFailed"),
        ("watches-gone", ""),
        ("forbidden", ""),
        ("conflict", ""),
        ("too-many-requests", ""),
        ("slow", ""),
    ],
)
async def test_all_continues_after_a_storm(proxy: FaultProxy, case: Case, name: str, says: str) -> None:
    await ready_cluster(case, proxy)
    await case.ready_machine("old")
    before = proxy.requests
    with disturbed(proxy, Fault(name, delay=1.0)):
        await case.create_machine("new")
        await case.ask_deletion(HARVESTER_MACHINES, "old")
        if says:
            await case.until(HARVESTER_CLUSTERS, case.name, is_false(CONNECTION, says))
        await asyncio.sleep(STORM_SECONDS)
        assert proxy.requests - before < MOST_REQUESTS
    over = time.monotonic()
    await case.until(HARVESTER_MACHINES, "new", is_ready)
    await case.until_gone(HARVESTER_MACHINES, "old")
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
    assert time.monotonic() - over < WELL_AGAIN
    assert await case.names(kinds.VIRTUAL_MACHINES) == ["new"]


async def test_who_waits_for_what_is_refused_says_so(proxy: FaultProxy, case: Case) -> None:
    await ready_cluster(case, proxy)
    await case.ready_machine("old")
    with disturbed(proxy, Fault("forbidden")):
        await case.create_machine("new")
        await case.ask_deletion(HARVESTER_MACHINES, "old")
        for name in ("new", "old"):
            refused = is_false(
                "VMProvisioningReady", "VMProvisioningFailed", "refused: injected by the sandbox's fault proxy: 403"
            )
            await case.until(HARVESTER_MACHINES, name, refused)
    await case.until_gone(HARVESTER_MACHINES, "old")
    await case.until(HARVESTER_MACHINES, "new", is_ready)


async def test_rights_that_a_new_cluster_lacks_are_reported(proxy: FaultProxy, case: Case) -> None:
    with disturbed(proxy, Fault("forbidden")):
        await new_cluster(case, proxy)
        refused = is_false(
            CONNECTION, "HarvesterConnectionFailed", "refuses: injected by the sandbox's fault proxy: 403"
        )
        await case.until(HARVESTER_CLUSTERS, case.name, refused)
    await case.ready()


@pytest.mark.parametrize(
    "name",
    [
        "conflict",
        "watches-gone",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("too-many-requests", "slow")),
    ],
)
async def test_work_is_done_during_a_storm_that_leaves_gaps(proxy: FaultProxy, case: Case, name: str) -> None:
    with disturbed(proxy, Fault(name, share=0.3, delay=0.3)):
        await ready_cluster(case, proxy)
        await case.ready_machine("one")
        await case.delete_machine("one")
    assert await case.names(kinds.VIRTUAL_MACHINES) == []


@pytest.mark.parametrize(
    ("machines", "seconds"),
    [
        (20, 15),
        pytest.param(50, 60, marks=pytest.mark.long),
        pytest.param(200, 600, marks=[pytest.mark.long, pytest.mark.timeout(1200)]),
    ],
)
async def test_outage_is_quiet_and_reported_and_nothing_to_others(
    proxy: FaultProxy, case: Case, other: Case, machines: int, seconds: int
) -> None:
    await ready_cluster(case, proxy)
    await other.ready_cluster()
    names = [f"m-{number}" for number in range(machines)]
    await asyncio.gather(*map(case.create_machine, names))
    for name in names:
        await case.until(HARVESTER_MACHINES, name, is_ready, timeout=120)
    with disturbed(proxy, Fault("away")):
        await asyncio.sleep(SETTLED)
        position, before = case.environment.audit_position(case.environment.management), proxy.requests
        started = time.monotonic()
        await case.create_machine("late")
        await case.until(HARVESTER_CLUSTERS, case.name, is_false(CONNECTION, "HarvesterUnreachable", proxy.url))
        await case.until(HARVESTER_MACHINES, "late", is_in_doubt)
        await case.ask_deletion(HARVESTER_MACHINES, names[0])
        undisturbed = time.monotonic()
        await other.ready_machine("one")
        await other.delete_machine("one")
        assert time.monotonic() - undisturbed < UNDISTURBED
        await asyncio.sleep(seconds - (time.monotonic() - started))
        elapsed = time.monotonic() - started
        assert (proxy.requests - before) / elapsed < 2
        # Each machine reports the outage once, after the grace period: in a short outage that outweighs all else.
        assert (requests_of(case, position) - machines) / elapsed < 2
    over = time.monotonic()
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
    await case.vm("late")
    await case.until_gone(kinds.VIRTUAL_MACHINES, names[0])
    assert time.monotonic() - over < CONTINUES
    await case.until(HARVESTER_MACHINES, "late", is_ready)


@contextmanager
def disturbed(proxy: FaultProxy, fault: Fault) -> Iterator[None]:
    """Let requests meet a fault inside the block."""
    proxy.apply([fault])
    try:
        yield
    finally:
        proxy.apply([])


def is_in_doubt(machine: Obj) -> bool:
    """Whether a machine says that Harvester cannot be asked about it."""
    ready = condition_of(machine, "Ready")
    return (ready.get("status"), ready.get("reason")) == ("Unknown", "HarvesterUnreachable")


def requests_of(case: Case, position: int) -> int:
    """Requests of the provider to the management cluster about a case since an audit position."""
    events = case.environment.requests(case.environment.management, position)
    return sum(f"/namespaces/{case.name}/" in event["requestURI"] for event in events)


async def test_a_full_quota_is_one_message_and_no_storm_of_creations(case: Case) -> None:
    names = [f"full-{number}" for number in range(6)]
    pool = await case.pool("pool", 1, 9)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.quota("requests.storage", "1Gi")
    await case.create_machine("first")
    refused = is_false("VMProvisioningReady", "QuotaExhausted", "is used up: raise it")
    first = await case.until(HARVESTER_MACHINES, "first", refused)
    since = case.environment.audit_position(case.environment.harvester)
    for name in names:
        await case.create_machine(name)
    waiting = [await case.until(HARVESTER_MACHINES, name, refused) for name in names]
    await asyncio.sleep(STORM_SECONDS)
    messages = {condition_of(obj, "VMProvisioningReady")["message"] for obj in (first, *waiting)}
    assert len(messages) == 1
    assert len(await case.writes(since)) <= 2, await case.writes(since)
    assert list((await case.allocated(pool)).values()) == [f"{case.name}/first"]
    await case.raise_quota()
    await asyncio.gather(
        *(case.until(HARVESTER_MACHINES, name, is_ready, timeout=2 * WELL_AGAIN) for name in ("first", *names))
    )


def _is_halted(vm: Obj) -> bool:
    return bool(vm["spec"]["runStrategy"] == "Halted")


async def test_new_vms_that_a_quota_halted_start_once_it_was_raised(case: Case) -> None:
    """Harvester creates a VM over the quota of CPU, halts it, and never starts it again."""
    names = [f"halted-{number}" for number in range(3)]
    await case.ready_cluster()
    await case.ready_machine("before")
    await case.quota("limits.cpu", "3")
    for name in names:
        await case.create_machine(name)
    refused = is_false("VMProvisioningReady", "QuotaExhausted", "is used up: raise it")
    waiting = [await case.until(HARVESTER_MACHINES, name, refused) for name in names]
    # The quota refuses the instance before it halts the VM.
    halted_now = [case.until(kinds.VIRTUAL_MACHINES, name, _is_halted) for name in names]
    vms = await asyncio.gather(*halted_now)
    since = case.environment.audit_position(case.environment.harvester)
    await asyncio.sleep(STORM_SECONDS)
    assert len({condition_of(obj, "VMProvisioningReady")["message"] for obj in waiting}) == 1
    assert len(await case.writes(since)) <= 2, await case.writes(since)
    assert is_ready(await case.get(HARVESTER_MACHINES, "before"))
    await case.raise_quota()
    await asyncio.gather(*(case.until(HARVESTER_MACHINES, name, is_ready, timeout=2 * WELL_AGAIN) for name in names))
    for name, halted in zip(names, vms, strict=True):
        started = await case.vm(name)
        assert (uid_of(started), started["spec"]["runStrategy"]) == (uid_of(halted), "Always")
