"""Another token of an account: its Secret, the end of the former one, and its place in a kubeconfig."""

from __future__ import annotations

from typing import Any, cast

import pytest
import yaml

from caphv.api.object import SECRETS, Key, Obj
from caphv.api.tokens import ServiceAccountToken
from caphv.runtime.client import ApiClient
from reconciler.harvester import identityaccount
from reconciler.harvester.identityaccount import AccountError
from reconciler.harvester.rotation import delete_token, new_token, next_name, with_token
from tests.support.tokenserver import TokenServer

pytestmark = pytest.mark.unit

ACCOUNT = Key("caphv-system", "caphv")


def current(secret: str = "caphv-token") -> Any:
    return cast(ServiceAccountToken, type("Token", (), {"account": ACCOUNT, "secret": secret, "seconds": 0}))


def secret(name: str, account: str = "caphv", kind: str = "kubernetes.io/service-account-token") -> Obj:
    annotations = {"kubernetes.io/service-account.name": account}
    metadata = {"name": name, "namespace": ACCOUNT.namespace, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind}


@pytest.mark.parametrize(
    ("former", "following"),
    [
        ("caphv-token", "caphv-token-2"),
        ("caphv-token-2", "caphv-token-3"),
        ("caphv-token-9", "caphv-token-10"),
        ("caphv-token-02", "caphv-token-02-2"),
        ("token-1234567", "token-1234567-2"),
    ],
)
def test_secrets_are_numbered(former: str, following: str) -> None:
    assert next_name(former) == following


async def test_lasting_token_gets_a_secret_once() -> None:
    server = TokenServer()
    for _ in range(2):  # an interrupted rotation continues with the Secret that it made
        assert await new_token(cast(ApiClient, server), current(), 0) == "token of caphv-token-2"
    assert [obj["metadata"]["name"] for obj in server.stored(SECRETS)] == ["caphv-token-2"]


async def test_secret_of_another_account_is_not_used() -> None:
    server = TokenServer(secret("caphv-token-2", "another"))
    with pytest.raises(AccountError):
        await new_token(cast(ApiClient, server), current(), 0)


async def test_token_that_expires_has_no_secret() -> None:
    server = TokenServer()
    assert await new_token(cast(ApiClient, server), current(), 3600) == "expiring-1"
    assert server.issued == [("/api/v1/namespaces/caphv-system/serviceaccounts/caphv/token", 3600)]
    assert server.stored(SECRETS) == []


async def test_secret_that_is_never_filled_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identityaccount, "_TOKEN_SECONDS", 0.1)
    server = TokenServer()
    server.fills = False
    with pytest.raises(AccountError):
        await new_token(cast(ApiClient, server), current(), 0)


@pytest.mark.parametrize(
    ("found", "deleted"),
    [
        (secret("old"), True),
        (secret("old", "another"), False),
        (secret("old", kind="Opaque"), False),
        (secret("new"), False),
    ],
    ids=["its own", "of another account", "no token", "does not exist"],
)
async def test_only_tokens_of_the_account_are_deleted(found: Obj, deleted: bool) -> None:
    server = TokenServer(found)
    assert await delete_token(cast(ApiClient, server), ACCOUNT, "old") is deleted
    assert (server.stored(SECRETS) == []) is deleted


def test_token_replaces_all_credentials_of_the_current_user_alone() -> None:
    config = {
        "current-context": "b",
        "contexts": [
            {"name": "a", "context": {"user": "other", "cluster": "x"}},
            {"name": "b", "context": {"user": "me", "cluster": "x"}},
        ],
        "clusters": [{"name": "x", "cluster": {"server": "https://h"}}],
        "users": [
            {"name": "other", "user": {"token": "theirs"}},
            {"name": "me", "user": {"token": "old", "client-key-data": "x"}},
        ],
    }
    found = yaml.safe_load(with_token(yaml.safe_dump(config).encode(), "new"))
    assert found["users"] == [{"name": "other", "user": {"token": "theirs"}}, {"name": "me", "user": {"token": "new"}}]
    assert {name: found[name] for name in found if name != "users"} == {
        name: config[name] for name in config if name != "users"
    }
