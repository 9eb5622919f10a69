"""Renewal of tokens in simulated time: no request meets a token that has ended, whatever happens meanwhile."""

from __future__ import annotations

from typing import Any, cast

import pytest

from caphv.api.object import SECRETS, Key, Obj
from caphv.runtime.errors import Conflict, Forbidden, RequestError, Unauthorized
from caphv.runtime.kubeconfig import token_claims
from reconciler.clusteridentity.controller import TokenRenewer
from reconciler.remote.clusteridentities import ClusterIdentities, NotRead
from tests.support.reconciler.renewing import DOWN, KEPT, NAME, OWN, Renewing, live
from tests.support.reconciler.tokenissuer import USER_TOKEN, bound_secrets

pytestmark = pytest.mark.unit


async def test_twenty_clusters_meet_no_401_in_an_hour_of_ten_minute_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cluster has an identity of its own, one of which has a Harvester whose clock is wrong."""
    cases = [Renewing(monkeypatch, skew=90.0 * (number == 0)) for number in range(20)]
    for case in cases:
        case.put_any()
        await case.reconcile()
        case.issuer.users.clear()  # the token of Rancher ends after the exchange
    await live(cases, 3600)
    for case in cases:
        assert case.issuer.unauthorized == 0
        assert 8 <= case.issuer.issued <= 12, "a token each 6 to 7 minutes"
        assert case.condition_of()[:2] == ("True", "TokenRenewed")
        assert len(list(bound_secrets(case.issuer))) == 1


async def test_an_outage_costs_nothing_while_the_token_lives_and_the_user_s_secret_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    case.put_any()
    await live([case], 340)
    first = case.access().token
    case.issuer.outage = DOWN
    case.clock.pass_time(70)
    waits = [await case.reconcile()]
    assert case.access().token == first
    assert case.condition_of()[:2] == ("False", "TokenNotRenewed")
    for _ in range(5):
        case.clock.pass_time(waits[-1])
        waits.append(await case.reconcile())
    assert (waits[0], waits[1]) == (5, 10)
    assert all(5 <= wait <= 20 for wait in waits), waits

    # It is unknown which credentials work, and none are left for others that may not.
    case.clock.pass_time(200)
    case.reports.clear()
    assert await case.reconcile() <= 10
    assert (case.access().token, case.reports) == (first, [])
    case.issuer.outage = None
    case.clock.pass_time(10)
    await case.reconcile()
    assert (case.access().token, case.reports) == (USER_TOKEN, [NAME])
    assert case.condition_of()[:2] == ("False", "TokenNotExchanged")
    case.clock.pass_time(await case.reconcile())
    await case.reconcile()
    assert case.access().token not in (first, USER_TOKEN)
    await live([case], 600)
    assert case.issuer.unauthorized == 0


async def test_a_restart_and_a_second_leader_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    case.put_any()
    await live([case], 300)
    token = case.access().token
    case.restart()
    with pytest.raises(NotRead):
        case.readable.resolve(NAME, "team")
    await case.reconcile()
    assert (case.access().token, case.issuer.issued) == (token, 1)

    # Two replicas renew at a time: one of them finds that the other has written.
    case.clock.pass_time(110)
    original, raced = case.management.patch, []

    async def patch(resource: Any, name: str, *words: Any, **options: Any) -> Obj:
        if name == KEPT and not raced:
            raced.append(name)
            await TokenRenewer(case.context, case.clock).reconcile(Key("", NAME))
        return await original(resource, name, *words, **options)

    monkeypatch.setattr(case.management, "patch", patch)
    with pytest.raises(Conflict):
        await case.reconcile()
    assert token_claims(case.access_of_secret())["jti"] == "3", "what the other wrote stays"
    await case.reconcile()
    assert case.issuer.issued == 3
    await live([case], 1200)
    assert case.issuer.unauthorized == 0


async def test_a_401_that_has_passed_costs_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's credentials have ended, or were deleted, which is allowed."""
    case = Renewing(monkeypatch)
    case.put_any()
    await live([case], 60)
    case.issuer.users.clear()
    first = case.access()
    case.reject(first)
    await case.reconcile()
    assert (case.access().token, case.issuer.issued) == (first.token, 1)
    assert case.condition_of()[0] == "True"
    case.clock.pass_time(360)
    await case.reconcile()
    second = case.access()
    assert second.token not in (first.token, USER_TOKEN)

    # Clusters whose session still has the former token say nothing about the present one.
    case.management.remove(SECRETS, "own", OWN)
    for _ in range(6):
        case.reject(first)
        case.clock.pass_time(5)
        await case.reconcile()
        assert case.access().token == second.token
    await live([case], 1200)
    assert case.issuer.unauthorized == 0


