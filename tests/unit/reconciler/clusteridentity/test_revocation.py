"""The end of tokens: what is revoked, when, and by whom."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from caphv.api.identities import Refused
from caphv.api.names import RENEWED_TOKEN_FINALIZER
from caphv.api.object import NAMESPACES, SECRETS, Key, Obj
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES, HARVESTER_CLUSTERS
from caphv.runtime.errors import Forbidden, Unauthorized, Unreachable
from reconciler.remote.clusteridentities import NotRead
from tests.support import kubeconfigs
from tests.support.reconciler.renewing import ACCOUNT, DOWN, KEPT, NAME, OWN, Renewing, live
from tests.support.reconciler.tokenissuer import USER_TOKEN, bound_secrets

pytestmark = pytest.mark.unit

# The kubeconfig of a token that was issued while the provider ran with --allow-insecure-identities.
INSECURE = base64.b64encode(yaml.safe_dump(kubeconfigs.with_cluster(insecure_skip_tls_verify=True)).encode()).decode()


async def test_deletion_revokes_and_waits_for_harvester_until_the_token_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    case.put_any()
    await live([case], 100)
    access = case.access()
    case.renew_with()
    await case.reconcile()
    assert case.kept is not None, "its finalizer keeps the Secret"
    case.issuer.outage = DOWN
    assert await case.reconcile() <= 60
    assert case.kept["metadata"]["finalizers"] == [RENEWED_TOKEN_FINALIZER]
    case.issuer.outage = None
    await case.reconcile()
    assert case.kept is None
    assert list(bound_secrets(case.issuer)) == []
    with pytest.raises(Unauthorized):
        await case.client(access).get(SECRETS, "any", "vms")

    await case.reconcile()
    assert case.access().token == USER_TOKEN
    case.renew_with(expirationSeconds=600, serviceAccount=ACCOUNT)
    await case.reconcile()
    case.renew_with()
    await case.reconcile()
    case.issuer.outage = DOWN
    case.clock.pass_time(600)
    await case.reconcile()
    assert case.kept is None, "a token that has ended needs no revocation"


async def test_a_token_that_travelled_is_neither_used_nor_revoked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `clusterctl move`: the Secret of another management cluster, with the uid of the identity here."""
    case = Renewing(monkeypatch)
    case.put_any()
    await live([case], 60)
    (bound,) = bound_secrets(case.issuer)
    case.context.management_cluster = "another"
    case.restart()
    token = case.access_of_secret()
    await case.reconcile()
    assert case.access().token != token
    case.renew_with()
    await case.reconcile()
    await case.reconcile()
    assert case.kept is None
    assert [obj["metadata"]["name"] for obj in bound_secrets(case.issuer)] == [bound["metadata"]["name"]]


