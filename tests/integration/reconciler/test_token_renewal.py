"""Tokens that the provider renews: exchanged once, kept in its own Secret, revoked with the identity."""

from __future__ import annotations

import contextlib

import pytest

from caphv.api.names import VERSIONS
from caphv.api.object import EVENTS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS, Resource
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.api.tokenrenewal import bound_name
from caphv.runtime.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unauthorized
from caphv.runtime.kubeconfig import parse_kubeconfig
from reconciler.harvester import identityaccount
from reconciler.harvester.accountobjects import Account
from sandbox.processes import pki
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_ready, is_true
from tests.support.reconciler.environment import IDENTITY_TOKEN
from tests.support.reconciler.renewedtoken import (
    account,
    bound_secret,
    kept,
    renewing,
    secret_of,
    until_replaced,
    until_reported,
    until_revoked,
    works,
)
from tests.support.reconciler.sharedidentity import PROVIDER, change, shared_identity, unshare

pytestmark = pytest.mark.integration

CONNECTED = is_true("HarvesterConnectionReady")


async def test_credentials_of_an_administrator_are_exchanged_for_an_account_with_the_shipped_roles(case: Case) -> None:
    async with renewing(case, {"expirationSeconds": 600, "serviceAccount": account(case)}) as identity:
        before = await case.management.get(SECRETS, case.name, PROVIDER)
        await case.create_cluster(**identity)
        cluster = await case.ready()
        access = await kept(case)
        await case.ready_machine("one")

        # All machines are made by the account, and the Secret of the user is as it was.
        position = case.environment.audit_position(case.environment.harvester)
        await case.ready_machine("two")
        users = {
            event["user"]["username"]
            for event in case.environment.requests(case.environment.harvester, position)
            if event["objectRef"].get("namespace") == case.target and event["verb"] == "create"
        }
        assert users == {f"system:serviceaccount:{case.name}-account:{case.name}"}
        assert await case.management.get(SECRETS, case.name, PROVIDER) == before

        # The token may do what an account of `caphv identity create` may, and renew and revoke itself.
        client = access.client(name="account", user_agent="test")
        try:
            for refused in (
                client.list(SECRETS, "kube-system"),
                client.create(SECRETS, {"metadata": {"name": "x", "namespace": f"{case.name}-account"}}),
                client.request("POST", SERVICE_ACCOUNTS.path("kube-system", "default", "token"), body={"spec": {}}),
            ):
                with pytest.raises(Forbidden):
                    await refused
        finally:
            await client.close()

        # When it ends is known, and the token itself is nowhere else.
        found = await case.management.get(HARVESTER_CLUSTER_IDENTITIES, case.name)
        assert found["status"]["token"]["serviceAccount"] == f"{case.name}-account/{case.name}"
        assert "renews the token" in condition_of(cluster, "IdentityUpToDate")["message"]
        events = await case.management.list(EVENTS)
        for text in (str(found), str(cluster), str(events), case.environment.provider.log):
            assert access.token not in text
            assert IDENTITY_TOKEN not in text
    # The identity was deleted, and with it the token was revoked.
    await until_revoked(access)


async def test_what_kube_apiserver_does_with_bound_tokens(case: Case) -> None:
    """The facts on which renewal builds: the least life, the claim of the Secret, and what a deletion does."""
    space, client = f"{case.name}-facts", case.harvester
    await client.create(NAMESPACES, {"metadata": {"name": space}})
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "a", "namespace": space}})
    secret = await client.create(SECRETS, {"metadata": {"name": "bound", "namespace": space}})
    reference = {"apiVersion": "v1", "kind": "Secret", "name": "bound", "uid": secret["metadata"]["uid"]}

    async def request(seconds: int, **bound: str) -> str:
        spec = {"expirationSeconds": seconds, "boundObjectRef": {**reference, **bound}}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = await client.request("POST", SERVICE_ACCOUNTS.path(space, "a", "token"), body=body)
        return str(answer["status"]["token"])

    with pytest.raises(Invalid, match="may not specify a duration less than 10 minutes"):
        await request(599)
    with pytest.raises(Conflict, match="does not match the UID in record"):
        await request(600, uid="another")
    with pytest.raises(NotFound):
        await request(600, name="another")
    text = pki.to_yaml(case.environment.identity(await request(600))).decode()
    access = parse_kubeconfig(text)
    assert bound_secret(access) == "bound"
    own = access.client(name="test")
    try:
        with pytest.raises(Forbidden):
            await own.get(SECRETS, "bound", space)
        await client.delete(SECRETS, "bound", space)
        await until_revoked(access)
        with pytest.raises(Unauthorized):
            await own.get(SECRETS, "bound", space)
    finally:
        await own.close()


