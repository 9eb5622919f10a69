"""A HarvesterCluster with servers in memory, at the steps of its life."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caphv.api import resources
from caphv.api.conditions import rfc3339
from caphv.api.object import Obj
from tests.support.ippools import pool
from tests.support.reconciler.memorycase import MemoryCase

ADDRESS = "10.0.0.10"
RANGE = {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.14", "gateway": "10.0.0.1"}
BY_POOL = {"ipamType": "pool", "ipPoolRef": "balancers"}


def existing_pool(name: str = "balancers") -> Obj:
    return {"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool", **pool(name)}


async def ready(monkeypatch: pytest.MonkeyPatch, address: str = ADDRESS, **spec: Any) -> MemoryCase:
    """A cluster whose infrastructure is ready for machines."""
    case = MemoryCase(monkeypatch, **spec)
    if spec.get("loadBalancerConfig") == BY_POOL:
        case.harvester.put(existing_pool())
    await case.reconcile()
    case.assign(address)
    await case.reconcile()
    assert case.condition("Ready")[0] == "True"
    return case


async def with_load_balancer(monkeypatch: pytest.MonkeyPatch, **spec: Any) -> MemoryCase:
    """A ready cluster whose LoadBalancer has an address."""
    case = await ready(monkeypatch, **spec)
    case.add_machine("cp-0")
    await case.reconcile()
    give_address(case)
    await case.reconcile()
    return case


def give_address(case: MemoryCase) -> None:
    (balancer,) = case.harvester.stored(resources.LOAD_BALANCERS)
    source = balancer["spec"].get("ipPool")
    allocated = {"ip": ADDRESS if source else "0.0.0.0", **({"ipPool": source} if source else {})}
    conditions = [{"type": "Ready", "status": "True"}]
    case.harvester.put(
        {**balancer, "status": {"address": ADDRESS, "allocatedAddress": allocated, "conditions": conditions}}
    )


async def delete(case: MemoryCase, times: int = 6, seconds_ago: float = 0.0) -> None:
    """Delete the HarvesterCluster some time ago, and reconcile until nothing is to be done."""
    await case.management.delete(resources.HARVESTER_CLUSTERS, "demo", "team")
    if obj := case.management.find("HarvesterCluster", "demo", "team"):
        deleted_at = rfc3339(datetime.now(UTC) - timedelta(seconds=seconds_ago))
        case.management.put({**obj, "metadata": {**obj["metadata"], "deletionTimestamp": deleted_at}})
    for _ in range(times):
        if case.management.find("HarvesterCluster", "demo", "team"):
            await case.reconcile()