@pytest.mark.parametrize("ends", [False, True])
async def test_a_kept_secret_that_a_user_has_changed_is_written_again_or_released(
    monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    kept, own = case.kept, case.management.find("Secret", "own", OWN)
    assert kept is not None
    assert own is not None
    case.management.put({**kept, "data": own["data"]})
    if ends:
        case.renew_with()
        await case.reconcile()
        await case.reconcile()
        assert case.kept is None
    else:
        case.clock.pass_time(await case.reconcile())
        await case.reconcile()
        assert case.access().token != USER_TOKEN
        assert case.condition_of()[0] == "True"


async def test_a_process_that_dies_after_an_exchange_leaves_what_revokes_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    patch = case.management.patch

    async def die(resource: Any, name: str, namespace: str, obj: Obj, **options: Any) -> Obj:
        if "data" in obj:
            raise Unreachable("killed")
        return await patch(resource, name, namespace, obj, **options)

    monkeypatch.setattr(case.management, "patch", die)
    with pytest.raises(Unreachable):
        await case.reconcile()
    assert case.issuer.issued == 1
    monkeypatch.setattr(case.management, "patch", patch)
    case.restart()
    await case.reconcile()
    assert len(list(bound_secrets(case.issuer))) == 1
    case.renew_with()
    await case.reconcile()
    await case.reconcile()
    assert list(bound_secrets(case.issuer)) == []


async def test_tokens_of_a_former_account_are_revoked_when_clusters_have_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    case.put_any()
    await live([case], 60)
    former = case.access()
    case.renew_with(expirationSeconds=600, serviceAccount={**ACCOUNT, "namespace": "others"})
    assert await case.reconcile() <= 60
    (token,) = {case.access().token} - {former.token}
    await case.client(former).get(SECRETS, "any", "vms")  # a cluster that has not noticed yet
    case.issuer.errors["get Secret"] = DOWN
    case.clock.pass_time(60)
    await case.reconcile()
    case.issuer.errors.clear()
    assert {obj["metadata"]["namespace"] for obj in bound_secrets(case.issuer)} == {"accounts", "others"}
    case.clock.pass_time(120)
    await case.reconcile()
    assert {obj["metadata"]["namespace"] for obj in bound_secrets(case.issuer)} == {"others"}
    assert case.access().token == token


async def test_the_token_of_an_identity_that_is_created_again_at_once_is_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    former = case.access()
    identity = case.management.find("HarvesterClusterIdentity", NAME)
    assert identity is not None
    case.management.put({**identity, "metadata": {"name": NAME, "uid": "another"}, "status": {}})
    for _ in range(3):
        await case.reconcile()
    assert case.access().token not in (former.token, USER_TOKEN)
    with pytest.raises(Unauthorized):
        await case.client(former).get(NAMESPACES, "kube-system")
    assert len(list(bound_secrets(case.issuer))) == 1


def reject(case: Renewing, monkeypatch: pytest.MonkeyPatch, is_rejected: Callable[[str], bool]) -> None:
    """Let Harvester answer 401 to some tokens."""
    accept = case.issuer.check

    def check(token: str) -> None:
        if is_rejected(token):
            raise Unauthorized(401, "Unauthorized", "Unauthorized")
        accept(token)

    monkeypatch.setattr(case.issuer, "check", check)


def end_identity(case: Renewing) -> Obj:
    """Delete the identity, as the watch reports it; return what it was."""
    identity = case.management.find("HarvesterClusterIdentity", NAME)
    assert identity is not None
    case.management.remove(HARVESTER_CLUSTER_IDENTITIES, NAME)
    case.readable.renewed.observe(identity, None)
    return identity


async def test_a_token_is_revoked_after_the_deletion_of_the_clusters_that_are_deleted_with_the_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    token = case.access()
    end_identity(case)
    case.management.put({**case.obj, "metadata": {**case.obj["metadata"], "finalizers": ["any"]}})
    await case.reconcile()
    for _ in range(3):
        assert await case.reconcile() <= 10
        # Only a cluster that is being deleted may use it, of a namespace that was allowed.
        assert case.readable.resolve(NAME, "team", is_ending=True) == Key(OWN, KEPT)
        assert isinstance(case.readable.resolve(NAME, "team"), Refused)
        await case.client(token).get(NAMESPACES, "kube-system")

    case.management.remove(HARVESTER_CLUSTERS, "demo", "team")
    await case.reconcile()
    assert case.kept is None
    assert list(bound_secrets(case.issuer)) == []
    assert isinstance(case.readable.resolve(NAME, "team", is_ending=True), Refused)


async def test_a_token_that_is_held_for_clusters_ends_by_itself_and_is_not_the_next_identity_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    token = case.access()
    former = end_identity(case)
    await case.reconcile()
    case.management.put({**former, "metadata": {"name": NAME, "uid": "another"}})
    case.readable.renewed.observe(None, case.management.find("HarvesterClusterIdentity", NAME))
    with pytest.raises(NotRead):
        case.readable.resolve(NAME, "team", is_ending=True)
    await case.reconcile()
    assert list(bound_secrets(case.issuer)) == [], "at once: its clusters get another"
    await case.reconcile()
    assert case.access().token not in (token.token, USER_TOKEN)

    end_identity(case)
    await case.reconcile()
    case.clock.pass_time(600)
    await case.reconcile()
    assert case.kept is None, "although the cluster still refers to the identity"


async def test_a_token_of_a_former_account_is_revoked_although_the_identity_ends_within_the_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    case.renew_with(expirationSeconds=600, serviceAccount={**ACCOUNT, "namespace": "others"})
    await case.reconcile()
    case.renew_with()
    for _ in range(3):
        await case.reconcile()
    case.clock.pass_time(120)
    await case.reconcile()
    assert list(bound_secrets(case.issuer)) == []


async def test_a_token_of_another_account_in_the_same_namespace_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    case.put_any()
    await case.reconcile()
    former = case.access()
    case.renew_with(expirationSeconds=600, serviceAccount={**ACCOUNT, "name": "caphv2"})
    for _ in range(3):
        await case.reconcile()
        case.clock.pass_time(61)
    with pytest.raises(Unauthorized):
        await case.client(former).get(SECRETS, "any", "vms")


async def test_an_exchange_whose_token_does_not_work_leaves_nothing_on_harvester(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    accept = case.issuer.check
    reject(case, monkeypatch, lambda token: token != USER_TOKEN)
    await case.reconcile()
    monkeypatch.setattr(case.issuer, "check", accept)
    case.renew_with()
    for _ in range(3):
        await case.reconcile()
    assert case.kept is None
    assert list(bound_secrets(case.issuer)) == []


async def test_a_secret_that_has_lost_its_owner_is_revoked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kubectl delete --cascade=orphan`, on which the garbage collector removes the ownerReference first."""
    case = Renewing(monkeypatch)
    await case.reconcile()
    kept = case.kept
    assert kept is not None
    case.management.put({**kept, "metadata": {**kept["metadata"], "ownerReferences": []}})
    case.management.remove(HARVESTER_CLUSTERS, "demo", "team")
    case.management.remove(HARVESTER_CLUSTER_IDENTITIES, NAME)
    for _ in range(3):
        await case.reconcile()
    assert list(bound_secrets(case.issuer)) == []


async def test_a_secret_whose_token_waits_for_its_revocation_is_not_reported_as_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    assert case.kept is not None
    case.kept["metadata"]["deletionTimestamp"] = "2026-11-27T08:00:00Z"
    case.issuer.outage = DOWN
    await case.reconcile()
    assert case.key() == Key(OWN, "own")
    assert case.condition_of()[0] == "False"


async def test_a_cluster_that_may_not_use_an_identity_does_not_hold_its_revocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    identity = case.management.find("HarvesterClusterIdentity", NAME)
    assert identity is not None
    denied = {**identity, "spec": {**identity["spec"], "allowedNamespaces": {"list": ["other"]}}}
    case.management.put(denied)
    case.management.remove(HARVESTER_CLUSTER_IDENTITIES, NAME)
    case.readable.renewed.observe(denied, None)
    for _ in range(3):
        await case.reconcile()
    assert list(bound_secrets(case.issuer)) == []


@pytest.mark.parametrize("identity_is_seen_first", [True, False])
async def test_tokens_of_a_former_account_are_revoked_in_whatever_order_the_ends_are_seen(
    monkeypatch: pytest.MonkeyPatch, identity_is_seen_first: bool
) -> None:
    case = Renewing(monkeypatch)
    case.put_any()
    await live([case], 60)
    former = case.access()
    case.renew_with(expirationSeconds=600, serviceAccount={**ACCOUNT, "namespace": "others"})
    await case.reconcile()
    assert case.kept is not None
    if identity_is_seen_first:
        end_identity(case)
    else:
        case.kept["metadata"]["deletionTimestamp"] = "2026-11-27T08:00:00Z"
    for _ in range(3):
        await case.reconcile()
    with pytest.raises(Unauthorized):
        await case.client(former).get(NAMESPACES, "kube-system")


async def test_a_token_that_was_rejected_for_a_while_is_revoked_after_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where one of several API servers does not know the token: it is left, and works on."""
    case = Renewing(monkeypatch)
    case.put_any()
    await live([case], 60)
    token = case.access()
    accept = case.issuer.check
    reject(case, monkeypatch, lambda text: text == token.token)
    case.issuer.errors["create Secret"] = DOWN
    case.reject(token)
    await case.reconcile()
    assert case.access().token == USER_TOKEN

    monkeypatch.setattr(case.issuer, "check", accept)
    case.issuer.errors.clear()
    end_identity(case)
    case.issuer.outage = DOWN
    for _ in range(3):
        await case.reconcile()
        case.clock.pass_time(5)
    case.issuer.outage = None
    case.clock.pass_time(60)
    await case.reconcile()
    assert case.kept is None
    with pytest.raises(Unauthorized):
        await case.client(token).get(NAMESPACES, "kube-system")


async def test_what_an_earlier_attempt_left_does_not_keep_a_token_that_failed_its_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    apply = case.issuer.apply

    async def refuse_own_role(resource: Any, obj: Obj, **options: Any) -> Obj:
        if obj["metadata"]["name"].startswith("caphv-renewal-"):
            raise Forbidden(403, "Forbidden", "may not grant")
        return await apply(resource, obj, **options)

    monkeypatch.setattr(case.issuer, "apply", refuse_own_role)
    await case.reconcile()
    assert len(list(bound_secrets(case.issuer))) == 1
    monkeypatch.setattr(case.issuer, "apply", apply)

    reject(case, monkeypatch, lambda token: token != USER_TOKEN)
    case.clock.pass_time(600)
    await case.reconcile()
    assert list(bound_secrets(case.issuer)) == []


async def end_with(case: Renewing, **changes: Any) -> None:
    """Change the provider's Secret, and have it deleted with the renewal."""
    kept = case.kept
    assert kept is not None
    case.management.put({**kept, **changes})
    case.renew_with()
    for _ in range(3):
        await case.reconcile()


async def test_a_token_whose_record_a_user_has_removed_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    token = case.access()
    kept = case.kept
    assert kept is not None
    case.issuer.outage = DOWN
    await end_with(case, metadata={**kept["metadata"], "annotations": {}})
    assert case.kept is not None, "Harvester has not answered, and the token says that it is valid"

    case.issuer.outage = None
    case.clock.pass_time(60)
    await case.reconcile()
    assert case.kept is None
    with pytest.raises(Unauthorized):
        await case.client(token).get(NAMESPACES, "kube-system")


@pytest.mark.parametrize("kubeconfig", ["e30=", "no base64", INSECURE])
async def test_a_token_that_cannot_be_read_is_reported_as_not_revoked(
    monkeypatch: pytest.MonkeyPatch, kubeconfig: str
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    await end_with(case, data={"kubeconfig": kubeconfig})
    assert case.kept is None, "nothing would ever release it"
    assert case.events == [("Warning", "TokenNotRevoked")]


async def test_a_token_that_may_not_be_revoked_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    case.issuer.errors["get Secret"] = Forbidden(403, "Forbidden", "may not get")
    await end_with(case)
    assert case.kept is None
    assert case.events == [("Warning", "TokenNotRevoked")]


async def test_a_secret_that_never_got_a_token_is_released_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    case.issuer.outage = DOWN
    await case.reconcile()
    assert case.kept is not None
    await end_with(case)
    assert case.kept is None
    assert case.events == []
