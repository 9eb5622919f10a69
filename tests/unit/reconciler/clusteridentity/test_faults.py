"""What clocks, outages, hostile servers and mistakes of users do to renewal: access lasts, and requests stay few."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from caphv.api.object import SECRETS, Key, Obj
from caphv.runtime.errors import Forbidden, Unauthorized
from reconciler.clusteridentity import attempt
from tests.support.reconciler.renewing import ACCOUNT, DOWN, KEPT, NAME, OWN, Renewing, live
from tests.support.reconciler.tokenissuer import USER_TOKEN, bound_secrets, encoded

pytestmark = pytest.mark.unit


def lose(case: Renewing) -> None:
    """An administrator of Harvester revokes the token; the user's credentials work, but not for an exchange."""
    bound = next(bound_secrets(case.issuer))
    case.issuer.remove(SECRETS, bound["metadata"]["name"], "accounts")
    case.issuer.errors["create token"] = Forbidden(403, "Forbidden", "may not create tokens")


@pytest.mark.parametrize(
    "change", [{"serviceAccount": {**ACCOUNT, "targetNamespaces": ["vms", "more"]}}, {"server": "https://other"}]
)
async def test_a_change_of_the_identity_that_cannot_be_exchanged_costs_no_access(
    monkeypatch: pytest.MonkeyPatch, change: Obj
) -> None:
    """After the exchange the user's token may end and its Secret be deleted (docs/tasks/identities.md)."""
    case = Renewing(monkeypatch)
    case.put_any()
    await live([case], 60)
    case.issuer.users.clear()
    case.management.remove(SECRETS, "own", OWN)
    case.renew_with(**{"expirationSeconds": 600, "serviceAccount": ACCOUNT, **change})
    await case.reconcile()
    assert case.key() == Key(OWN, KEPT)
    assert case.condition_of()[:2] == ("False", "TokenNotRenewed")
    await live([case], 1800)
    assert case.issuer.unauthorized == 0


async def test_a_token_that_is_lost_stays_out_of_use_while_its_server_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    lose(case)
    case.reject(case.access())
    await case.reconcile()
    assert case.access().token == USER_TOKEN
    accept = case.issuer.check

    def check(token: str) -> None:
        if token != USER_TOKEN:
            raise DOWN  # the virtual address, while Rancher's proxy answers
        accept(token)

    monkeypatch.setattr(case.issuer, "check", check)
    case.reports.clear()
    case.clock.pass_time(10)
    await case.reconcile()
    assert (case.access().token, case.reports) == (USER_TOKEN, [])


async def test_an_exchange_that_is_refused_after_a_401_is_tried_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    lose(case)
    case.reject(case.access())
    before = len(case.issuer.requests)
    for _ in range(30):
        case.reject(case.access())
        case.clock.pass_time(min(10, await case.reconcile()))
    # Each exchange applies all roles: 21 requests here, thousands with many namespaces.
    assert len(case.issuer.requests) - before < 100


async def test_a_401_that_lasts_does_not_replace_the_token_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three API servers rejects all tokens; each replacement opens a new session for all clusters."""
    case = Renewing(monkeypatch)
    await case.reconcile()
    for _ in range(720):
        case.reject(case.access())
        await case.reconcile()
        case.clock.pass_time(5)
    assert case.issuer.issued < 30


async def test_a_clock_that_is_set_back_does_not_stop_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    case.reject(case.access())
    await case.reconcile()
    case.clock.pass_time(-3600)
    case.reject(case.access())
    assert await case.reconcile() <= 600


@pytest.mark.parametrize("step", [3600, -3600])
async def test_a_clock_that_is_set_right_costs_no_access(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The token was issued while the provider's clock was an hour slow, or fast; the user's token has ended."""
    case = Renewing(monkeypatch, skew=step)
    case.put_any()
    await case.reconcile()
    case.issuer.users.clear()
    case.clock.pass_time(step)
    case.issuer.skew = timedelta(0)
    await live([case], 1800)  # a request that meets a 401 raises
    assert case.access().token != USER_TOKEN


async def test_without_the_right_to_write_the_secret_no_token_is_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    case.management.errors["patch Secret"] = Forbidden(403, "Forbidden", "cannot patch secrets")
    for _ in range(10):
        case.clock.pass_time(await case.reconcile())
    assert case.issuer.issued == 0


