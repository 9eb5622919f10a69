"""`caphv status` against a real API server: what it says, with which rights, and what it costs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from caphv.api.names import LEASE
from caphv.api.object import LEASES, Obj
from caphv.runtime.client import ApiClient
from sandbox.processes.apiserver import ApiServer
from tests.support.clusters import Builder
from tests.support.overview import Management

Grant = Callable[[str, str, list[Obj]], None]
READ = ["get", "list", "watch"]


@pytest.fixture(scope="module")
def clusters(management: Management) -> Management:
    """Namespace `day` with a healthy cluster and one whose VM is lost, and an empty namespace."""
    broken = Builder("shop2", prefix="w2-")
    broken.break_machine("w2-worker-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester", minutes=3)
    management.load("day", Builder("shop1").objects(), broken.objects())
    management.load("night")
    return management


def test_a_line_a_cluster_with_cause_and_next_step(clusters: Management) -> None:
    result = clusters.caphv("status", "-n", "day")
    lines = result.output.splitlines()
    assert result.exit_code == 1
    assert lines[0].split() == ["CLUSTER", "STATE", "CONTROL", "PLANE", "WORKERS", "VERSION", "AGE"]
    assert lines[1].split()[:2] == ["shop1", "Available"]
    assert lines[2].split()[:2] == ["shop2", "Degraded"]
    assert "HarvesterMachine/w2-worker-1: the VirtualMachine does not exist on Harvester" in lines[3]
    assert "kubectl delete machine w2-worker-1 -n day" in lines[4]


def test_a_healthy_cluster_alone_ends_with_status_0(clusters: Management) -> None:
    result = clusters.caphv("status", "day/shop1", "-o", "json")
    assert result.exit_code == 0
    assert [cluster["name"] for cluster in json.loads(result.stdout)["items"]] == ["shop1"]


def test_a_cluster_that_does_not_exist_ends_with_status_2(clusters: Management) -> None:
    result = clusters.caphv("status", "nothing", "-n", "day")
    assert result.exit_code == 2
    assert "no such cluster on Harvester: day/nothing" in result.output


def test_an_empty_namespace_points_to_all(clusters: Management) -> None:
    result = clusters.caphv("status", "-n", "night")
    assert result.exit_code == 0
    assert "No clusters on Harvester in namespace night; all namespaces: -A" in result.output


def test_a_user_of_one_namespace_sees_it_and_what_stays_unseen_is_reported(clusters: Management, grant: Grant) -> None:
    grant("ann", "day", [{"apiGroups": ["cluster.x-k8s.io"], "resources": ["*"], "verbs": READ}])
    result = clusters.caphv("status", "-n", "day", user="ann")
    assert "shop1" in result.stdout
    assert "not seen: harvestermachines.infrastructure.cluster.x-k8s.io" in result.stderr
    everywhere = clusters.caphv("status", "-A", user="ann")
    assert everywhere.exit_code == 2
    assert "name a namespace that you may read with -n" in everywhere.output


def test_a_provider_that_is_silent_is_reported_before_all_else(clusters: Management) -> None:
    lease = {
        "metadata": {"name": LEASE, "namespace": "night"},
        "spec": {"holderIdentity": "one", "renewTime": "2026-11-22T12:00:00.000000Z"},
    }

    async def run(work: Callable[[ApiClient], Awaitable[object]]) -> None:
        async with clusters.server.client() as client:
            await work(client)

    asyncio.run(run(lambda client: client.create(LEASES, lease)))
    try:
        result = clusters.caphv("status", "day/shop1")
        lines = result.output.splitlines()
        assert result.exit_code == 1
        assert lines[0].startswith(f"✗ provider: silent: Lease night/{LEASE} is not renewed")
        assert lines[1] == "→ Check whether it runs: kubectl get pods -n night"
        assert lines[3].split()[:2] == ["shop1", "Available"]

        result = clusters.caphv("status", "-n", "night", "-o", "json")
        assert result.exit_code == 1
        provider = json.loads(result.stdout)["provider"]
        assert (provider["silent"], provider["since"]) == (True, "2026-11-22T12:00:00.000000Z")
    finally:
        asyncio.run(run(lambda client: client.delete(LEASES, LEASE, "night")))


def test_requests_do_not_grow_with_the_number_of_clusters(clusters: Management) -> None:
    asked = clusters.requests(lambda: clusters.caphv("status", "-A"))
    lists = [each for each in asked if each.startswith("list")]
    assert sorted(lists) == [
        "list clusters",
        "list harvesterclusters",
        "list harvestermachines",
        "list leases",
        "list machinedeployments",
        "list machines",
        "list rke2controlplanes",
    ]
    assert len(asked) <= len(lists) + 6


def test_a_server_without_cluster_api_is_named_as_such(
    new_api_server: Callable[..., Coroutine[Any, Any, ApiServer]], management: Management
) -> None:
    other = dataclasses.replace(management, server=asyncio.run(new_api_server()))
    result = other.caphv("status", "-A")
    assert result.exit_code == 2
    assert "does not serve Cluster API" in result.output
