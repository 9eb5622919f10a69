"""Identity Secrets outlive what needs them: a deleted namespace ends, and nothing is left on Harvester."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import pytest

from caphv.api.names import identity_finalizer
from caphv.api.object import NAMESPACES, SECRETS, SERVICES, Obj
from caphv.runtime.errors import NotFound
from sandbox.processes.garbage import GarbageCollector
from tests.support.reconciler.case import CLUSTERS, HARVESTER_CLUSTERS, MACHINES, Case
from tests.support.reconciler.conditions import is_ready
from tests.support.waiting import until

pytestmark = pytest.mark.integration

IN_USE = identity_finalizer()


@contextlib.asynccontextmanager
async def garbage_collected(case: Case) -> AsyncIterator[None]:
    """Deleted namespaces end on the management cluster, as with kube-controller-manager."""
    work = asyncio.create_task(GarbageCollector(case.management).run())
    try:
        yield
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def identity_of(case: Case) -> Obj:
    return await case.management.get(SECRETS, "identity", case.name)


async def finalizers_of(case: Case) -> list[str]:
    return (await identity_of(case))["metadata"].get("finalizers") or []


async def is_deleted(case: Case) -> bool:
    try:
        await identity_of(case)
    except NotFound:
        return True
    return False


async def test_deleted_namespace_ends_and_leaves_nothing_on_harvester(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(
        loadBalancerConfig={"ipamType": "pool", "ipPoolRef": pool}, vmNetworkConfig=case.vm_network(pool)
    )
    await case.ready_machine("one", control_plane=True)
    assert await finalizers_of(case) == [IN_USE]
    async with garbage_collected(case):
        await case.management.delete(NAMESPACES, case.name)
        await case.until_gone(HARVESTER_CLUSTERS, case.name)
        assert await case.leftovers() == []
        # The part of the Cluster API core.
        for resource, name in ((MACHINES, "one"), (CLUSTERS, case.name)):
            await case.patch(resource, name, {"metadata": {"finalizers": None}})

        async def ended() -> bool:
            try:
                await case.management.get(NAMESPACES, case.name)
            except NotFound:
                return True
            return False

        await until(ended, "the namespace ends")


async def test_deleted_and_recreated_secret_is_a_rotation(case: Case) -> None:
    await case.ready_cluster()
    before = await identity_of(case)
    await case.management.delete(SECRETS, "identity", case.name)
    await until(lambda: is_deleted(case), "the deletion ends although a cluster uses the Secret")
    await case.identity()
    assert (await identity_of(case))["metadata"]["uid"] != before["metadata"]["uid"]
    await until(lambda: _protected(case), "the new Secret has the finalizer")
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def test_deleted_secret_stays_until_the_deletion_of_its_cluster_ends(case: Case) -> None:
    await case.ready_cluster()
    hold = "example.com/hold"
    # Something on Harvester delays the deletion of the cluster.
    await case.patch(SERVICES, case.balancer, {"metadata": {"finalizers": [hold]}})
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    await case.until(SERVICES, case.balancer, lambda service: "deletionTimestamp" in service["metadata"])
    await case.management.delete(SECRETS, "identity", case.name)
    assert await finalizers_of(case) == [IN_USE]
    await case.patch(SERVICES, case.balancer, {"metadata": {"finalizers": None}})
    await case.until_gone(HARVESTER_CLUSTERS, case.name)
    await until(lambda: is_deleted(case), "the Secret is released with its last cluster")


async def test_finalizer_is_removed_from_a_secret_that_is_no_longer_used(case: Case) -> None:
    await case.ready_cluster()
    await case.identity(name="another")
    reference = {"name": "another", "namespace": case.name}
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"identitySecret": reference}})

    async def moved() -> bool:
        another = await case.management.get(SECRETS, "another", case.name)
        return another["metadata"].get("finalizers") == [IN_USE] and await finalizers_of(case) == []

    await until(moved, "the finalizer follows the reference")


async def _protected(case: Case) -> bool:
    return await finalizers_of(case) == [IN_USE]


async def test_command_removes_the_finalizers_of_all_deployments_and_no_others(case: Case) -> None:
    await case.identity(name="left")
    finalizers = [identity_finalizer("blue"), "example.com/keep"]
    await case.management.patch(SECRETS, "left", case.name, {"metadata": {"finalizers": finalizers}})
    kubeconfig = str(case.environment.folder / "management.kubeconfig")
    command = ["identity", "remove-finalizers", "-n", case.name, "--kubeconfig", kubeconfig]
    for options, left in (["--dry-run"], finalizers), (["--yes"], ["example.com/keep"]):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "caphv", *command, *options, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        assert f"Secret {case.name}/left" in output.decode()
        found = await case.management.get(SECRETS, "left", case.name)
        assert found["metadata"]["finalizers"] == left
    await case.management.patch(SECRETS, "left", case.name, {"metadata": {"finalizers": None}})
