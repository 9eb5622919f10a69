"""Exchange credentials for a token that ends soon, renew it, and revoke it, on one Harvester.

A token is bound to a Secret on Harvester, which has no content: its deletion revokes the token. The
Secret records the HarvesterClusterIdentity for which it exists, and only this one deletes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import yaml

from caphv.api.names import OWNER_ANNOTATION, OWNER_UID_ANNOTATION
from caphv.api.object import (
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Key,
    Obj,
    Resource,
    annotations_of,
    at,
    key_of,
    text_at,
    uid_of,
)
from caphv.api.ownership import Owner, Ownership, ownership_of, record
from caphv.api.tokenrenewal import Renewal, bound_name
from caphv.api.tokens import token_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, Conflict, Forbidden, NotFound
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig, token_claims
from caphv.runtime.text import load_yaml
from reconciler.harvester import identityaccount
from reconciler.harvester.identityaccount import Account, api_server, published_ca
from reconciler.harvester.kubeconfig import kubeconfig, virtual_address

_INGRESS = Key("kube-system", "ingress-expose")
_RECORD_MANAGER = "caphv-token-renewal"
_MOST_CONFLICTS = 2
_RANCHER_PATH = "/k8s/clusters/"

Connect = Callable[[Kubeconfig], ApiClient]


class ExchangeError(Exception):
    """The credentials cannot be exchanged; the message says why, and never has a credential."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A kubeconfig as text, and what was read from it."""

    text: str = field(repr=False)
    access: Kubeconfig


@dataclass(frozen=True, slots=True)
class Token:
    """A renewed token.

    :param account: the ServiceAccount that has it
    :param seconds: how long it lives
    :param is_bound: whether the deletion of a Secret revokes it
    """

    credentials: Credentials
    account: Key
    seconds: int
    is_bound: bool


@contextlib.asynccontextmanager
async def connected(connect: Connect, access: Kubeconfig) -> AsyncIterator[ApiClient]:
    """Lend a client with these credentials. Raises `KubeconfigError`."""
    client = connect(access)
    try:
        yield client
    finally:
        await client.close()


def token_in(credentials: Credentials) -> Token:
    """Return the token in a kubeconfig. Raises `ExchangeError` if it is not a ServiceAccount's."""
    token = token_of(token_claims(credentials.access.token))
    if token is None:
        raise ExchangeError("the token is not a ServiceAccount's")
    return Token(credentials, token.account, token.seconds, bool(token.secret))


def bound_uid(credentials: Credentials) -> str:
    """Return the uid of the Secret whose deletion revokes a token, empty without one."""
    return text_at(token_claims(credentials.access.token), "kubernetes.io", "secret", "uid")


async def exchange(
    connect: Connect, credentials: Credentials, renewal: Renewal, owner: Owner
) -> Token:
    """Return a token for the credentials in the user's Secret.

    Creates the account that `renewal` names, and the Secret to which the token is bound. Raises
    `ExchangeError`, `KubeconfigError`, `RequestError`.

    :param connect: returns a client
    :param credentials: the credentials in the user's Secret
    :param owner: the record of the HarvesterClusterIdentity
    """
    async with connected(connect, credentials.access) as client:
        account, bound = await _ensure_account(client, credentials.access, renewal, owner)
        try:
            token = await _request_token(client, account, renewal.seconds, bound)
        except Forbidden as error:
            if renewal.account is not None:
                raise
            raise ExchangeError(
                f"the account may not issue tokens of its own: {error}; set "
                "spec.tokenRenewal.serviceAccount, for which the Secret needs the kubeconfig of an "
                "administrator once"
            ) from None
        text = await _kubeconfig(client, credentials, token, renewal, account)

    issued = _issued(text, renewal.seconds, insecure=credentials.access.insecure)
    # A token that does not work must not take the place of credentials that do.
    async with connected(connect, issued.credentials.access) as client:
        with contextlib.suppress(Forbidden):
            await client.get(NAMESPACES, "kube-system")
    return issued


async def renew(connect: Connect, credentials: Credentials, seconds: int) -> Token:
    """Return another token for the account of a renewed one, bound to the same Secret.

    Raises `ExchangeError` for another kind of token, and `RequestError`.
    """
    current = token_in(credentials)
    bound = at(token_claims(credentials.access.token), "kubernetes.io", "secret")
    async with connected(connect, credentials.access) as client:
        token = await _request_token(client, current.account, seconds, bound)
    access = replace(credentials.access, token=token)
    return _issued(_text(access), seconds, insecure=credentials.access.insecure)


