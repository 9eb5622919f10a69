"""Harvester's API is unreachable, or rejects the credentials: that is reported, and what was ready stays so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest

from caphv.api.object import Obj, Resource
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler.memory.periods import GRACE_SECONDS
from sandbox.harvester.faultproxy import FaultProxy
from sandbox.harvester.faults import Fault
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true, is_unknown
from tests.support.reconciler.environment import Environment

pytestmark = pytest.mark.integration

CONNECTION, VM = "HarvesterConnectionReady", "VMProvisioningReady"
COUNTS = "last known to be ready: 1 of 1 control plane machines, 1 of 1 workers"


@dataclass
class Readiness:
    """What watches showed of the readiness of a cluster and its machines, each value once."""

    seen: set[tuple[str, object, str]] = field(default_factory=set)

    def add(self, obj: Obj) -> None:
        """Record one version of an object."""
        status = obj.get("status") or {}
        for kind in ("Ready", "InfrastructureReady"):
            self.seen.add((kind, status.get("ready"), condition_of(obj, kind).get("status")))


@contextlib.asynccontextmanager
async def watched(case: Case) -> AsyncIterator[Readiness]:
    """Record every version of the cluster and its machines inside the block."""
    readiness = Readiness()

    async def follow(resource: Resource) -> None:
        version = (await case.management.list(resource, case.name))["metadata"]["resourceVersion"]
        async for _, obj in case.management.watch(resource, case.name, resource_version=version):
            readiness.add(obj)

    tasks = [asyncio.create_task(follow(resource)) for resource in (HARVESTER_CLUSTERS, HARVESTER_MACHINES)]
    try:
        yield readiness
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results


@pytest.fixture
def proxy(environment: Environment, runner: asyncio.Runner) -> Iterator[FaultProxy]:
    """A way to Harvester that can be troubled; it outlives the case, which needs it to be deleted."""
    stack = contextlib.AsyncExitStack()
    server = environment.harvester
    access = Kubeconfig(server=server.url, ca=server.ca.certificate.decode())
    folder = server.folder / server.name
    proxy = FaultProxy(access, certificate=folder / "tls.crt", key=folder / "tls.key")
    runner.run(stack.enter_async_context(proxy.serving()))
    yield proxy
    runner.run(stack.aclose())


async def create_cluster(proxy: FaultProxy, case: Case) -> None:
    """Create a cluster whose identity leads to Harvester by the proxy, and wait until it is ready."""
    kubeconfig = case.environment.identity()
    kubeconfig["clusters"][0]["cluster"]["server"] = proxy.url
    await case.identity(kubeconfig)
    await case.write_secret("bootstrap", {"value": "#cloud-config\n{}\n"})
    await case.create_cluster()
    await case.ready()


@pytest.mark.parametrize(
    ("fault", "reason"), [("away", "HarvesterUnreachable"), ("unauthorized", "HarvesterAuthenticationFailed")]
)
async def test_ready_machines_stay_ready_in_an_outage(proxy: FaultProxy, case: Case, fault: str, reason: str) -> None:
    await create_cluster(proxy, case)
    await case.ready_machine("control-plane", control_plane=True)
    await case.ready_machine("worker")
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
    provider = case.environment.provider

    async with watched(case) as readiness:
        proxy.apply([Fault(fault)])
        says = is_false(CONNECTION, reason, COUNTS if fault == "away" else "401")
        await case.until(HARVESTER_CLUSTERS, case.name, says, timeout=2 * GRACE_SECONDS)
        for name in ("control-plane", "worker"):
            await case.until(HARVESTER_MACHINES, name, is_unknown(VM, reason), timeout=2 * GRACE_SECONDS)
        assert await provider.value("caphv_cluster_ready", cluster=f"{case.name}/{case.name}") == 1
        own = {"harvester": proxy.url, "identity": f"{case.name}/identity"}
        reachable = await provider.value("caphv_harvester_reachable", **own)
        assert reachable == (0 if fault == "away" else 1)
        if fault == "away":
            await provider.stop()
            await provider.start()
            await asyncio.sleep(GRACE_SECONDS + 5)
            assert says(await case.get(HARVESTER_CLUSTERS, case.name))
        else:
            assert await provider.value("caphv_identity_accepted", identity=f"{case.name}/identity") == 0

        proxy.apply([])
        await case.until(HARVESTER_CLUSTERS, case.name, is_true(CONNECTION))
        for name in ("control-plane", "worker"):
            await case.until(HARVESTER_MACHINES, name, is_true(VM))
    assert readiness.seen == {("Ready", True, "True"), ("InfrastructureReady", True, "True")}


async def test_outage_after_a_rejection_is_reported_instead_of_it(proxy: FaultProxy, case: Case) -> None:
    await create_cluster(proxy, case)
    proxy.apply([Fault("unauthorized")])
    rejected = is_false(CONNECTION, "HarvesterAuthenticationFailed")
    await case.until(HARVESTER_CLUSTERS, case.name, rejected)

    proxy.apply([Fault("away")])
    away = is_false(CONNECTION, "HarvesterUnreachable")
    await case.until(HARVESTER_CLUSTERS, case.name, away, timeout=2 * GRACE_SECONDS)
    proxy.apply([])
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(CONNECTION))