async def test_an_identity_does_not_exchange_a_token_that_the_provider_has_issued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each exchange writes the Secret, whose event begins the next one."""
    case = Renewing(monkeypatch)
    await case.reconcile()
    identity = case.management.find("HarvesterClusterIdentity", NAME)
    assert identity is not None
    spec = {"secretRef": {"name": KEPT, "namespace": OWN}, "tokenRenewal": {"expirationSeconds": 600}}
    case.management.put({**identity, "spec": {**identity["spec"], **spec}})
    await case.reconcile()
    versions = set()
    for _ in range(5):
        await case.reconcile()
        assert case.kept is not None
        versions.add(case.kept["metadata"]["resourceVersion"])
    assert len(versions) == 1


async def test_a_token_of_another_account_than_was_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    start = int(case.clock.now.timestamp())
    claims = {"sub": "system:serviceaccount:a:\x1b[31m" + "x" * 600, "iat": start, "exp": start + 600}
    monkeypatch.setattr(case.issuer, "issue", lambda *_: {"status": {"token": encoded(claims)}})
    monkeypatch.setattr(case.issuer, "check", lambda _: None)
    await case.reconcile()
    assert case.condition_of()[:2] == ("False", "TokenNotExchanged")


async def test_tokens_of_a_second_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    issue = case.issuer.issue
    monkeypatch.setattr(case.issuer, "issue", lambda path, spec: issue(path, {**spec, "expirationSeconds": 1}))
    for _ in range(60):
        case.clock.pass_time(min(1.0, await case.reconcile()))
    assert len(case.management.requests) < 20


async def test_an_exchange_that_never_ends_leaves_clusters_their_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller cancels a reconcile after 300 s."""
    monkeypatch.setattr(attempt, "EXCHANGE_SECONDS", 0.1)
    monkeypatch.setattr(attempt, "REQUEST_SECONDS", 0.1)
    case = Renewing(monkeypatch)

    async def never(*_: Any, **__: Any) -> Obj:
        await asyncio.sleep(60)
        return {}

    monkeypatch.setattr(case.issuer, "get", never)
    async with asyncio.timeout(1):
        await case.reconcile()
    assert case.access().token == USER_TOKEN
    assert case.condition_of()[:2] == ("False", "TokenNotExchanged")


async def test_finalizers_of_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    kept = case.kept
    assert kept is not None
    metadata = {**kept["metadata"], "finalizers": [*kept["metadata"]["finalizers"], "backup.example.com/hold"]}
    case.management.put({**kept, "metadata": metadata})
    case.clock.pass_time(420)
    await case.reconcile()
    assert case.kept is not None
    assert "backup.example.com/hold" in case.kept["metadata"]["finalizers"]


async def test_a_revoked_token_stays_out_of_use_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    await case.reconcile()
    lose(case)
    case.reject(case.access())
    await case.reconcile()
    case.restart()
    case.issuer.outage = DOWN
    for _ in range(5):
        case.clock.pass_time(await case.reconcile())
        assert case.access().token == USER_TOKEN
    # Only its successor is used.
    case.issuer.outage = None
    case.issuer.errors.clear()
    case.clock.pass_time(await case.reconcile())
    await case.reconcile()
    assert case.access().token != USER_TOKEN
    assert case.condition_of()[0] == "True"


async def test_a_new_token_that_its_server_rejects_says_nothing_about_the_user_s_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clusters would otherwise stay on a token that was revoked."""
    case = Renewing(monkeypatch)
    await case.reconcile()
    revoked = case.access()
    bound = next(bound_secrets(case.issuer))
    case.issuer.remove(SECRETS, bound["metadata"]["name"], "accounts")
    accept = case.issuer.check

    def check(token: str) -> None:
        if token != USER_TOKEN:
            raise Unauthorized(401, "Unauthorized", "Unauthorized")
        accept(token)

    monkeypatch.setattr(case.issuer, "check", check)
    case.clock.pass_time(60)
    case.reject(revoked)
    await case.reconcile()
    assert case.access().token == USER_TOKEN
    assert "the token that Harvester has issued does not work at https://harvester" in case.condition_of()[2]


async def test_a_name_of_a_renewed_token_is_refused_for_the_user_s_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Renewing(monkeypatch)
    identity = case.management.find("HarvesterClusterIdentity", NAME)
    assert identity is not None
    spec = {**identity["spec"], "secretRef": {"name": "renewed-token.other", "namespace": OWN}}
    case.management.put({**identity, "spec": spec})
    await case.reconcile()
    assert case.issuer.issued == 0
    assert "secretRef.name: renewed-token.other is the name of a renewed token" in case.condition_of()[2]
