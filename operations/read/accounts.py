"""Read the credentials that a management cluster holds: identity Secrets and kubeconfigs.

Identities are untrusted input, here as in the provider. Kubeconfigs that run programs or read files
are refused. Kubeconfigs that do not verify their server are refused unless the user allows them,
because an attacker who answers in its place would get a token that may create VMs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple

from caphv.api.identities import (
    KUBECONFIG_KEY,
    Refused,
    cluster_identity,
    decode_kubeconfig,
    depends_on_labels,
    describe,
    identity_of,
    is_cluster_identity,
    kubeconfig_key,
    resolve,
    secret_of,
)
from caphv.api.names import ConditionType
from caphv.api.object import NAMESPACES, SECRETS, Key, Obj, at, key_of, labels_of, text_at
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.api.tokenrenewal import SECRET_TYPE, Issued, issued_of, renewal_of, secret_name
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound, RequestError
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig
from operations.read.management import list_all, unseen
from operations.read.objects import Unseen, condition_of

# A flag of the user holds for a whole command. It is not passed through all functions on the way.
_insecure_allowed = ContextVar("insecure_allowed", default=False)


@dataclass(frozen=True, slots=True)
class Account:
    """Credentials of one identity, and the target namespaces of the clusters that may use it.

    :param identity: the key that `caphv.api.identities.identity_of` gives clusters that name it
    :param refused: the namespaces of clusters that name it and may not use it
    :param renewed: record of a token that the provider renews, None for credentials of a user
    """

    identity: Key
    kubeconfig: Kubeconfig
    namespaces: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    renewed: Issued | None = None

    def serves(self, harvester_cluster: Obj) -> bool:
        """Return whether a HarvesterCluster names this identity, and may use it."""
        return (
            identity_of(harvester_cluster) == self.identity
            and namespace_of(harvester_cluster) not in self.refused
        )


class ReadAccounts(NamedTuple):
    """The identities that were read, and why others cannot be used."""

    accounts: list[Account]
    unseen: list[Unseen]


class TokenSecrets(NamedTuple):
    """The Secrets with a token, and those that could not be read."""

    sharing: list[str]
    unread: list[str]


@contextmanager
def allow_insecure() -> Iterator[None]:
    """Accept kubeconfigs that do not verify their server while the block lasts."""
    token = _insecure_allowed.set(True)
    try:
        yield
    finally:
        _insecure_allowed.reset(token)


async def read_accounts(
    client: ApiClient,
    harvester_clusters: Iterable[Obj],
    secrets: Mapping[Key, Obj] = MappingProxyType({}),
) -> ReadAccounts:
    """Read the identities of HarvesterClusters, by namespace and name.

    :param client: client of the management cluster
    :param harvester_clusters: the HarvesterClusters whose identities are read
    :param secrets: Secrets to use instead of those of the management cluster
    """
    users: dict[Key, list[Obj]] = {}
    for obj in harvester_clusters:
        users.setdefault(identity_of(obj), []).append(obj)

    results = await asyncio.gather(
        *(_read_account(client, key, users[key], secrets.get(key)) for key in sorted(users))
    )
    return ReadAccounts(
        [account for result in results for account in result.accounts],
        [item for result in results for item in result.unseen],
    )


async def _read_account(
    client: ApiClient, key: Key, clusters: list[Obj], secret_obj: Obj | None
) -> ReadAccounts:
    """Read one identity, and say why it cannot be used, or by which namespaces.

    :param client: client of the management cluster
    :param key: key of the identity
    :param clusters: the HarvesterClusters that name it
    :param secret_obj: its Secret, if the Secret of the management cluster does not count
    """
    try:
        permission = await read_permission(client, key, map(namespace_of, clusters))
    except RequestError as error:
        return ReadAccounts([], [unseen(describe(key), error)])
    except ValueError as error:  # of a name that cannot be one
        return ReadAccounts([], [Unseen(describe(key), str(error))])
    if permission.secret is None:
        return ReadAccounts([], [Unseen(describe(key), permission.why_none)])
    credentials = await _read_usable(client, permission, permission.secret, secret_obj)
    if isinstance(credentials, Unseen):
        return ReadAccounts([], [credentials])

    denied = permission.denied
    allowed = [obj for obj in clusters if namespace_of(obj) not in denied]
    targets = {str(target) for obj in allowed if (target := at(obj, "spec", "targetNamespace"))}
    hidden = [Unseen(describe(key), why) for why in denied.values()]
    account = Account(
        identity=key,
        kubeconfig=credentials.kubeconfig,
        namespaces=frozenset(targets),
        refused=frozenset(denied),
        renewed=credentials.renewed,
    )
    return ReadAccounts([account], hidden)


async def read_unused_identities(client: ApiClient, identities: Iterable[Obj]) -> ReadAccounts:
    """Read the credentials of HarvesterClusterIdentities that no cluster names.

    :param client: client of the management cluster
    :param identities: the HarvesterClusterIdentities
    """
    accounts = []
    hidden = []
    for obj in identities:
        key = cluster_identity(key_of(obj).name)
        secret = secret_of(obj)
        permission = Permission(key, secret, is_renewed=renewal_of(obj) is not None)
        credentials = await _read_usable(client, permission, secret)
        if isinstance(credentials, Unseen):
            hidden.append(credentials)
        else:
            accounts.append(Account(key, credentials.kubeconfig, renewed=credentials.renewed))
    return ReadAccounts(accounts, hidden)


async def _read_usable(
    client: ApiClient, permission: Permission, secret: Key, secret_obj: Obj | None = None
) -> Credentials | Unseen:
    """Read the credentials of an identity, or say why they cannot be used.

    :param client: client of the management cluster
    :param permission: the identity
    :param secret: its Secret
    :param secret_obj: the Secret, if that of the management cluster does not count
    """
    key = permission.identity
    try:
        if secret_obj:
            credentials = Credentials(kubeconfig_of(key, secret_obj), None)
        else:
            credentials = await read_credentials(client, permission, secret)
        # Unusable certificate data must raise here, where the name of the Secret is known.
        credentials.kubeconfig.connection()
    except NotFound as error:
        if is_cluster_identity(key):  # its Secret is missing
            return unseen(describe(key), error)
        why = "does not exist: create it with key kubeconfig, or correct the name"
        return Unseen(describe(key), why)
    except RequestError as error:
        return unseen(describe(key), error)
    except ValueError as error:  # of a kubeconfig, or of a name that is empty
        return Unseen(describe(key), str(error))
    return credentials


@dataclass(frozen=True, slots=True)
class Permission:
    """Which namespaces may use an identity.

    :param identity: the key of the identity
    :param secret: its Secret, None if no namespace may use it
    :param refused: by namespace why its clusters may not use the identity
    :param unread: by namespace why it is not known whether they may
    :param is_renewed: whether the provider is to renew its token
    :param problem: why the provider does not, empty if it does
    """

    identity: Key
    secret: Key | None
    refused: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    is_renewed: bool = False
    problem: str = ""

    @property
    def denied(self) -> dict[str, str]:
        """By namespace why its clusters get no credentials here: without proof they get none."""
        return {**self.refused, **self.unread}

    @property
    def why_none(self) -> str:
        """Why there is no Secret."""
        return "; ".join(self.denied.values()) or f"{describe(self.identity)} has no cluster"


async def read_permission(
    client: ApiClient, identity: Key, namespaces: Iterable[str], provider_namespace: str = ""
) -> Permission:
    """Return the Secret of an identity, and which of these namespaces may not use it.

    Raises `ApiError` and `Unreachable`. The provider decides about Secrets of other namespaces by
    their annotation, which is not read here.

    :param client: client of the management cluster
    :param identity: the key of the identity
    :param namespaces: the namespaces of the HarvesterClusters that name it
    :param provider_namespace: the only namespace whose Secrets the provider uses; empty to allow
        any, because users read with their own rights
    """
    if not is_cluster_identity(identity):
        return Permission(identity, identity)
    try:
        obj = await client.get(HARVESTER_CLUSTER_IDENTITIES, identity.name)
    except NotFound:
        obj = None

    secret = None
    refused = {}
    unread = {}
    for namespace in sorted(set(namespaces)):
        labels = None
        if obj and depends_on_labels(obj, namespace):
            try:
                labels = labels_of(await client.get(NAMESPACES, namespace))
            except (Forbidden, NotFound) as error:  # which say nothing about other namespaces
                unread[namespace] = f"labels of namespace {namespace} cannot be read: {error}"
                continue
        answer = resolve(identity.name, obj, namespace, labels, provider_namespace)
        if isinstance(answer, Refused):
            refused[namespace] = answer.message
        else:
            secret = answer
    is_renewed = obj is not None and renewal_of(obj) is not None
    condition = condition_of(obj, ConditionType.TOKEN_RENEWED) if obj and is_renewed else {}
    problem = str(condition.get("message") or "") if condition.get("status") == "False" else ""
    return Permission(
        identity=identity,
        secret=secret,
        refused=refused,
        unread=unread,
        is_renewed=is_renewed,
        problem=problem,
    )


class Credentials(NamedTuple):
    """Credentials of an identity.

    :param kubeconfig: what leads to Harvester
    :param renewed: record of a token that the provider renews; None for the user's credentials
    """

    kubeconfig: Kubeconfig
    renewed: Issued | None


async def read_credentials(client: ApiClient, permission: Permission, secret: Key) -> Credentials:
    """Return the credentials that clusters of an identity use.

    Raises what `read_kubeconfig` raises.

    :param secret: the user's Secret
    """
    if permission.is_renewed:
        key = Key(secret.namespace, secret_name(permission.identity.name))
        with suppress(NotFound, Forbidden, KubeconfigError):
            obj = await client.get(SECRETS, key.name, key.namespace)
            issued = issued_of(obj) if obj.get("type") == SECRET_TYPE else None
            if issued and issued.is_usable(datetime.now(UTC)):
                return Credentials(kubeconfig_of(key, obj), issued)
    return Credentials(await read_kubeconfig(client, secret), None)


async def without_refused(client: ApiClient, harvester_clusters: Iterable[Obj]) -> list[Obj]:
    """Return the HarvesterClusters without those that may not use the identity that they name.

    Where that is not known, they stay. Who may create a HarvesterCluster may name any identity.
    """
    users: dict[Key, list[Obj]] = {}
    for obj in harvester_clusters:
        users.setdefault(identity_of(obj), []).append(obj)

    allowed: list[Obj] = []
    for identity, objs in users.items():
        refused: Mapping[str, str] = {}
        with suppress(RequestError):
            refused = (await read_permission(client, identity, map(namespace_of, objs))).refused
        allowed.extend(obj for obj in objs if namespace_of(obj) not in refused)
    return allowed


async def secrets_of_cluster_identities(client: ApiClient) -> dict[Key, Key]:
    """Return the Secret of each HarvesterClusterIdentity; none if they may not be listed."""
    identities = await list_cluster_identities(client)
    return {cluster_identity(key_of(obj).name): secret_of(obj) for obj in identities}


async def list_cluster_identities(client: ApiClient) -> list[Obj]:
    """Return the HarvesterClusterIdentities; none if they may not be listed."""
    try:
        return await list_all(client, HARVESTER_CLUSTER_IDENTITIES)
    except (NotFound, Forbidden):
        return []


def namespace_of(obj: Obj) -> str:
    """Return the namespace of an object, empty if it has none."""
    return text_at(obj, "metadata", "namespace")


async def secrets_with_token(client: ApiClient, secrets: Iterable[Key], token: str) -> TokenSecrets:
    """Return the identity Secrets that hold a token.

    No Harvester is asked. A kubeconfig counts even if its certificates or its server cannot be
    used, because its token is valid nevertheless.
    """
    sharing = []
    unread = []
    for secret in sorted(secrets):
        try:
            with allow_insecure():
                kubeconfig = await read_kubeconfig(client, secret)
        except (NotFound, ValueError):
            # The Secret holds no usable token. An empty name and a bad kubeconfig raise ValueError.
            continue
        except RequestError:
            unread.append(str(secret))
            continue

        if kubeconfig.token == token:
            sharing.append(str(secret))
    return TokenSecrets(sharing, unread)


async def read_kubeconfig(
    client: ApiClient, secret: Key, field_name: str = KUBECONFIG_KEY
) -> Kubeconfig:
    """Read a kubeconfig in a Secret.

    It must verify its server unless in a block of `allow_insecure`. Raises `ApiError`,
    `Unreachable`, `KubeconfigError`.
    """
    return kubeconfig_of(
        secret, await client.get(SECRETS, secret.name, secret.namespace), field_name
    )


def kubeconfig_of(name: Key, secret: Obj, field_name: str = KUBECONFIG_KEY) -> Kubeconfig:
    """Return the kubeconfig in a Secret, or in a manifest that has it as text.

    A cloud credential of Rancher has it under its own key. Raises `KubeconfigError`.
    """
    key = field_name
    if field_name == KUBECONFIG_KEY:
        key = kubeconfig_key(secret) or field_name
    text = at(secret, "stringData", key)
    content = at(secret, "data", key)
    if not (text or content):
        raise KubeconfigError(f"Secret {name} has no key {key}")

    try:
        decoded = str(text).encode() if text else decode_kubeconfig(key, content or "")
    except (ValueError, TypeError):
        raise KubeconfigError(f"Secret {name}: key {key} is not base64") from None

    # The kubeconfig is parsed before it is refused, so that the message names the server.
    kubeconfig = parse_kubeconfig(decoded, allow_insecure=True)
    if kubeconfig.insecure and not _insecure_allowed.get():
        raise KubeconfigError(
            f"insecure-skip-tls-verify: credentials are not sent to {kubeconfig.server}, which "
            "this kubeconfig does not verify. Add certificate-authority-data, or, where the "
            "command has it, use --allow-insecure-identities"
        )
    return kubeconfig
