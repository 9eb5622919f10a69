"""The provider is stopped after each of its writes, and loses its lease with a write under way: the end is the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Sequence

import pytest

from caphv.api.names import UPDATE_IN_PROGRESS_ANNOTATION, VOLUME_CLAIM_TEMPLATES_ANNOTATION
from caphv.api.object import LEASES, NODES, Obj, annotations_of, being_deleted, uid_of
from caphv.runtime.errors import ApiError, Conflict
from sandbox.harvester import kinds
from sandbox.harvester.faults import Fault, Faults
from tests.support.e2e import SHORT_AND_WHOLE
from tests.support.reconciler import inprocess
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, UNINITIALIZED, Case
from tests.support.reconciler.conditions import condition_of, is_ready
from tests.support.reconciler.environment import Environment
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("runner", "alone")]

SIDE_BY_SIDE = 6
NEVER = 0
# In the short form, a life has a stop after each so many writes; in the whole form, one stop only.
APART = 10


@pytest.fixture(autouse=True)
def _hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    inprocess.install(monkeypatch)


# Stopped


@SHORT_AND_WHOLE
async def test_stop_after_any_write_changes_nothing_in_the_end(environment: Environment, whole: bool) -> None:
    undisturbed = inprocess.StopAtWrite(NEVER)
    await live(environment, [undisturbed])
    writes = undisturbed.writes
    assert writes > 20
    apart = writes if whole else APART
    lives = [
        [inprocess.StopAtWrite(first), *(inprocess.StopAtWrite(apart) for _ in range(first + apart, writes + 1, apart))]
        for first in range(1, apart + 1)
    ]
    waiting = iter(lives)

    async def one_after_the_other() -> None:
        for hooks in waiting:
            await live(environment, hooks)

    await asyncio.gather(*(one_after_the_other() for _ in range(SIDE_BY_SIDE)))
    # How often a life writes varies by a few: what comes together goes into one write.
    missed = 4 if whole else len(lives)
    assert sum(hook.stopped.is_set() for hooks in lives for hook in hooks) >= writes - missed


async def live(environment: Environment, hooks: Sequence[inprocess.StopAtWrite]) -> None:
    """One life of a cluster, with providers that the hooks may stop."""
    since = environment.audit_position(environment.harvester)

    def stops() -> str:
        return f"stopped at writes {[hook.writes for hook in hooks]}"

    async with inprocess.opened(environment) as case, inprocess.running(case, *hooks):
        # Nodes of all cases are in one workload cluster, and are named as the machines.
        first, second = f"{case.name}-first", f"{case.name}-second"
        try:
            await create(case, first)
            await scale_and_migrate(case, first, second)
            await grow(case, first)
            left = await case.remove()
        except AssertionError as error:
            raise AssertionError(f"{stops()}: {error}") from error
        assert left == [], stops()
        assert created(case, since) == Counter({first: 1, second: 1}), stops()


async def create(case: Case, name: str) -> None:
    front, pool = await case.pool("front", 1, 3), await case.pool("pool", 11, 14)
    balancer = {"ipamType": "pool", "ipPoolRef": front}
    await case.ready_cluster(loadBalancerConfig=balancer, vmNetworkConfig=case.vm_network(pool))
    await case.connect_workload()
    await case.create_machine(name, control_plane=True, cpu=2, cpuMax=4)
    await case.vm(name, lambda vm: (vm.get("status") or {}).get("ready"))
    await case.register_node(name)
    machine = await case.until(HARVESTER_MACHINES, name, is_ready)
    provider_id = f"harvester://{uid_of(await case.vm(name))}"
    assert machine["spec"]["providerID"] == provider_id
    await case.until(
        NODES,
        name,
        lambda node: (
            node["spec"].get("providerID") == provider_id and UNINITIALIZED not in node["spec"].get("taints", ())
        ),
        client=case.workload,
    )


async def scale_and_migrate(case: Case, first: str, second: str) -> None:
    vm = await case.vm(first)
    await case.ready_machine(second)
    await Faults(case.harvester).inject(Fault("migration", f"{case.target}/{first}"))
    host = (await case.get(kinds.INSTANCES, first))["status"]["nodeName"]
    zone = f"zone-{host.rpartition('-')[2]}"
    await case.until(HARVESTER_MACHINES, first, lambda machine: machine["status"].get("failureDomain") == zone)
    assert await held(case, "front") == [f"{case.target}/{case.balancer}"]
    assert await held(case, "pool") == [f"{case.name}/{first}", f"{case.name}/{second}"]
    await case.delete_machine(second)
    assert await held(case, "pool") == [f"{case.name}/{first}"]
    assert await case.names(kinds.VIRTUAL_MACHINES) == [first]
    assert uid_of(await case.vm(first)) == uid_of(vm)
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def grow(case: Case, name: str) -> None:
    """Cluster API updates the machine in place."""
    before = await case.get(kinds.INSTANCES, name)
    (disk,) = (await case.get(HARVESTER_MACHINES, name))["spec"]["volumes"]
    templates = json.loads(annotations_of(await case.vm(name))[VOLUME_CLAIM_TEMPLATES_ANNOTATION])
    empty = {"volumeType": "storageClass", "storageClass": templates[0]["spec"]["storageClassName"]}
    empty |= {"volumeSize": "10Gi", "accessMode": "ReadWriteMany"}
    volumes = [{**disk, "volumeSize": "60Gi"}, empty]
    metadata = {"annotations": {UPDATE_IN_PROGRESS_ANNOTATION: ""}}
    progress = {"metadata": metadata, "spec": {"cpu": 4, "volumes": volumes}}
    await case.patch(HARVESTER_MACHINES, name, progress)

    def has_grown(machine: Obj) -> bool:
        condition = condition_of(machine, "VMUpToDate")
        return condition["status"] == "True" and "has 4 CPUs" in condition.get("message", "")

    await case.until(HARVESTER_MACHINES, name, has_grown)
    instance = await case.get(kinds.INSTANCES, name)
    assert instance["status"]["currentCPUTopology"]["sockets"] == 4
    capacities = [
        state["persistentVolumeClaimInfo"]["capacity"]["storage"]
        for state in instance["status"]["volumeStatus"]
        if "persistentVolumeClaimInfo" in state
    ]
    assert capacities == ["60Gi", "10Gi"]
    assert uid_of(instance) == uid_of(before)


async def held(case: Case, suffix: str) -> list[str]:
    """Who holds the addresses of a pool; its count of free ones must agree."""
    pool = await case.harvester.get(kinds.IP_POOLS, f"{case.name}-{suffix}")
    status = pool["status"]
    allocated = status.get("allocated") or {}
    assert status["available"] == status["total"] - len(allocated)
    return sorted(allocated.values())


def created(case: Case, since: int) -> Counter[str]:
    """VMs that were made for a case since a position in the audit log, by name."""
    return Counter(
        event["objectRef"]["name"]
        for event in case.environment.requests(case.environment.harvester, since)
        if event["verb"] == "create"
        and event["objectRef"]["resource"] == "virtualmachines"
        and event["objectRef"]["namespace"] == case.target
        and event["responseStatus"]["code"] == 201
    )


# Two replicas


@pytest.mark.parametrize(
    ("method", "part", "deleting"),
    [
        ("PATCH", "/ippools/", False),
        ("POST", "/virtualmachines", False),
        ("DELETE", "/virtualmachines/", True),
        ("PATCH", "/ippools/", True),
        ("PATCH", "/harvestermachines/one/status", False),
    ],
    ids=["reservation", "creation", "deletion", "release", "status"],
)
async def test_write_that_outlives_the_lease_does_no_harm(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, method: str, part: str, deleting: bool
) -> None:
    since = environment.audit_position(environment.harvester)
    async with inprocess.opened(environment) as case:
        monkeypatch.setenv("POD_NAMESPACE", case.name)
        hook = inprocess.Delay(method, part)
        first = asyncio.create_task(inprocess.run(case, None if deleting else hook, leader_elect=True))
        pool = await case.pool("pool", 1, 4)
        await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
        if deleting:
            await case.ready_machine("one")
            await inprocess.cancelled(first)
            first = asyncio.create_task(inprocess.run(case, hook, leader_elect=True))
            await case.ask_deletion(HARVESTER_MACHINES, "one")
        else:
            await case.create_machine("one")
        await asyncio.wait_for(hook.under_way.wait(), PATIENCE)
        second = asyncio.create_task(inprocess.run(case, None, leader_elect=True))
        await steal_lease(case)
        # The first one stops by itself; its write is still under way.
        await asyncio.wait_for(asyncio.wait([first]), PATIENCE)
        first.result()
        if deleting:
            await case.until_gone(HARVESTER_MACHINES, "one")
            # By now the address belongs to another machine.
            await case.ready_machine("two")
        else:
            await case.until(HARVESTER_MACHINES, "one", is_ready)
        name = "two" if deleting else "one"
        vm, allocated = await case.vm(name), await case.allocated(pool)
        assert list(allocated.values()) == [f"{case.name}/{name}"]
        late_method, path, options = hook.late
        if path.endswith("/status"):
            with pytest.raises(Conflict):
                await case.management.request(late_method, path, **options)
            assert is_ready(await case.get(HARVESTER_MACHINES, name))
        else:
            with contextlib.suppress(ApiError):
                await case.harvester.request(late_method, path, **options)
        assert uid_of(await case.vm(name, is_kept)) == uid_of(vm)
        assert await case.allocated(pool) == allocated
        assert await case.names(kinds.VIRTUAL_MACHINES) == [name]
        assert created(case, since)[name] == 1
        assert await case.remove() == []
        await inprocess.cancelled(second)


async def steal_lease(case: Case) -> None:
    """Let a stranger hold the lease for a second, as after a pause of the process that was longer than the lease."""
    (lease,) = (await case.management.list(LEASES, case.name))["items"]
    spec = {"holderIdentity": "stranger", "leaseDurationSeconds": 1}
    await case.management.patch(LEASES, lease["metadata"]["name"], case.name, {"spec": spec})


def is_kept(vm: Obj) -> bool:
    return not being_deleted(vm)