async def test_a_token_that_harvester_rejects_is_replaced(case: Case) -> None:
    """An administrator of Harvester revokes it, without knowing the management cluster."""
    async with renewing(case, {"serviceAccount": account(case)}) as identity:
        await case.create_cluster(**identity)
        await case.ready()
        access = await kept(case)
        await case.harvester.delete(SECRETS, bound_secret(access), f"{case.name}-account")
        await until_revoked(access)
        await case.create_machine("after")  # an open watch would not notice
        assert await works(await until_replaced(case, access))
        await case.until(HARVESTER_CLUSTERS, case.name, CONNECTED)
        await case.until(HARVESTER_MACHINES, "after", is_ready)


async def test_a_change_of_the_secret_begins_again_and_a_mistake_costs_no_access(case: Case) -> None:
    async with renewing(case, {"serviceAccount": account(case)}) as identity:
        await case.create_cluster(**identity)
        await case.ready()
        access = await kept(case)
        secret = await case.management.get(SECRETS, case.name, PROVIDER)

        wrong = pki.to_yaml(case.environment.identity("another")).decode()
        await case.management.patch(SECRETS, case.name, PROVIDER, {"stringData": {"kubeconfig": wrong}})
        await until_reported(case, "False", "exchanged for the credentials in the Secret: refused")
        assert CONNECTED(await case.get(HARVESTER_CLUSTERS, case.name))
        await case.ready_machine("meanwhile")

        # A Secret that does not exist any more is not needed until the token is lost.
        await case.management.delete(SECRETS, case.name, PROVIDER)
        await until_reported(case, "True", f"Secret {PROVIDER}/{case.name} does not exist")
        again = {"metadata": {"name": case.name, "namespace": PROVIDER}, "data": secret["data"]}
        await case.management.create(SECRETS, again)
        await until_reported(case, "True")

        server = case.environment.harvester
        other = pki.to_yaml(server.kubeconfig("another", ["system:masters"])).decode()
        await case.management.patch(SECRETS, case.name, PROVIDER, {"stringData": {"kubeconfig": other}})
        assert await works(await until_replaced(case, access))


async def test_without_renewal_the_token_is_revoked_and_the_secret_is_used(case: Case) -> None:
    async with renewing(case, {"serviceAccount": account(case)}) as identity:
        await case.create_cluster(**identity)
        await case.ready()
        access = await kept(case)
        await change(case, tokenRenewal=None)
        await until_revoked(access)
        await case.until(HARVESTER_CLUSTERS, case.name, CONNECTED)
        found = await case.management.get(HARVESTER_CLUSTER_IDENTITIES, case.name)
        assert found["status"] == {"conditions": []}
        await case.ready_machine("after")


async def test_an_account_renews_its_own_token_and_one_without_the_right_keeps_the_secret(case: Case) -> None:
    """Of `caphv identity create`: an account for all namespaces may, one with target namespaces may not."""
    narrow = Account(f"{case.name}-narrow", "caphv-system", (case.target,))
    wide = Account(f"{case.name}-wide", "caphv-system")
    kubeconfigs = [
        await identityaccount.create(case.harvester, found, case.environment.harvester.url) for found in (narrow, wide)
    ]
    async with renewing(case, {}) as identity:
        change_to = lambda text: {"stringData": {"kubeconfig": text}}  # noqa: E731
        await case.management.patch(SECRETS, case.name, PROVIDER, change_to(kubeconfigs[0]))
        await case.create_cluster(**identity)
        await until_reported(case, "False", "serviceaccounts/token")
        await case.ready()
        await case.management.patch(SECRETS, case.name, PROVIDER, change_to(kubeconfigs[1]))
        access = await kept(case)
        assert bound_secret(access)
        await case.until(HARVESTER_CLUSTERS, case.name, CONNECTED)


async def test_credentials_that_are_no_accounts_need_one(case: Case) -> None:
    async with renewing(case, {}) as identity:
        await case.create_cluster(**identity)
        await case.ready()
        await until_reported(case, "False", "set spec.tokenRenewal.serviceAccount")
        await change(case, tokenRenewal={"serviceAccount": account(case)})
        await kept(case)
        await case.until(HARVESTER_CLUSTERS, case.name, CONNECTED)