async def revoke(connect: Connect, credentials: Credentials, owner: Owner) -> None:
    """Delete the Secret to which the tokens are bound, if it exists for this owner.

    Raises `RequestError`.

    :param credentials: the renewed token
    :param owner: the record of the HarvesterClusterIdentity
    """
    token, bound = token_in(credentials), bound_uid(credentials)
    name = bound_name(owner.uid, owner.management_cluster)
    async with connected(connect, credentials.access) as client:
        with contextlib.suppress(NotFound):
            secret = await client.get(SECRETS, name, token.account.namespace)
            is_bound = bound in ("", uid_of(secret))
            if is_bound and ownership_of(secret, owner) is Ownership.OURS:
                await _delete(client, secret)


async def _delete(client: ApiClient, secret: Obj) -> None:
    """Delete a Secret by its uid, again if something else has written to it meanwhile."""
    key = key_of(secret)
    for _ in range(_MOST_CONFLICTS):
        with contextlib.suppress(Conflict):
            await client.delete(SECRETS, key.name, key.namespace, uid=uid_of(secret))
            return
    await client.delete(SECRETS, key.name, key.namespace, uid=uid_of(secret))


async def _ensure_account(
    client: ApiClient, access: Kubeconfig, renewal: Renewal, owner: Owner
) -> tuple[Key, Obj | None]:
    """Return the account that gets the token, and what binds it; create what the identity names.

    Tokens of an account that may not create Secrets in its namespace are not bound.
    """
    if renewal.account is None:
        current = token_of(token_claims(access.token))
        if current is None:
            raise ExchangeError(
                "the credentials are not the token of a ServiceAccount: set "
                "spec.tokenRenewal.serviceAccount, so that the provider creates one with them"
            )
        try:
            return current.account, await _ensure_bound(client, current.account, owner)
        except Forbidden:
            return current.account, None

    key = renewal.account
    account = Account(key.name, key.namespace, renewal.targets)
    if key.namespace in renewal.targets:
        raise ExchangeError(
            f"spec.tokenRenewal.serviceAccount.namespace: {key.namespace} is a target namespace, "
            "in which the account may issue tokens of any ServiceAccount: choose another namespace"
        )
    if await _is_own(client, account, owner):
        # Of another manager than the other fields, so that `caphv identity create` keeps it.
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": key.namespace}}
        await client.apply(NAMESPACES, namespace, manager=identityaccount.MANAGER)
        metadata = {"name": key.name, "namespace": key.namespace, "annotations": record(owner)}
        obj = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
        await client.apply(SERVICE_ACCOUNTS, obj, manager=_RECORD_MANAGER)
    await identityaccount.create(client, account, client.server, lasting_token=False)
    bound = await _ensure_bound(client, key, owner)
    for resource, obj in _own_rights(key, owner, bound):
        await client.apply(resource, obj, manager=identityaccount.MANAGER)
    return key, bound


async def _is_own(client: ApiClient, account: Account, owner: Owner) -> bool:
    """Return whether an account belongs to the identity, or does not exist.

    Raises `ExchangeError` for another account, unless it has the very rights that the identity asks
    for: those of one identity must not extend those of another.
    """
    try:
        obj = await client.get(SERVICE_ACCOUNTS, account.name, account.namespace)
    except NotFound:
        return True
    recorded, expected = annotations_of(obj), record(owner)
    # A former identity of this name has left its account, because accounts are not deleted.
    if all(recorded.get(key) == expected[key] for key in expected.keys() - {OWNER_UID_ANNOTATION}):
        return True

    asked = identityaccount.rights_of(account, identityaccount.objects(account))
    if await identityaccount.existing_rights(client, account) == asked:
        return False
    former = recorded.get(OWNER_ANNOTATION, "").replace("//", " ")
    origin = f"was created for {former}" if former else "exists"
    raise ExchangeError(
        f"ServiceAccount {account.namespace}/{account.name} on Harvester {origin}, and has other "
        "rights than spec.tokenRenewal.serviceAccount asks for: name an account of its own there"
    )


