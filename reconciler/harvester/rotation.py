"""Create another token for the account of an identity, and revoke the former token."""

from __future__ import annotations

import base64
import re
from typing import Any

import yaml

from caphv.api.names import SERVICE_ACCOUNT_ANNOTATION, SERVICE_ACCOUNT_TOKEN_TYPE
from caphv.api.object import SECRETS, Key, annotations_of, uid_of
from caphv.api.tokens import ServiceAccountToken
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, NotFound
from caphv.runtime.text import load_yaml
from reconciler.harvester.accountobjects import token_secret
from reconciler.harvester.identityaccount import AccountError, expiring_token, wait_for_token

_NUMBERED = re.compile(r"(.*)-([1-9]\d{0,5})")


def _named(entries: list[Any], name: str) -> dict[str, Any]:
    """Return the first entry of a kubeconfig with a name, which exists in a valid one."""
    return next(entry for entry in entries if isinstance(entry, dict) and entry.get("name") == name)


def next_name(secret: str) -> str:
    """Return the name of the Secret for the next token: `caphv-token-2` after `caphv-token`.

    The name depends only on the present one, so that an interrupted rotation continues with the
    Secret that it has created.
    """
    match = _NUMBERED.fullmatch(secret)
    return f"{match[1]}-{int(match[2]) + 1}" if match else f"{secret}-2"


async def new_token(client: ApiClient, current: ServiceAccountToken, seconds: int) -> str:
    """Return another token of the same account.

    Raises `AccountError`, `ApiError`, `Unreachable`.

    :param current: the token in use
    :param seconds: for how long the new token is valid; 0 for a token that never expires
    """
    if seconds:
        return await expiring_token(client, current.account, seconds)

    key = Key(current.account.namespace, next_name(current.secret))
    try:
        await client.create(SECRETS, token_secret(key.namespace, current.account.name, key.name))
    except AlreadyExists:
        # An interrupted rotation has created it, unless another account uses the name.
        existing = await client.get(SECRETS, key.name, key.namespace)
        if annotations_of(existing).get(SERVICE_ACCOUNT_ANNOTATION) != current.account.name:
            msg = (
                f"Secret {key} on Harvester exists and holds no token of ServiceAccount "
                f"{current.account}: delete it"
            )
            raise AccountError(msg) from None

    secret = await wait_for_token(client, key)
    return base64.b64decode(secret["data"]["token"]).decode()


async def delete_token(client: ApiClient, account: Key, name: str) -> bool:
    """Delete a Secret with a token of an account, which revokes the token.

    Returns whether the Secret existed. Raises `ApiError`.
    """
    try:
        secret = await client.get(SECRETS, name, account.namespace)
        is_of_account = annotations_of(secret).get(SERVICE_ACCOUNT_ANNOTATION) == account.name
        if secret.get("type") != SERVICE_ACCOUNT_TOKEN_TYPE or not is_of_account:
            return False
        await client.delete(SECRETS, name, account.namespace, uid=uid_of(secret))
    except NotFound:
        return False
    return True


def with_token(kubeconfig: bytes, token: str) -> str:
    """Return a valid kubeconfig with another token for its current user."""
    config: dict[str, Any] = load_yaml(kubeconfig.decode())
    # Other entries may be incomplete. The first of several with one name counts, as for kubectl.
    context = _named(config["contexts"], config["current-context"])["context"]
    _named(config["users"], context["user"])["user"] = {"token": token}
    return yaml.safe_dump(config, sort_keys=False)
