"""From the identity Secret to a connection: what is wrong is reported, and what is corrected counts at once."""

from __future__ import annotations

import copy

import pytest

from caphv.api.object import DEPLOYMENTS, NAMESPACES
from tests.support.reconciler.case import AT_ONCE, HARVESTER_CLUSTERS, Case
from tests.support.reconciler.conditions import is_false, is_ready, is_true

pytestmark = pytest.mark.integration

CONNECTION = "HarvesterConnectionReady"


async def corrected(case: Case) -> None:
    """Write a Secret that works; the provider is not reported otherwise."""
    await case.identity()
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(CONNECTION), timeout=AT_ONCE)
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def test_missing_secret_is_named_and_picked_up_when_it_comes(case: Case) -> None:
    await case.create_cluster()
    says = is_false(CONNECTION, "HarvesterConnectionFailed", f"identity Secret {case.name}/identity: not found")
    found = await case.until(HARVESTER_CLUSTERS, case.name, says)
    assert not found["status"]["ready"]
    await case.until_event(case.name, "Warning", "HarvesterConnectionFailed")
    await corrected(case)


async def test_missing_key_is_named_and_picked_up_when_it_comes(case: Case) -> None:
    await case.identity(key="config")
    await case.create_cluster()
    says = is_false(CONNECTION, "HarvesterConnectionFailed", "key kubeconfig is missing")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await corrected(case)


async def test_kubeconfig_that_would_run_a_program_is_refused(case: Case) -> None:
    marker = case.environment.folder / f"{case.name}-was-run"
    hostile = copy.deepcopy(case.environment.identity())
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [str(marker)]}
    hostile["users"][0]["user"] = {"exec": program}
    await case.identity(hostile)
    await case.create_cluster()
    says = is_false(CONNECTION, "HarvesterConnectionFailed", "users[caphv].user.exec: refused")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await corrected(case)
    assert not marker.exists()


async def test_refused_token_is_reported_apart_and_a_new_one_is_taken(case: Case) -> None:
    await case.identity(case.environment.identity(token="expired"))
    await case.create_cluster()
    says = is_false(CONNECTION, "HarvesterAuthenticationFailed", "the token may have expired")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await corrected(case)


async def test_server_follows_the_kubeconfig(case: Case) -> None:
    await case.cluster(server="https://somewhere.example.com")
    ready = await case.ready()
    assert ready["spec"]["server"] == case.environment.harvester.url


async def test_missing_target_namespace_is_created(case: Case) -> None:
    assert case.target not in await case.names(NAMESPACES)
    await case.cluster()
    found = await case.ready()
    assert is_true("TargetNamespaceReady")(found)
    assert case.target in await case.names(NAMESPACES)
    await case.until_event(case.name, "Normal", "TargetNamespaceCreated")


async def test_existing_target_namespace_is_used(case: Case) -> None:
    mine = await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target, "labels": {"team": "a"}}})
    await case.cluster()
    assert is_true("TargetNamespaceReady")(await case.ready())
    assert (await case.harvester.get(NAMESPACES, case.target))["metadata"]["uid"] == mine["metadata"]["uid"]


async def test_harvester_that_is_not_available_is_waited_for(case: Case) -> None:
    await case.cluster()
    await case.ready()
    await set_available(case, "False")
    try:
        says = is_false(CONNECTION, "HarvesterConnectionFailed", "harvester-system/harvester")
        found = await case.until(HARVESTER_CLUSTERS, case.name, says, timeout=AT_ONCE)
        assert not found["status"]["ready"]
        # Contract of Cluster API: once provisioned, always provisioned.
        assert found["status"]["initialization"]["provisioned"]
    finally:
        await set_available(case, "True")
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready, timeout=AT_ONCE)


async def set_available(case: Case, status: str) -> None:
    conditions = [{"type": "Available", "status": status, "reason": "Test"}]
    patch = {"status": {"conditions": conditions}}
    await case.harvester.patch(DEPLOYMENTS, "harvester", "harvester-system", patch, subresource="status")