def _own_rights(account: Key, owner: Owner, bound: Obj) -> list[tuple[Resource, Obj]]:
    """Return role and binding that let an account renew and revoke its own tokens only.

    Harvester deletes them with the Secret to which the tokens are bound.
    """
    dependent = {"apiVersion": SECRETS.api_version, "kind": SECRETS.kind, **bound}
    metadata = {
        "name": bound["name"],
        "namespace": account.namespace,
        "annotations": record(owner),
        "ownerReferences": [dependent],
    }
    own = {"apiGroups": [""], "resources": ["serviceaccounts/token"]}
    own |= {"resourceNames": [account.name], "verbs": ["create"]}
    secret = {"apiGroups": [""], "resources": ["secrets"]}
    secret |= {"resourceNames": [bound["name"]], "verbs": ["get", "delete"]}

    subject = {"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}
    reference = {"apiGroup": ROLES.group, "kind": ROLES.kind, "name": bound["name"]}
    role = {"metadata": metadata, "rules": [own, secret]}
    binding = {"metadata": metadata, "roleRef": reference, "subjects": [subject]}
    return [
        (resource, {"apiVersion": resource.api_version, "kind": resource.kind, **obj})
        for resource, obj in ((ROLES, role), (ROLE_BINDINGS, binding))
    ]


async def _ensure_bound(client: ApiClient, account: Key, owner: Owner) -> Obj:
    """Return name and uid of the Secret to which tokens are bound; create it if necessary."""
    name = bound_name(owner.uid, owner.management_cluster)
    metadata = {"name": name, "namespace": account.namespace, "annotations": record(owner)}
    try:
        secret = await client.create(SECRETS, {"metadata": metadata, "type": "Opaque"})
    except AlreadyExists:
        secret = await client.get(SECRETS, name, account.namespace)
        if ownership_of(secret, owner) is not Ownership.OURS:
            raise ExchangeError(
                f"Secret {account.namespace}/{name} on Harvester does not belong to "
                f"{owner.kind} {owner.name}: delete it"
            ) from None
    return {"name": name, "uid": uid_of(secret)}


async def _request_token(client: ApiClient, account: Key, seconds: int, bound: Any) -> str:
    """Return a new token of a ServiceAccount.

    :param seconds: how long it lives; Harvester may limit it
    :param bound: name and uid of the Secret to which it is bound, None for none
    """
    spec: Obj = {"expirationSeconds": seconds}
    if bound:
        spec["boundObjectRef"] = {
            "apiVersion": SECRETS.api_version,
            "kind": SECRETS.kind,
            "name": text_at(bound, "name"),
            "uid": text_at(bound, "uid"),
        }
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = SERVICE_ACCOUNTS.path(*account, "token")
    answer = await client.request("POST", path, resource=SERVICE_ACCOUNTS, body=request)
    token = text_at(answer, "status", "token")
    if not token:
        raise ExchangeError("Harvester has answered a TokenRequest without a token")
    return token


async def _kubeconfig(
    client: ApiClient, credentials: Credentials, token: str, renewal: Renewal, account: Key
) -> str:
    """Return the kubeconfig with a token, for a server that accepts tokens of ServiceAccounts."""
    access, server = credentials.access, renewal.server
    if not server and urlsplit(access.server).path.startswith(_RANCHER_PATH):
        # Rancher's proxy accepts Rancher's tokens only.
        service = None
        with contextlib.suppress(NotFound, Forbidden):
            service = await client.get(SERVICES, _INGRESS.name, _INGRESS.namespace)
        server = virtual_address(service) or api_server(access.server)
    if not server or server == access.server:
        return _text(replace(access, token=token))

    ca = await published_ca(client, account.namespace) or access.ca
    namespace = renewal.targets[0] if renewal.targets else access.namespace
    # What concerns the certificate of the former server does not concern this one.
    direct = Kubeconfig(
        server,
        namespace=namespace,
        ca=ca,
        token=token,
        proxy_url=access.proxy_url,
        proxy_of_environment=access.proxy_of_environment,
    )
    return _text(direct)


def _text(access: Kubeconfig) -> str:
    """Return a kubeconfig with a token and nothing else: the user's may have more credentials."""
    config = load_yaml(
        kubeconfig(
            server=access.server,
            ca=access.ca,
            token=access.token,
            namespace=access.namespace or "default",
        )
    )
    cluster = config["clusters"][0]["cluster"]
    if not access.ca:
        del cluster["certificate-authority-data"]
    if access.tls_server_name:
        cluster["tls-server-name"] = access.tls_server_name
    if access.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if access.proxy_url and not access.proxy_of_environment:
        cluster["proxy-url"] = access.proxy_url
    return yaml.safe_dump(config, sort_keys=False)


def _issued(text: str, longest: int, *, insecure: bool) -> Token:
    """Return the token in a kubeconfig. Raises `ExchangeError` unless it is one that ends.

    :param text: the kubeconfig
    :param longest: how many seconds the token lives at most; a server may claim anything
    :param insecure: whether the kubeconfig may leave the server unverified
    """
    try:
        access = parse_kubeconfig(text, allow_insecure=insecure)
    except KubeconfigError as error:
        raise ExchangeError(f"Harvester has issued a token that cannot be used: {error}") from None
    token = token_in(Credentials(text, access))
    if not token.seconds:
        raise ExchangeError("Harvester has issued a token that states no end")
    return replace(token, seconds=min(token.seconds, longest))
