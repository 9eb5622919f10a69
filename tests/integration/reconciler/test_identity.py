"""From the identity Secret to a connection: what is wrong is reported, and what is corrected counts at once."""

from __future__ import annotations

import contextlib
import copy

import pytest

from caphv.api.object import DEPLOYMENTS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, Resource
from caphv.runtime.errors import NotFound
from reconciler.harvester import identityaccount
from reconciler.harvester.accountobjects import Account
from sandbox.harvester import kinds
from tests.support.reconciler.case import AT_ONCE, HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true

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
        assert is_ready(found), "also while Harvester is upgraded, VMs run"
        # Contract of Cluster API: once provisioned, always provisioned.
        assert found["status"]["initialization"]["provisioned"]
    finally:
        await set_available(case, "True")
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready, timeout=AT_ONCE)


async def set_available(case: Case, status: str) -> None:
    conditions = [{"type": "Available", "status": status, "reason": "Test"}]
    patch = {"status": {"conditions": conditions}}
    await case.harvester.patch(DEPLOYMENTS, "harvester", "harvester-system", patch, subresource="status")


# Rights in the target namespace

FORCE = {"metadata": {"annotations": {"caphv.io/force-delete": "true"}}}
NOT_READY = "TargetNamespaceNotReady"


async def use_account_of_another_namespace(case: Case) -> None:
    """Have the cluster use an account that may read nothing in its target namespace."""
    account = Account(case.name, "caphv-system", (f"{case.name}-other",))
    await case.identity(await identityaccount.create(case.harvester, account, case.environment.harvester.url))


async def force_deleted(case: Case, resource: Resource, name: str, condition: str) -> None:
    """Delete an object: it says what the account may not read, who can grant that, and what ends the wait."""
    await case.ask_deletion(resource, name)
    found = await case.until(resource, name, is_false(condition, NOT_READY, 'caphv.io/force-delete: "true"'))
    message = condition_of(found, condition)["message"]
    assert (
        f'cannot list resource "virtualmachines" in API group "kubevirt.io" in the namespace "{case.target}"' in message
    )
    assert f"caphv identity create --harvester-kubeconfig FILE --target-namespace {case.target}, " in message
    await case.patch(resource, name, FORCE)
    await case.until_gone(resource, name, timeout=AT_ONCE)
    await case.until_event(name, "Warning", "ForcedDeletion")


async def test_cluster_with_another_target_namespace_than_its_account_can_be_deleted(case: Case) -> None:
    await use_account_of_another_namespace(case)
    await case.create_cluster()
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(CONNECTION))
    await force_deleted(case, HARVESTER_CLUSTERS, case.name, "TargetNamespaceReady")


async def test_machine_and_cluster_whose_account_has_lost_its_rights_can_be_deleted(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    await use_account_of_another_namespace(case)
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("TargetNamespaceReady", NOT_READY))
    await force_deleted(case, HARVESTER_MACHINES, "one", "VMProvisioningReady")
    await force_deleted(case, HARVESTER_CLUSTERS, case.name, "TargetNamespaceReady")
    # They are left, as the Events say.
    assert await case.names(kinds.VIRTUAL_MACHINES) == ["one"]
    remaining = {
        resource: await case.names(resource)
        for resource in (kinds.VIRTUAL_MACHINES, PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES)
    }
    assert [len(found) for found in remaining.values()] == [1, 1, 1, 1]
    for resource, (name,) in remaining.items():
        # The claim may go with its VM.
        with contextlib.suppress(NotFound):
            await case.ask_deletion(resource, name)
        await case.until_gone(resource, name)
