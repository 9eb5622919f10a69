"""The provider as a process: restarts, idleness, its share of the objects, metrics, and secrets that it never shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from caphv.api.object import EVENTS, NODES, uid_of
from sandbox.harvester import kinds
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, UNINITIALIZED, Case
from tests.support.reconciler.conditions import is_false, is_ready, is_true
from tests.support.reconciler.environment import IDENTITY_TOKEN, Environment, Provider
from tests.support.reconciler.idleness import made, positions, until_quiet
from tests.support.waiting import until

pytestmark = pytest.mark.integration

IDLE_SECONDS = 10.0
Metrics = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.get((name, frozenset(labels.items())))


# Restart


async def test_restart_midway_continues_with_the_same_vm_and_address(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.create_machine("one")
    vm = await case.vm("one")
    await case.environment.provider.stop()
    held = await case.allocated(pool)
    # As if it had been killed before it could write down what it had done.
    await case.management.patch(
        HARVESTER_MACHINES,
        "one",
        case.name,
        {"status": {"allocatedIPAddress": None, "allocatedPoolRef": None, "conditions": [], "ready": False}},
        subresource="status",
    )
    await case.environment.provider.start()
    machine = await case.until(HARVESTER_MACHINES, "one", lambda obj: is_ready(obj) and is_true("VMIPAllocated")(obj))
    assert uid_of(await case.vm("one")) == uid_of(vm)
    assert machine["spec"]["providerID"] == f"harvester://{uid_of(vm)}"
    assert await case.allocated(pool) == held == {machine["status"]["allocatedIPAddress"]: f"{case.name}/one"}
    assert machine["status"]["allocatedPoolRef"] == pool


async def test_restart_between_reservation_and_vm_uses_the_reserved_address(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    # With this data, the address is reserved and no VM can be created.
    await case.write_secret("unusable", {"value": "#!/bin/sh\n"})
    await case.create_machine("one", bootstrap="unusable")
    await case.until(
        HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", "VMProvisioningFailed", "a shell script")
    )
    held = await case.allocated(pool)
    await case.environment.provider.stop()
    await case.write_secret("unusable", {"value": "#cloud-config\n"})
    await case.environment.provider.start()
    machine = await case.until(HARVESTER_MACHINES, "one", is_ready)
    assert await case.allocated(pool) == held == {machine["status"]["allocatedIPAddress"]: f"{case.name}/one"}


async def test_what_happened_while_it_was_unreachable_is_seen(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("lost")
    await case.ready_machine("unwanted")
    await case.environment.provider.stop()
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "lost")
    await case.until_gone(kinds.VIRTUAL_MACHINES, "lost")
    await case.ask_deletion(HARVESTER_MACHINES, "unwanted")
    await case.environment.provider.start()
    await case.until(HARVESTER_MACHINES, "lost", is_false("VMProvisioningReady", "MachineNotFound"))
    await case.until_gone(HARVESTER_MACHINES, "unwanted")
    assert await case.names(kinds.VIRTUAL_MACHINES) == []


# Idleness


async def test_converged_objects_cost_no_requests(case: Case) -> None:
    pool = await case.pool("pool", 1, 5)
    balancer = {"ipamType": "pool", "ipPoolRef": "load-balancers"}
    await case.ready_cluster(loadBalancerConfig=balancer, vmNetworkConfig=case.vm_network(pool))
    await case.connect_workload()
    names = [f"{case.name}-{number}" for number in range(3)]
    for name in names:
        await case.ready_machine(name, control_plane=name == names[0])
        await case.register_node(name)
    for name in names:
        await case.until(
            NODES, name, lambda node: UNINITIALIZED not in node["spec"].get("taints", []), client=case.workload
        )
    await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: is_ready(obj) and is_true("InitMachineCreated")(obj))
    await until_quiet(case.environment)
    since = positions(case.environment)
    before = requests(await case.environment.provider.metrics())
    await asyncio.sleep(IDLE_SECONDS)
    assert made(case.environment, since) == []
    after = requests(await case.environment.provider.metrics())
    assert after == before


def requests(metrics: Metrics) -> float:
    return sum(
        count
        for (name, labels), count in metrics.items()
        if name == "caphv_api_requests_total"
        and ("verb", "watch") not in labels
        and ("resource", "leases.coordination.k8s.io") not in labels
    )


# Its share


@asynccontextmanager
async def only(environment: Environment, name: str, *options: str) -> AsyncIterator[Provider]:
    """Run a provider with options in the place of the shared one."""
    provider = Provider(environment.folder, name, environment.management, *options)
    await environment.provider.stop()
    try:
        await provider.start()
        yield provider
    finally:
        await provider.stop()
        await environment.provider.start()


async def test_namespace_limits_what_it_reconciles(case: Case, other: Case) -> None:
    async with only(case.environment, "one-namespace", f"--namespace={case.name}"):
        await other.cluster()
        await case.ready_cluster()
        await case.ready_machine("one")
        left_alone = await other.get(HARVESTER_CLUSTERS, other.name)
        assert "status" not in left_alone
        assert "finalizers" not in left_alone["metadata"]
    await other.ready()


async def test_watch_filter_limits_what_it_reconciles(case: Case, other: Case) -> None:
    label = {"cluster.x-k8s.io/watch-filter": "blue"}
    async with only(case.environment, "blue", "--watch-filter=blue"):
        await other.cluster(labels={"cluster.x-k8s.io/watch-filter": "green"})
        await case.ready_cluster(labels=label)
        await case.create_machine("unlabelled")
        await case.ready_machine("labelled", labels=label)
        assert await case.names(kinds.VIRTUAL_MACHINES) == ["labelled"]
        assert "status" not in await other.get(HARVESTER_CLUSTERS, other.name)
        assert "status" not in await case.get(HARVESTER_MACHINES, "unlabelled")
    await other.ready()


# Metrics


async def test_metrics_of_the_contract_have_their_labels(case: Case) -> None:
    provider = case.environment.provider
    before = await provider.metrics()
    pool = await case.pool("pool", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.connect_workload()
    name = f"{case.name}-one"
    await case.ready_machine(name)
    await case.register_node(name)
    await case.until(NODES, name, lambda node: node["spec"].get("providerID"), client=case.workload)
    cluster = f"{case.name}/{case.name}"
    counters = ("machine_create_total", "ippool_allocations_total", "node_init_duration_seconds_count")
    metrics = await counted(provider, before, *counters)
    assert value(metrics, "caphv_cluster_ready", cluster=cluster) == 1
    assert value(metrics, "caphv_machine_status", cluster=cluster, machine=f"{case.name}/{name}") == 1
    assert grown(before, metrics, "caphv_machine_creation_duration_seconds_count") == 1
    assert grown(before, metrics, "caphv_node_init_duration_seconds_count") == 1
    for operation in ("normal", "delete"):
        for kind in ("machine", "cluster"):
            assert value(metrics, f"caphv_{kind}_reconcile_duration_seconds_count", operation=operation) is not None
    for counter in ("machine_create_errors", "machine_delete_errors", "ippool_allocation_errors", "node_init_errors"):
        assert grown(before, metrics, f"caphv_{counter}_total") == 0
    await case.delete_machine(name)

    async def forgotten() -> bool:
        now = await provider.metrics()
        return value(now, "caphv_machine_status", cluster=cluster, machine=f"{case.name}/{name}") is None

    await until(forgotten, lambda: "the series of a deleted machine is still there")
    metrics = await counted(provider, before, "machine_delete_total", "ippool_releases_total")
    assert grown(before, metrics, "caphv_machine_delete_total") == 1
    assert grown(before, metrics, "caphv_ippool_releases_total") == 1


async def counted(provider: Provider, before: Metrics, *counters: str) -> Metrics:
    """Wait until all counters have grown: the provider counts a moment after others see what it did."""
    metrics: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    async def all_of_them() -> bool:
        metrics.clear()
        metrics.update(await provider.metrics())
        return all(grown(before, metrics, f"caphv_{counter}") >= 1 for counter in counters)

    await until(all_of_them, f"not all of {', '.join(counters)} are counted")
    return metrics


def grown(before: Metrics, after: Metrics, name: str) -> float:
    found = value(after, name)
    assert found is not None, f"no metric {name}"
    return found - (value(before, name) or 0)


async def test_errors_are_counted(case: Case) -> None:
    before = await case.environment.provider.metrics()
    pool = await case.pool("pool", 1, 1)
    await case.reserve(pool, f"{case.subnet}.1", "another/owner")
    await case.ready_cluster()
    await case.create_machine("refused", networks=["default/nowhere"])
    await case.create_machine("addressless", vmNetworkConfig=case.vm_network(pool))
    await case.until(HARVESTER_MACHINES, "refused", is_false("Ready", "VMProvisioningFailed"))
    await case.until(HARVESTER_MACHINES, "addressless", is_false("Ready", "VMIPPoolExhausted"))
    counters = ("machine_create_errors_total", "ippool_allocation_errors_total")
    metrics = await counted(case.environment.provider, before, *counters)
    status = {"cluster": f"{case.name}/{case.name}", "machine": f"{case.name}/refused"}
    assert value(metrics, "caphv_machine_status", **status) == 0
    await case.reserve(pool, f"{case.subnet}.1", None)


# Secrets that it never shows


async def test_secrets_are_in_no_log_event_condition_or_metric(case: Case) -> None:
    bootstrap, token = "canary-bootstrap-9d3c2f6d", "canary-refused-token-1c1f7a10"
    await case.ready_cluster()
    good = f"#cloud-config\nwrite_files: [{{path: /opt/x, content: {bootstrap}}}]\n"
    await case.write_secret("good", {"value": good})
    await case.ready_machine("good", bootstrap="good")
    broken = {
        "yaml": f"#cloud-config\nruncmd: [{bootstrap}\nfoo: : {bootstrap}\n",
        "script": f"#!/bin/sh\n{bootstrap}\n",
        "text": f"{bootstrap}",
        "lists": f"#cloud-config\nruncmd: {{{bootstrap}: {bootstrap}}}\n",
    }
    for name, text in broken.items():
        await case.write_secret(name, {"value": text})
        await case.create_machine(name, bootstrap=name)
        await case.until(HARVESTER_MACHINES, name, is_false("Ready", "VMProvisioningFailed"))
    for identity in (
        case.environment.identity(token=token),
        {**case.environment.identity(token=token), "clusters": [{"name": "harvester", "cluster": {"server": token}}]},
        f"token: {token}\n  broken: {token}",
    ):
        await case.identity(identity)
        await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: not is_true("HarvesterConnectionReady")(obj))
        await case.identity()
        await case.until(HARVESTER_CLUSTERS, case.name, is_true("HarvesterConnectionReady"))
    # Debug logging is on: it is the level that could reveal most.
    assert '"level":"debug"' in case.environment.provider.log
    reported = {
        "log": case.environment.provider.log,
        "metrics": str(await case.environment.provider.metrics()),
        **{
            resource.kind: json.dumps(await case.management.list(resource, case.name))
            for resource in (EVENTS, HARVESTER_CLUSTERS, HARVESTER_MACHINES)
        },
    }
    for secret in (bootstrap, token, IDENTITY_TOKEN):
        assert [place for place, text in reported.items() if secret in text] == []
