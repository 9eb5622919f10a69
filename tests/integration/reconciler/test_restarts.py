"""What was known stays: a restart of the provider changes no status of a healthy cluster and emits no Event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from caphv.api.object import EVENTS
from tests.support.reconciler.case import (
    CLUSTER_LABEL,
    HARVESTER_CLUSTERS,
    HARVESTER_MACHINE_TEMPLATES,
    HARVESTER_MACHINES,
    Case,
    until,
)
from tests.support.reconciler.cases import opened
from tests.support.reconciler.conditions import is_false, is_ready
from tests.support.reconciler.environment import Environment
from tests.support.reconciler.idleness import until_quiet
from tests.support.reconciler.machines import machine_spec

pytestmark = pytest.mark.integration

CLUSTERS = 20
RESTARTS = 3
WRITES = ("create", "update", "patch", "delete", "deletecollection")


@pytest.fixture
def cases(environment: Environment, runner: asyncio.Runner) -> Iterator[list[Case]]:
    """Twenty clusters, each in namespaces of its own."""
    with ExitStack() as stack:
        yield [stack.enter_context(opened(environment, runner, prefix="fleet")) for _ in range(CLUSTERS)]


async def healthy(case: Case) -> None:
    """A cluster with a machine and a template, all converged."""
    await case.ready_cluster()
    await case.ready_machine("one")
    template = {"template": {"spec": machine_spec()}}
    await case.create(HARVESTER_MACHINE_TEMPLATES, "machines", template, labels={CLUSTER_LABEL: case.name})
    await case.until(HARVESTER_MACHINE_TEMPLATES, "machines", lambda obj: (obj.get("status") or {}).get("nodeInfo"))


async def versions(cases: list[Case]) -> dict[tuple[str, str, str], str]:
    """Resource versions of all objects that the provider writes."""
    found = {}
    for case in cases:
        for resource in (HARVESTER_CLUSTERS, HARVESTER_MACHINES, HARVESTER_MACHINE_TEMPLATES, EVENTS):
            for obj in (await case.management.list(resource, case.name))["items"]:
                metadata = obj["metadata"]
                found[case.name, resource.kind, metadata["name"]] = metadata["resourceVersion"]
    return found


def writes(environment: Environment, since: int, cases: list[Case]) -> list[str]:
    """What the provider wrote in the namespaces of these clusters; tests before this one may have left others."""
    own = {case.name for case in cases}
    return [
        f"{event['verb']} {event['requestURI']}"
        for event in environment.requests(environment.management, since)
        if event["verb"] in WRITES
        and event["stage"] == "ResponseComplete"
        and event.get("objectRef", {}).get("namespace") in own
    ]


async def reconciled(environment: Environment) -> bool:
    """Whether every queue is empty, and every cluster and machine was reconciled."""
    metrics = await environment.provider.metrics()
    done = sum(
        count for (name, _), count in metrics.items() if name == "caphv_machine_reconcile_duration_seconds_count"
    )
    return done >= CLUSTERS and all(count == 0 for (name, _), count in metrics.items() if name == "workqueue_depth")


async def failing(case: Case) -> None:
    """A cluster whose identity Secret names a server that is no Harvester."""
    await case.identity(case.environment.workload.kubeconfig())
    await case.write_secret("bootstrap", {"value": ""})
    await case.create_cluster()
    refused = is_false("HarvesterConnectionReady", "HarvesterConnectionFailed", "is not a Harvester")
    await case.until(HARVESTER_CLUSTERS, case.name, refused)


async def test_restarts_write_nothing_for_healthy_clusters(
    environment: Environment, cases: list[Case], case: Case
) -> None:
    await asyncio.gather(*(healthy(one) for one in cases), failing(case))
    await until_quiet(environment)
    before, since = await versions([*cases, case]), environment.audit_position(environment.management)
    logged = len(environment.provider.log)
    for _ in range(RESTARTS):
        await environment.provider.stop()
        await environment.provider.start()
        await until(lambda: reconciled(environment), lambda: "the provider does not reconcile all machines", 60)
        await asyncio.sleep(2)
    assert await versions([*cases, case]) == before
    assert writes(environment, since, [*cases, case]) == []
    for one in cases:
        assert is_ready(await one.get(HARVESTER_CLUSTERS, one.name))
    about = [environment.harvester.url, *(f"{one.name}/" for one in cases)]
    logged_since = [
        line for line in environment.provider.log[logged:].splitlines() if any(map(line.__contains__, about))
    ]
    assert [line for line in logged_since if json.loads(line)["level"] in ("warning", "error")] == []