async def test_secrets_of_others_are_neither_used_nor_written(case: Case) -> None:
    """One in the provider's namespace, and one on Harvester: deleting them is the remedy."""
    foreign = {"metadata": {"name": secret_of(case), "namespace": PROVIDER}, "stringData": {"kubeconfig": "mine"}}
    with contextlib.suppress(AlreadyExists):
        await case.management.create(NAMESPACES, {"metadata": {"name": PROVIDER}})
    await case.management.create(SECRETS, foreign)
    async with renewing(case, {"serviceAccount": account(case)}) as identity:
        await case.create_cluster(**identity)
        await until_reported(case, "False", f"{secret_of(case)} exists and is not the provider's: delete it")
        await case.ready()  # by the user's Secret

        uid = (await case.management.get(HARVESTER_CLUSTER_IDENTITIES, case.name))["metadata"]["uid"]
        management = (await case.management.get(NAMESPACES, "kube-system"))["metadata"]["uid"]
        name, space = bound_name(uid, management, case.name), f"{case.name}-account"
        await case.harvester.create(NAMESPACES, {"metadata": {"name": space}})
        await case.harvester.create(SECRETS, {"metadata": {"name": name, "namespace": space}})
        await case.management.delete(SECRETS, secret_of(case), PROVIDER)
        await until_reported(case, "False", f"{space}/{name} on Harvester does not belong to")
        await case.harvester.delete(SECRETS, name, space)
        # The next attempt comes by itself within a minute, or with a change of the Secret.
        note = {"metadata": {"annotations": {"touched": "yes"}}}
        await case.management.patch(SECRETS, case.name, PROVIDER, note)
        assert await works(await kept(case))


async def test_a_restart_continues_with_the_same_token(case: Case) -> None:
    async with renewing(case, {"serviceAccount": account(case)}) as identity:
        await case.create_cluster(**identity)
        await case.ready()
        access = await kept(case)
        position = case.environment.audit_position(case.environment.harvester)
        await case.environment.provider.stop()
        await case.environment.provider.start()
        await case.until(HARVESTER_CLUSTERS, case.name, CONNECTED)
        await case.ready_machine("after")
        assert (await kept(case)).token == access.token
        requests = case.environment.requests(case.environment.harvester, position)
        assert not [event for event in requests if event["requestURI"].endswith("/token")]


async def test_a_user_who_deletes_the_providers_secret_revokes_the_token_and_gets_another(case: Case) -> None:
    async with renewing(case, {"serviceAccount": account(case)}) as identity:
        await case.create_cluster(**identity)
        await case.ready()
        access = await kept(case)
        await case.management.delete(SECRETS, secret_of(case), PROVIDER)
        after = await until_replaced(case, access)
        await until_revoked(access)
        assert await works(after)
        await case.until(HARVESTER_CLUSTERS, case.name, CONNECTED)


async def test_clusters_that_are_deleted_together_with_their_identity_leave_nothing_on_harvester(case: Case) -> None:
    async with renewing(case, {"serviceAccount": account(case)}) as identity:
        await case.create_cluster(**identity)
        await case.ready()
        access = await kept(case)
        await case.ready_machine("one")
        await unshare(case)  # with the credentials of the user
        await case.delete()
        assert await case.leftovers() == []
    await until_revoked(access)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_crd_refuses_what_could_be_misread(case: Case, version: str) -> None:
    identities = Resource("infrastructure.cluster.x-k8s.io", version, "harvesterclusteridentities", "", False)

    async def check(renewal: object, secret: str = "shared") -> object:
        obj = {**shared_identity(case.name, None), "apiVersion": f"{identities.group}/{version}"}
        obj["spec"]["tokenRenewal"] = renewal
        obj["spec"]["secretRef"]["name"] = secret
        answer = await case.management.create(identities, {**obj, "kind": "HarvesterClusterIdentity"}, dry_run=True)
        return answer["spec"]["tokenRenewal"]

    assert await check({}) == {"expirationSeconds": 3600}
    await check({"serviceAccount": account(case), "server": "https://[fd00::1]:6443"})
    complete = account(case)
    for wrong in (
        {"expirationSeconds": 599},
        {"server": "http://harvester"},
        {"server": "https://rancher/k8s/clusters/c-1"},
        {"serviceAccount": {**complete, "targetNamespaces": []}},
        {"serviceAccount": {**complete, "targetNamespaces": [case.target, complete["namespace"]]}},
        # Were it dropped, the account would get rights in all namespaces.
        {"serviceAccount": {"name": "a", "namespace": "b", "targetNamespace": ["c"]}},
    ):
        with pytest.raises(Invalid, match="tokenRenewal"):
            await check(wrong)
    with pytest.raises(Invalid, match=r"secretRef.name: .* is the name of a token that the provider renews"):
        await check({}, "renewed-token.other")
