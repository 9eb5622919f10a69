"""What the provider has written is known to its next reconcile, although no watch has delivered it yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from caphv.api import resources
from caphv.api.names import ADOPT_ANNOTATION, PARK_ANNOTATION, PARK_SCHEDULE_ANNOTATION, PARKED_BY_SCHEDULE_ANNOTATION
from caphv.api.object import SERVICES, Obj
from tests.support.reconciler import parking
from tests.support.reconciler.infrastructure import RANGE, ready, with_load_balancer
from tests.support.reconciler.memorycase import MemoryCase, stall

pytestmark = pytest.mark.unit

Scenario = Callable[[pytest.MonkeyPatch], Awaitable[MemoryCase]]
OWN_POOL = {"loadBalancerConfig": {"ipamType": "pool", "ipPool": RANGE}}


def annotate(case: MemoryCase, obj: Obj, **metadata: Any) -> Obj:
    return case.management.put({**obj, "metadata": {**obj["metadata"], **metadata}})


async def created(monkeypatch: pytest.MonkeyPatch) -> MemoryCase:
    return MemoryCase(monkeypatch, **OWN_POOL)


async def of_the_go_provider(monkeypatch: pytest.MonkeyPatch) -> MemoryCase:
    """Its objects have no record of their owner."""
    case = await with_load_balancer(monkeypatch, **OWN_POOL)
    for resource in (SERVICES, resources.LOAD_BALANCERS, resources.IP_POOLS):
        (obj,) = case.harvester.stored(resource)
        case.harvester.put({**obj, "metadata": {**obj["metadata"], "annotations": {}}})
    return case


async def edited(monkeypatch: pytest.MonkeyPatch) -> MemoryCase:
    case = await with_load_balancer(monkeypatch)
    (balancer,) = case.harvester.stored(resources.LOAD_BALANCERS)
    case.harvester.put({**balancer, "spec": {**balancer["spec"], "listeners": []}})
    return case


async def with_adopt_annotation(monkeypatch: pytest.MonkeyPatch) -> MemoryCase:
    case = await ready(monkeypatch)
    annotate(case, case.obj, annotations={ADOPT_ANNOTATION: "true"})
    return case


async def parked(monkeypatch: pytest.MonkeyPatch) -> MemoryCase:
    case = await ready(monkeypatch)
    parking.add_vm(case, "w")
    annotate(case, case.cluster, annotations={PARK_ANNOTATION: "true"})
    return case


async def parked_by_schedule(monkeypatch: pytest.MonkeyPatch) -> MemoryCase:
    case = await ready(monkeypatch)
    annotate(case, case.cluster, annotations={PARK_SCHEDULE_ANNOTATION: "Mon-Sun"})
    return case


async def with_a_record_of_a_former_schedule(monkeypatch: pytest.MonkeyPatch) -> MemoryCase:
    case = await ready(monkeypatch)
    annotate(case, case.cluster, annotations={PARKED_BY_SCHEDULE_ANNOTATION: "true"})
    return case


async def resumed(monkeypatch: pytest.MonkeyPatch) -> MemoryCase:
    case = await ready(monkeypatch)
    parking.resume(case)
    return case


def stall_all(monkeypatch: pytest.MonkeyPatch, case: MemoryCase) -> None:
    """Have no watch deliver anything from now on."""
    stall(monkeypatch, case.management, resources.HARVESTER_CLUSTERS, resources.clusters("v1beta2"))
    stall(
        monkeypatch,
        case.harvester,
        SERVICES,
        resources.IP_POOLS,
        resources.LOAD_BALANCERS,
        resources.VIRTUAL_MACHINES,
    )


async def writes_of_reconcile(case: MemoryCase) -> set[str]:
    """Reconcile once; return what was written."""
    case.management.requests.clear()
    case.harvester.requests.clear()
    await case.reconcile()
    return {*case.management.requests, *case.harvester.requests}


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        (created, {"create IPPool team-demo-ippool", "create Service team-demo-lb"}),
        (of_the_go_provider, {f"patch {kind} team-demo-lb" for kind in ("Service", "LoadBalancer")}),
        (edited, {"patch LoadBalancer team-demo-lb"}),
        (with_adopt_annotation, {"patch HarvesterCluster demo"}),
        (parked, {"patch Cluster demo", "patch VirtualMachine w"}),
        (parked_by_schedule, {"patch Cluster demo"}),
        (with_a_record_of_a_former_schedule, {"patch Cluster demo"}),
        (resumed, {"patch Cluster demo"}),
    ],
)
async def test_nothing_is_written_twice(
    monkeypatch: pytest.MonkeyPatch, scenario: Scenario, expected: set[str]
) -> None:
    case = await scenario(monkeypatch)
    stall_all(monkeypatch, case)
    first = await writes_of_reconcile(case)
    assert first >= expected
    second = await writes_of_reconcile(case)
    assert not first & second


async def test_a_pool_that_a_former_process_has_created_is_not_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    former = await created(monkeypatch)
    await former.reconcile()
    case = await created(monkeypatch)
    stall_all(monkeypatch, case)
    case.harvester.put(*former.harvester.stored(resources.IP_POOLS))
    assert "create IPPool team-demo-ippool" in await writes_of_reconcile(case)
    assert await writes_of_reconcile(case) == set()
