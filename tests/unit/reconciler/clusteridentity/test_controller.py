"""Renewal of tokens in simulated time: no request meets a token that has ended, whatever happens meanwhile."""

from __future__ import annotations

import base64
from typing import Any, cast

import pytest
import yaml

from caphv.api.identities import Refused
from caphv.api.names import RENEWED_TOKEN_FINALIZER
from caphv.api.object import NAMESPACES, SECRETS, Key, Obj, at
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES, HARVESTER_CLUSTERS
from caphv.runtime.errors import Conflict, Forbidden, RequestError, Unauthorized, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig, parse_kubeconfig, token_claims
from reconciler.clusteridentity.controller import TokenRenewer
from reconciler.remote.clusteridentities import ClusterIdentities, NotRead
from tests.support import kubeconfigs
from tests.support.reconciler.memorycase import MemoryCase, MemoryIdentities
from tests.support.reconciler.tokenissuer import USER_TOKEN, Clock, Issuer, IssuerClient, bound_secrets

pytestmark = pytest.mark.unit

NAME, OWN = "shared", "caphv-system"
KEPT = f"renewed-token.{NAME}"
ACCOUNT = {"name": "caphv", "namespace": "accounts", "targetNamespaces": ["vms"]}
DOWN = Unreachable("no answer")


class Renewing(MemoryCase):
    """An identity whose token is renewed, on a Harvester that honours the end of tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, skew: float = 0.0, **renewal: Any) -> None:
        super().__init__(monkeypatch, identityRef={"name": NAME})
        self.clock = Clock()
        self.issuer = Issuer(self.clock, skew)
        self.context.sessions = cast("Any", self)
        self.reports: list[str] = []
        self.readable.connect(self.reports.append, lambda _: None)
        self.share(USER_TOKEN)
        self.renew_with(expirationSeconds=600, serviceAccount=ACCOUNT, **renewal)
        self.restart()

    @property
    def readable(self) -> MemoryIdentities:
        return cast("MemoryIdentities", self.context.cluster_identities)

    def client(self, access: Kubeconfig) -> IssuerClient:
        """As `Sessions.client`."""
        return IssuerClient(self.issuer, access)

    def share(self, token: str) -> None:
        """Write the user's Secret."""
        config = kubeconfigs.with_cluster(server="https://harvester")
        config["users"][0]["user"] = {"token": token}
        data = {"kubeconfig": base64.b64encode(yaml.safe_dump(config).encode()).decode()}
        metadata = {"name": "own", "namespace": OWN}
        self.management.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    def renew_with(self, **renewal: Any) -> None:
        """Write the identity."""
        spec: Obj = {"secretRef": {"name": "own", "namespace": OWN}, "allowedNamespaces": {"list": ["*"]}}
        spec |= {"tokenRenewal": renewal} if renewal else {}
        kind = HARVESTER_CLUSTER_IDENTITIES
        metadata = {"name": NAME, "uid": "identity-uid"}
        self.management.put(
            {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec, "status": {}}
        )

    def restart(self) -> None:
        """Begin as a process does that knows nothing."""
        identities = MemoryIdentities(self.management)
        identities.connect(self.reports.append, lambda _: None)
        self.context.cluster_identities = identities
        self.renewer = TokenRenewer(self.context, self.clock)

    async def reconcile(self) -> float:  # type: ignore[override]
        result = await self.renewer.reconcile(Key("", NAME))
        wait = result.requeue_after if result else None
        return 1e9 if wait is None else wait

    def reject(self, access: Kubeconfig) -> None:
        """A cluster with this token meets a 401."""
        self.readable.renewed.rejected[NAME] = access.fingerprint

    def key(self) -> Key:
        """The Secret that a cluster gets."""
        key = self.readable.resolve(NAME, "team")
        assert isinstance(key, Key)
        return key

    def access(self) -> Kubeconfig:
        """The credentials that a cluster gets."""
        key = self.key()
        secret = self.management.find("Secret", key.name, key.namespace)
        assert secret is not None
        return parse_kubeconfig(base64.b64decode(secret["data"]["kubeconfig"]))

    async def ask(self) -> None:
        """A cluster sends a request to Harvester."""
        await self.client(self.access()).get(SECRETS, "any", "vms")

    def access_of_secret(self) -> str:
        """The token in the provider's Secret, whether it is in use or not."""
        assert self.kept is not None
        return parse_kubeconfig(base64.b64decode(self.kept["data"]["kubeconfig"])).token

    def condition_of(self) -> tuple[str, str, str]:
        identity = self.management.find("HarvesterClusterIdentity", NAME)
        (found,) = at(identity, "status", "conditions") or [{}]
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    @property
    def kept(self) -> Obj | None:
        return self.management.find("Secret", KEPT, OWN)

    def put_any(self) -> None:
        self.issuer.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "any", "namespace": "vms"}})


async def live(cases: list[Renewing], seconds: int, clusters: int = 1, step: int = 5) -> None:
    """Let time pass for identities and their clusters; each reconcile comes when it is due."""
    due = dict.fromkeys(range(len(cases)), 0.0)
    for moment in range(0, seconds, step):
        for number, case in enumerate(cases):
            if due[number] <= moment:
                due[number] = moment + await case.reconcile()
            for _ in range(clusters):
                await case.ask()
            case.clock.pass_time(step)


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
    case.clock.pass_time(150)
    waits.append(await case.reconcile())
    assert waits[0] > waits[1] >= 5, "attempts come faster towards the end"

    case.clock.pass_time(100)
    await case.reconcile()
    assert case.access().token == USER_TOKEN
    assert case.condition_of()[:2] == ("False", "TokenNotExchanged")
    assert case.reports[-1] == NAME
    case.issuer.outage = None
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
    second = case.access()
    assert second.token not in (first.token, USER_TOKEN)
    assert case.condition_of()[0] == "True"

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
    assert case.access().token == token.token
    assert case.condition_of()[:2] == ("False", "TokenNotRenewed")
    case.issuer.errors.clear()
    await case.reconcile()
    assert (case.access().token, case.condition_of()[0]) == (token.token, "True"), "Harvester has accepted it"


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
        assert await case.reconcile() <= 10
        used = case.management.find("Secret", case.key().name, OWN)
        assert used is not None, "clusters are never sent to a Secret that does not exist"
        assert case.access().token == (USER_TOKEN if has_own else token.token)
        case.clock.pass_time(5)
    assert len(case.reports) == has_own
    assert 5 <= case.issuer.unauthorized <= 12, "not one for each cluster"

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
        await case.reconcile()
        assert case.access().token != USER_TOKEN
        assert case.condition_of()[0] == "True"


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
    waits = [await case.reconcile() for _ in range(6)]
    assert waits == [60, 120, 240, 480, 600, 600]
    case.issuer.outage = DOWN
    assert await case.reconcile() == 60, "an outage ends without notice"

    case.issuer.outage = None
    case.issuer.errors.clear()
    await case.reconcile()
    case.share("a typo")
    before = len(case.issuer.requests)
    await live([case], 1800)
    assert case.issuer.unauthorized < 20
    assert len(case.issuer.requests) == before


async def test_a_process_that_dies_after_an_exchange_leaves_what_revokes_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Renewing(monkeypatch)
    case.management.errors["patch Secret"] = Unreachable("killed")
    await case.reconcile()
    assert case.issuer.issued == 1
    case.management.errors.clear()
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
    assert await case.reconcile() > 60
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
    for _ in range(3):
        assert await case.reconcile() <= 10 or case.kept is not None
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
