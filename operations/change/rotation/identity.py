"""Read the identity whose token is rotated, with the clusters and Secrets that depend on it."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field, replace
from typing import Any

from caphv.api import remedies
from caphv.api.identities import CLOUD_CREDENTIAL_KEY, identity_of, kubeconfig_key
from caphv.api.names import PREVIOUS_TOKEN_ANNOTATION
from caphv.api.object import SECRETS, Key, Obj, at
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.api.tokenrenewal import SECRET_TYPE
from caphv.api.tokens import ServiceAccountToken, token_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig, token_claims
from operations.read.accounts import (
    secrets_of_cluster_identities,
    secrets_with_token,
    without_refused,
)
from operations.read.management import list_all

CLIENT_OPTIONS: dict[str, Any] = {"name": "harvester", "user_agent": "caphv-cli", "timeout": 15}
"""Options of clients that use a token of the identity."""


class IdentityError(Exception):
    """The Secret holds no token that can be rotated."""


@dataclass(frozen=True, slots=True)
class RotatedIdentity:
    """An identity Secret with the clusters and other Secrets that depend on it."""

    key: Key
    secret: Obj
    content: bytes
    access: Kubeconfig
    token: ServiceAccountToken
    clusters: list[Obj] = field(default_factory=list)
    sharing: list[str] = field(default_factory=list)
    """Other identity Secrets with the same token."""
    unread: list[str] = field(default_factory=list)
    """Other identity Secrets that cannot be read, and may have the same token."""

    @property
    def previous(self) -> str:
        """Secret on Harvester that an interrupted rotation left, empty for none."""
        annotation = at(self.secret, "metadata", "annotations", PREVIOUS_TOKEN_ANNOTATION)
        # The annotation stays if a user puts the former token back, which is then in use.
        return "" if annotation == self.token.secret else str(annotation or "")


async def read_identity(client: ApiClient, key: Key) -> RotatedIdentity:
    """Read an identity, with the clusters and other identities that share its token.

    Raises `IdentityError`, `ApiError`, `Unreachable`.
    """
    identity = parse_identity(key, await client.get(SECRETS, key.name, key.namespace))

    # The account of a user may be limited to one namespace.
    try:
        clusters = await list_all(client, HARVESTER_CLUSTERS)
    except Forbidden:
        clusters = await list_all(client, HARVESTER_CLUSTERS, key.namespace)
    shared = await secrets_of_cluster_identities(client)
    named = [(obj, shared.get(identity_of(obj), identity_of(obj))) for obj in clusters]
    others = {*shared.values(), *(secret for _, secret in named)} - {key}
    sharing, unread = await secrets_with_token(client, others, identity.access.token)

    # A cluster that may not use the identity that it names never had the token.
    users = await without_refused(client, [obj for obj, secret in named if secret == key])
    return replace(identity, clusters=users, sharing=sharing, unread=unread)


def parse_identity(key: Key, secret: Obj) -> RotatedIdentity:
    """Return the identity of a Secret, without what depends on it. Raises `IdentityError`."""
    if secret.get("type") == SECRET_TYPE:
        raise IdentityError(
            f"Secret {key} has a token that the provider renews: name the Secret in "
            "spec.secretRef of the HarvesterClusterIdentity; to revoke the renewed token, delete "
            f"Secret {key}"
        )
    if kubeconfig_key(secret) == CLOUD_CREDENTIAL_KEY:
        raise IdentityError(
            f"Secret {key} is a cloud credential of Rancher, which renews and revokes its token "
            "itself: edit the cloud credential in Rancher"
        )

    try:
        content = base64.b64decode(at(secret, "data", "kubeconfig") or "")
        access = parse_kubeconfig(content)
    except (binascii.Error, KubeconfigError) as error:
        raise IdentityError(f"Secret {key}, key kubeconfig: {error}") from None

    token = token_of(token_claims(access.token))
    if token is None:
        command = remedies.NEW_IDENTITY(target="NAMESPACE", namespace=key.namespace, name=key.name)
        raise IdentityError(
            f"Secret {key} has no token of a ServiceAccount, which could be renewed; create an "
            f"account: {command}"
        )
    return RotatedIdentity(key, secret, content, access, token)