@pytest.mark.parametrize("wrong", ["a typo", None])
async def test_a_mistake_in_the_user_s_secret_does_not_end_access(
    monkeypatch: pytest.MonkeyPatch, wrong: str | None
) -> None:
    case = Renewing(monkeypatch)
    case.put_any()
    await live([case], 60)
    case.share(wrong or USER_TOKEN)
    if wrong is None:
        own = case.management.find("Secret", "own", OWN)
        assert own is not None
        case.management.put({**own, "data": {}})
    await live([case], 1800)
    assert case.condition_of()[:2] == ("False", "TokenNotRenewed")
    assert "could not be exchanged" in case.condition_of()[2]
    assert case.access().token != USER_TOKEN

    # The correction begins again, at once.
    case.issuer.users.add("another")
    case.share("another")
    before = case.access().token
    await case.reconcile()
    assert case.access().token != before
    assert case.condition_of()[0] == "True"


async def test_a_token_without_a_right_stays_in_use_after_a_401(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    token = case.access()
    case.issuer.errors["create token"] = Forbidden(403, "Forbidden", "may not create tokens")
    case.reject(token)
    await case.reconcile()
    assert (case.access().token, case.condition_of()[0]) == (token.token, "True"), "Harvester accepts it"
    case.clock.pass_time(420)
    case.clock.pass_time(await case.reconcile())
    assert case.access().token == token.token
    assert case.condition_of()[:2] == ("False", "TokenNotRenewed")
    case.issuer.errors.clear()
    await case.reconcile()
    assert case.access().token not in (token.token, USER_TOKEN)
    assert case.condition_of()[0] == "True"


@pytest.mark.parametrize("has_own", [True, False])
async def test_a_revoked_token_is_tried_until_there_is_another_and_clusters_do_not_change_sides(
    monkeypatch: pytest.MonkeyPatch, has_own: bool
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    token = case.access()
    bound = next(bound_secrets(case.issuer))
    case.issuer.remove(SECRETS, bound["metadata"]["name"], "accounts")
    # The user's credentials work, but not for an exchange.
    case.issuer.errors["create token"] = Forbidden(403, "Forbidden", "may not create tokens")
    if not has_own:
        case.management.remove(SECRETS, "own", OWN)
    case.reports.clear()
    for _ in range(20):
        case.reject(token)
        assert await case.reconcile() <= 120
        used = case.management.find("Secret", case.key().name, OWN)
        assert used is not None, "clusters are never sent to a Secret that does not exist"
        assert case.access().token == (USER_TOKEN if has_own else token.token)
        case.clock.pass_time(5)
    assert len(case.reports) == has_own
    assert 2 <= case.issuer.unauthorized <= 8, "not one for each cluster"

    case.issuer.errors.clear()
    case.share(USER_TOKEN)
    case.clock.pass_time(10)
    await case.reconcile()
    assert case.access().token not in (USER_TOKEN, token.token)
    assert case.condition_of()[0] == "True"


async def test_a_harvester_that_rejects_everything_for_a_while_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    token = case.access()
    case.reports.clear()
    case.issuer.outage = Unauthorized(401, "Unauthorized", "Unauthorized")
    for _ in range(6):
        case.reject(token)
        await case.reconcile()
        case.clock.pass_time(10)
    assert (case.access().token, case.reports) == (token.token, [])
    assert case.condition_of()[:2] == ("False", "TokenNotRenewed")


async def test_after_a_restart_clusters_use_a_valid_token_while_it_is_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    token, during = case.access().token, []
    case.clock.pass_time(420)
    case.restart()
    issue = case.issuer.issue

    def answer(*words: Any) -> Obj:
        during.append(case.access().token)
        return issue(*words)

    monkeypatch.setattr(case.issuer, "issue", answer)
    await case.reconcile()
    assert during == [token]
    assert case.access().token != token


@pytest.mark.parametrize("error", [Forbidden(403, "Forbidden", "may not create tokens"), DOWN])
async def test_without_an_exchange_clusters_use_the_user_s_secret(
    monkeypatch: pytest.MonkeyPatch, error: RequestError
) -> None:
    case = Renewing(monkeypatch)
    case.issuer.errors["create token"] = cast("Any", error)
    assert await case.reconcile() == 60
    assert case.access().token == USER_TOKEN
    assert case.condition_of()[:2] == ("False", "TokenNotExchanged")
    assert str(error) in case.condition_of()[2]
    assert case.kept is not None
    assert "data" not in case.kept
    # It is deleted with the identity.
    case.renew_with()
    await case.reconcile()
    await case.reconcile()
    assert case.kept is None


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", "of Harvester"), KeyError("context")])
async def test_whatever_an_exchange_meets_clusters_get_credentials(
    monkeypatch: pytest.MonkeyPatch, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    case = Renewing(monkeypatch)
    case.issuer.errors["create token"] = cast("Any", error)
    assert await case.reconcile() == 60
    assert case.access().token == USER_TOKEN
    assert case.condition_of()[:2] == ("False", "TokenNotExchanged")
    assert ("KeyError" if isinstance(error, KeyError) else "refused: of Harvester") in case.condition_of()[2]
    assert "'context'" not in caplog.text, "the message of the exception may have a credential"


async def test_a_provider_without_the_right_to_keep_tokens_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    case.management.errors["create Secret"] = Forbidden(403, "Forbidden", "cannot create secrets in caphv-system")
    await case.reconcile()
    assert case.access().token == USER_TOKEN
    assert "refused: cannot create secrets in caphv-system" in case.condition_of()[2]
    assert case.issuer.issued == 0, "a token that is not kept could not be revoked"


async def test_nothing_is_written_without_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    case.renew_with()
    case.management.requests.clear()
    await case.reconcile()
    assert (case.management.requests, case.issuer.issued, case.access().token) == ([], 0, USER_TOKEN)


@pytest.mark.parametrize("was_here", [False, True])
async def test_what_another_provider_renews_is_left_to_it(monkeypatch: pytest.MonkeyPatch, was_here: bool) -> None:
    """Its Secrets are in its own namespace, and so are those of the identity."""
    case = Renewing(monkeypatch)
    if was_here:
        await case.reconcile()
    identity = case.management.find("HarvesterClusterIdentity", NAME)
    assert identity is not None
    spec = {**identity["spec"], "secretRef": {"name": "own", "namespace": "caphv-other"}}
    case.management.put({**identity, "spec": spec})
    for _ in range(3):
        await case.reconcile()
    # What this provider has reported and issued has ended.
    assert case.condition_of() == ("", "", "")
    assert case.kept is None
    assert list(bound_secrets(case.issuer)) == []

    theirs = {"type": "TokenRenewed", "status": "True", "reason": "TokenRenewed", "message": "theirs"}
    identity = case.management.find("HarvesterClusterIdentity", NAME)
    assert identity is not None
    case.management.put({**identity, "status": {"conditions": [theirs], "token": {"serviceAccount": "a/b"}}})
    case.management.requests.clear()
    await case.reconcile()
    assert (case.management.requests, case.condition_of()[2]) == ([], "theirs")


async def test_an_exchange_that_is_refused_is_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one applies all roles on Harvester. The renewal of a token is not late for it."""
    case = Renewing(monkeypatch)
    case.put_any()
    case.issuer.errors["create token"] = Forbidden(403, "Forbidden", "may not create tokens")
    waits = []
    for _ in range(6):
        waits.append(await case.reconcile())
        before = len(case.issuer.requests)
        assert await case.reconcile() == waits[-1], "events change nothing"
        assert len(case.issuer.requests) == before
        case.clock.pass_time(waits[-1])
    assert waits == [60, 120, 240, 480, 600, 600]

    case.issuer.errors.clear()
    await case.reconcile()
    case.share("a typo")
    before = len(case.issuer.requests)
    await live([case], 1800)
    assert case.issuer.unauthorized < 20
    assert len(case.issuer.requests) == before


def test_no_identity_is_in_the_name_of_a_namespace() -> None:
    renewed = ClusterIdentities(cast("Any", None), OWN).renewed
    assert renewed.identity_of(renewed.key_of(NAME)) == NAME
    assert renewed.identity_of(Key("team", KEPT)) == "", "a tenant's Secret has no meaning"


async def test_credentials_of_a_copied_cloud_credential_are_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    secret = case.management.find("Secret", "own", OWN)
    assert secret is not None
    data = {"harvestercredentialConfig-kubeconfigContent": secret["data"]["kubeconfig"]}
    case.management.put({**secret, "data": data})
    await case.reconcile()
    assert case.condition_of()[:2] == ("True", "TokenRenewed")
    assert case.access().token != USER_TOKEN
