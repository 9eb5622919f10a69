"""Which identities lead where, and when they end."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from datetime import timedelta

import pytest
from rich.console import Console

from caphv.api.identities import cluster_identity, describe
from caphv.api.object import Key, Obj, key_of
from caphv.api.tokenrenewal import issued_at
from caphv.runtime.kubeconfig import Kubeconfig
from commands.output import identities
from operations.read.accounts import Account
from operations.read.objects import Unseen
from operations.status.identities import Identity, identities_of, unused_secrets
from tests.support.clusters import NOW, Builder, condition


def account(days: float | None) -> Account:
    """An account whose token ends in some days."""
    claims = json.dumps({"exp": (NOW + timedelta(days=days)).timestamp()} if days is not None else {}).encode()
    token = f"a.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c"
    return Account(Key("team", "identity"), Kubeconfig("https://harvester:6443", token=token))


def only(found: tuple[Identity, ...]) -> Identity:
    (identity,) = found
    return identity


@pytest.mark.parametrize(
    ("days", "state", "ends"),
    [
        (90, "valid", "2027-02-20T12:00:00Z"),
        (3, "expiring", "2026-11-25T12:00:00Z"),
        (-1, "expired", "2026-11-21T12:00:00Z"),
        (0, "expired", "2026-11-22T12:00:00Z"),
        (None, "valid", ""),
    ],
)
def test_an_identity_says_when_it_ends(days: float | None, state: str, ends: str) -> None:
    identity = only(identities_of([Builder().harvester_cluster], [account(days)], [], NOW))
    assert (identity.state, identity.ends, identity.wrong) == (state, ends, state != "valid")
    assert (identity.secret, identity.server) == ("team/identity", "https://harvester:6443")


@pytest.mark.parametrize(("minutes", "state"), [(0, "valid"), (40, "valid"), (55, "expiring")])
def test_a_token_that_the_provider_renews_is_valid_until_it_is_overdue(minutes: int, state: str) -> None:
    renewed = replace(account(0.04), renewed=issued_at(NOW, 3600, "source", "scope"))
    now = NOW + timedelta(minutes=minutes)
    identity = only(identities_of([Builder().harvester_cluster], [renewed], [], now))
    assert (identity.state, identity.renewed, identity.wrong) == (state, True, state != "valid")
    assert identity.ends.startswith("2026-11-22T12:59:")
    screen = io.StringIO()
    identities.show(Console(file=screen, width=200), [identity])
    assert f"{identity.ends} renewed" in screen.getvalue()


@pytest.mark.parametrize(("days", "state"), [(None, "rejected"), (90, "rejected"), (-1, "expired")])
def test_an_identity_that_harvester_rejects_is_not_valid(days: float | None, state: str) -> None:
    """A token that was revoked on Harvester says nothing about it itself."""
    rejected, other = Builder("shop").harvester_cluster, Builder("bank").harvester_cluster
    rejected["status"]["conditions"] = [
        condition("HarvesterConnectionReady", "False", "HarvesterAuthenticationFailed", "401")
    ]
    identity = only(identities_of([rejected, other], [account(days)], [], NOW))
    assert (identity.state, identity.wrong) == (state, True)
    identities.show(Console(file=io.StringIO()), [identity])

    # Nothing has updated the condition since then.
    rejected["status"]["conditions"].append(condition("Paused", "True"))
    assert only(identities_of([rejected, other], [account(90)], [], NOW)).state == "valid"


def test_a_cluster_that_may_not_use_an_identity_is_none_of_its_users() -> None:
    allowed, refused = Builder("shop").harvester_cluster, Builder("bank").harvester_cluster
    refused["metadata"]["namespace"] = "others"
    shared = {"name": "shared"}
    for obj in (allowed, refused):
        obj["spec"] = {"identityRef": shared}
    key = cluster_identity("shared")
    usable = replace(account(90), identity=key, refused=frozenset({"others"}))
    why = "does not allow namespace others"
    first, second = identities_of([allowed, refused], [usable], [Unseen(describe(key), why)], NOW)
    assert (first.state, first.clusters) == ("valid", ("team/shop",))
    assert (second.state, second.clusters, second.error) == ("unusable", ("others/bank",), why)


def test_clusters_that_share_an_identity_are_listed_with_it() -> None:
    clusters = [Builder("shop").harvester_cluster, Builder("bank").harvester_cluster]
    assert only(identities_of(clusters, [account(90)], [], NOW)).clusters == ("team/bank", "team/shop")


def test_an_identity_that_cannot_be_read_says_why() -> None:
    unseen = [Unseen("identity Secret team/identity", "secrets is forbidden", forbidden=True)]
    identity = only(identities_of([Builder().harvester_cluster], [], unseen, NOW))
    assert (identity.state, identity.error, identity.wrong) == ("unusable", "secrets is forbidden", True)


def test_an_identity_that_no_cluster_uses_is_listed_and_not_wrong() -> None:
    for days, state in ((90, "unused"), (-1, "expired")):
        identity = only(identities_of([], [account(days)], [], NOW, [Key("team", "identity")]))
        assert (identity.state, identity.clusters, identity.wrong) == (state, (), False)


def test_secrets_with_a_kubeconfig_are_identities() -> None:
    def secret(name: str, key: str = "kubeconfig", kind: str = "Opaque") -> Obj:
        return {"metadata": {"name": name, "namespace": "team"}, "type": kind, "data": {key: "eA=="}}

    secrets = [
        secret("used"),
        secret("spare"),
        secret("shop", "value"),
        secret("other", kind="cluster.x-k8s.io/secret"),
    ]
    assert [key_of(obj).name for obj in unused_secrets(secrets, {Key("team", "used")})] == ["spare"]


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({"sub": "system:serviceaccount:a:b", "kubernetes.io/serviceaccount/secret.name": "t"}, "never"),
        ({}, " -  "),
        ({"exp": (NOW + timedelta(days=90)).timestamp()}, "2027-02-20T12:00:00Z"),
    ],
)
def test_the_end_of_credentials_is_a_time_or_words(claims: dict[str, object], text: str) -> None:
    encoded = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    access = Kubeconfig("https://harvester:6443", token=f"a.{encoded}.c")
    found = identities_of([Builder().harvester_cluster], [Account(Key("team", "identity"), access)], [], NOW)
    out = Console(file=io.StringIO(), width=200, no_color=True)
    identities.show(out, found)
    assert isinstance(out.file, io.StringIO)
    assert text in out.file.getvalue().splitlines()[1]
