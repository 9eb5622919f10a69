"""Exchange credentials for a token that ends soon, renew it, and revoke it, on one Harvester.

A token is bound to a Secret on Harvester, which has no content: its deletion revokes the token. The
Secret records the HarvesterClusterIdentity for which it exists, and only this one deletes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from caphv.api.names import OWNER_ANNOTATION, OWNER_CLUSTER_ANNOTATION, OWNER_UID_ANNOTATION
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
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
    text_at,
    uid_of,
)
from caphv.api.ownership import Owner, Ownership, ownership_of, record
from caphv.api.tokenrenewal import BOUND_PREFIX, SHORTEST_SECONDS, Renewal, bound_name
from caphv.api.tokens import token_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, Conflict, Forbidden, NotFound, RequestError
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig, token_claims
from caphv.runtime.listing import list_pages
from caphv.runtime.text import load_yaml
from reconciler.harvester import accountobjects, identityaccount
from reconciler.harvester.accountobjects import Account
from reconciler.harvester.identityaccount import published_ca
from reconciler.harvester.kubeconfig import api_server, kubeconfig, virtual_address

_INGRESS = Key("kube-system", "ingress-expose")
_MAX_CONFLICTS = 2
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
    :param bound: name of the Secret whose deletion revokes it, empty for none
    """

    credentials: Credentials
    account: Key
    seconds: int
    bound: str

    @property
    def is_bound(self) -> bool:
        """Whether the deletion of a Secret revokes it."""
        return bool(self.bound)


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
    return Token(credentials, token.account, token.seconds, token.secret)


def bound_uid(credentials: Credentials) -> str:
    """Return the uid of the Secret whose deletion revokes a token, empty without one."""
    return text_at(token_claims(credentials.access.token), "kubernetes.io", "secret", "uid")


async def exchange(
    connect: Connect,
    credentials: Credentials,
    renewal: Renewal,
    owner: Owner,
    current: Credentials | None = None,
) -> Token:
    """Return a token for the credentials in the user's Secret.

    Creates the account that `renewal` names, and the Secret to which the token is bound. Raises
    `ExchangeError`, `KubeconfigError`, `RequestError`.

    :param connect: returns a client
    :param credentials: the credentials in the user's Secret
    :param owner: the record of the HarvesterClusterIdentity
    :param current: the token that the identity has, None without one
    """
    async with connected(connect, credentials.access) as client:
        account, bound = await _ensure_account(client, credentials.access, renewal, owner)
        try:
            token = await _request_token(client, account, renewal.seconds, bound)
            text = await _kubeconfig(client, credentials, token, renewal, account)
            issued = _issued(text, account, renewal.seconds, insecure=credentials.access.insecure)
            # A token that does not work must not take the place of credentials that do.
            await _test(connect, issued.credentials)
        except (ExchangeError, KubeconfigError, RequestError) as error:
            if bound and bound["uid"] != (bound_uid(current) if current else ""):
                # The Secret binds no token in use. Its deletion revokes the token that failed, and
                # nothing else would delete the Secret.
                with contextlib.suppress(RequestError):
                    await _delete(client, Key(account.namespace, bound["name"]), bound["uid"])
            if isinstance(error, Forbidden) and renewal.account is None:
                raise ExchangeError(
                    f"the account may not issue tokens of its own: {error}; set "
                    "spec.tokenRenewal.serviceAccount, for which the Secret needs the kubeconfig "
                    "of an administrator once"
                ) from None
            raise
    return issued


async def probe(connect: Connect, credentials: Credentials) -> None:
    """Use credentials for a request that changes nothing. Raises `KubeconfigError`, `RequestError`.

    They may have no right to this request.
    """
    async with connected(connect, credentials.access) as client:
        with contextlib.suppress(Forbidden):
            await client.get(NAMESPACES, "kube-system")


async def _test(connect: Connect, credentials: Credentials) -> None:
    """Raise `ExchangeError` if a new token does not work, which says nothing about other ones."""
    try:
        await probe(connect, credentials)
    except RequestError as error:
        server = credentials.access.server
        raise ExchangeError(
            f"the token that Harvester has issued does not work at {server}: {error}; if this is "
            "not Harvester's own API server, set spec.tokenRenewal.server"
        ) from None


async def renew(connect: Connect, credentials: Credentials, seconds: int) -> Token:
    """Return another token for the account of a renewed one, bound to the same Secret.

    Raises `ExchangeError` for another kind of token, and `RequestError`.
    """
    current = token_in(credentials)
    bound = at(token_claims(credentials.access.token), "kubernetes.io", "secret")
    async with connected(connect, credentials.access) as client:
        token = await _request_token(client, current.account, seconds, bound)
    text = _text(replace(credentials.access, token=token))
    return _issued(text, current.account, seconds, insecure=credentials.access.insecure)


async def revoke(connect: Connect, credentials: Credentials, management_cluster: str) -> None:
    """Delete the Secret to which a token is bound, if this management cluster has created it.

    Raises `ExchangeError`, `KubeconfigError`, `RequestError`.

    :param credentials: the renewed token, which names the Secret and its uid
    """
    token = token_in(credentials)
    uid = bound_uid(credentials)
    key = Key(token.account.namespace, token.bound)
    if not uid or not key.name.startswith(BOUND_PREFIX):
        return
    async with connected(connect, credentials.access) as client:
        with contextlib.suppress(NotFound):
            secret = await client.get(SECRETS, key.name, key.namespace)
            owner = _recorded_identity(secret)
            # After `clusterctl move`, the token is that of a provider elsewhere.
            is_ours = owner is not None and owner.management_cluster == management_cluster
            if is_ours and uid_of(secret) == uid:
                await _delete(client, key, uid)


async def _delete(client: ApiClient, key: Key, uid: str) -> None:
    """Delete a Secret by its uid, again if something else has written to it meanwhile."""
    for _ in range(_MAX_CONFLICTS):
        with contextlib.suppress(Conflict):
            await client.delete(SECRETS, key.name, key.namespace, uid=uid)
            return
    await client.delete(SECRETS, key.name, key.namespace, uid=uid)


class _TokenHolder(NamedTuple):
    """A ServiceAccount, and name and uid of the Secret that binds its tokens; None for none."""

    account: Key
    bound: Obj | None


async def _ensure_account(
    client: ApiClient, access: Kubeconfig, renewal: Renewal, owner: Owner
) -> _TokenHolder:
    """Return the account that gets the token, and the Secret to which the token is bound.

    Creates the account that the identity names. Tokens of an account that may not create Secrets
    in its namespace are not bound.
    """
    if renewal.account is None:
        current = token_of(token_claims(access.token))
        if current is None:
            raise ExchangeError(
                "the credentials are not the token of a ServiceAccount: set "
                "spec.tokenRenewal.serviceAccount, so that the provider creates one with them"
            )
        bound = None
        with contextlib.suppress(Forbidden):
            bound = await _ensure_bound(client, current.account, owner)
        return _TokenHolder(current.account, bound)

    key = renewal.account
    account = Account(key.name, key.namespace, renewal.targets)
    try:
        await _claim(client, account, owner)
    except Conflict:
        # Its record shows that another identity has claimed it meanwhile.
        await _claim(client, account, owner)
    await identityaccount.create(client, account, client.server, lasting_token=False)
    bound = await _ensure_bound(client, key, owner)
    for resource, obj in _own_rights(key, owner, bound):
        await client.apply(resource, obj, manager=identityaccount.MANAGER)
    return _TokenHolder(key, bound)


async def _claim(client: ApiClient, account: Account, owner: Owner) -> None:
    """Create an account with the record of its identity, or check that it is the identity's own.

    Raises `ExchangeError` for an account of another identity, for one with other rights than the
    identity asks for, and if accounts could issue tokens of each other. `Conflict` means that
    another client has created or written it meanwhile.
    """
    bindings = [
        obj
        for kind in (ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS)
        async for page in list_pages(client, kind)
        for obj in page
    ]
    problem = accountobjects.problem_of_namespaces(account, bindings)
    if problem:
        raise ExchangeError(f"spec.tokenRenewal.serviceAccount: {problem}")

    metadata: Obj = {"name": account.name, "namespace": account.namespace}
    try:
        obj = await client.get(SERVICE_ACCOUNTS, account.name, account.namespace)
    except NotFound:
        # Bindings may be there without the account that had them.
        _require_rights(account, bindings, owner, None)
        space = {"name": account.namespace}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": space}
        await client.apply(NAMESPACES, namespace, manager=identityaccount.MANAGER)
        await client.create(SERVICE_ACCOUNTS, {"metadata": metadata | _annotations(owner)})
        return
    if ownership_of(obj, owner) is Ownership.OURS:
        return

    _require_rights(account, bindings, owner, obj)
    recorded = _recorded_identity(obj)
    if recorded is None or recorded.management_cluster == owner.management_cluster:
        # A former identity of this name has left its account, because accounts are not deleted.
        patch = {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"]}}
        patch["metadata"] |= _annotations(owner)
        await client.patch(SERVICE_ACCOUNTS, account.name, account.namespace, patch)


def _require_rights(account: Account, bindings: list[Obj], owner: Owner, obj: Obj | None) -> None:
    """Raise `ExchangeError` unless an identity may have an account with the rights that it has.

    The rights of one identity must not extend those of another.

    :param bindings: all bindings on Harvester
    :param obj: the account, None if it does not exist
    """
    name = f"{account.namespace}/{account.name}"
    remedy = "name an account of its own in spec.tokenRenewal.serviceAccount"
    former = _recorded_identity(obj) if obj else None
    if former and (former.kind, former.name) != (owner.kind, owner.name):
        raise ExchangeError(
            f"ServiceAccount {name} on Harvester was created for {former.kind} {former.name}: "
            f"{remedy}"
        )

    intended = accountobjects.rights_of(account, accountobjects.account_objects(account))
    present = accountobjects.rights_of(account, bindings)
    # An account of this identity here may get more rights. An account of a user must have exactly
    # the rights that are asked for, and so must that of the same identity on another management
    # cluster, as after `clusterctl move`.
    is_ours = former is not None and former.management_cluster == owner.management_cluster
    may_extend = obj is None or is_ours
    if present == intended or (may_extend and present < intended):
        return
    raise ExchangeError(
        f"ServiceAccount {name} on Harvester {'exists, and' if obj else 'does not exist, but'} has "
        f"other rights than the identity asks for: {remedy}"
    )


def _annotations(owner: Owner) -> Obj:
    """Return metadata with the record of an identity."""
    return {"annotations": record(owner)}


def _recorded_identity(obj: Obj) -> Owner | None:
    """Return the identity for which an object on Harvester was created, None without a record."""
    notes = annotations_of(obj)
    kind, _, name = notes.get(OWNER_ANNOTATION, "").partition("//")
    uid = notes.get(OWNER_UID_ANNOTATION, "")
    cluster = notes.get(OWNER_CLUSTER_ANNOTATION, "")
    return Owner(kind, "", name, uid, cluster) if kind and name and uid and cluster else None


class _RbacObject(NamedTuple):
    """A Role or RoleBinding, and its kind."""

    resource: Resource
    obj: Obj


def _own_rights(account: Key, owner: Owner, bound: Obj) -> list[_RbacObject]:
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
    tokens = {"apiGroups": [""], "resources": ["serviceaccounts/token"]}
    tokens |= {"resourceNames": [account.name], "verbs": ["create"]}
    secret = {"apiGroups": [""], "resources": ["secrets"]}
    secret |= {"resourceNames": [bound["name"]], "verbs": ["get", "delete"]}

    subject = {"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}
    reference = {"apiGroup": ROLES.group, "kind": ROLES.kind, "name": bound["name"]}
    role = {"metadata": metadata, "rules": [tokens, secret]}
    binding = {"metadata": metadata, "roleRef": reference, "subjects": [subject]}
    return [
        _RbacObject(resource, {"apiVersion": resource.api_version, "kind": resource.kind, **obj})
        for resource, obj in ((ROLES, role), (ROLE_BINDINGS, binding))
    ]


async def _ensure_bound(client: ApiClient, account: Key, owner: Owner) -> Obj:
    """Return name and uid of the Secret to which tokens are bound."""
    name = bound_name(owner.uid, owner.management_cluster, account.name)
    metadata = {"name": name, "namespace": account.namespace, **_annotations(owner)}
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
    access = credentials.access
    server = renewal.server
    if not server and urlsplit(access.server).path.startswith(_RANCHER_PATH):
        # Rancher's proxy accepts Rancher's tokens only.
        service = None
        with contextlib.suppress(NotFound, Forbidden):
            service = await client.get(SERVICES, _INGRESS.name, _INGRESS.namespace)
        server = virtual_address(service) or api_server(access.server)
    if not server or server == access.server:
        return _text(replace(access, token=token))

    ca = ""
    with contextlib.suppress(Forbidden):
        ca = await published_ca(client, account.namespace)
    namespace = renewal.targets[0] if renewal.targets else access.namespace
    # What concerns the certificate of the former server does not concern this one.
    direct = Kubeconfig(
        server,
        namespace=namespace,
        ca=ca or access.ca,
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
    if access.tls_server_name:
        cluster["tls-server-name"] = access.tls_server_name
    if access.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if access.proxy_url and not access.proxy_of_environment:
        cluster["proxy-url"] = access.proxy_url
    return yaml.safe_dump(config, sort_keys=False)


def _issued(text: str, account: Key, longest: int, *, insecure: bool) -> Token:
    """Return the token in a kubeconfig. Raises `ExchangeError` unless it is what was asked for.

    A server may claim anything.

    :param text: the kubeconfig
    :param account: the account for which a token was requested
    :param longest: how many seconds the token lives at most
    :param insecure: whether the kubeconfig may leave the server unverified
    """
    try:
        access = parse_kubeconfig(text, allow_insecure=insecure)
    except KubeconfigError as error:
        raise ExchangeError(f"Harvester has issued a token that cannot be used: {error}") from None
    token = token_in(Credentials(text, access))
    if token.account != account:
        raise ExchangeError("Harvester has issued a token of another account than was asked for")
    if not token.seconds:
        raise ExchangeError("Harvester has issued a token that states no end")
    if token.seconds < SHORTEST_SECONDS:
        raise ExchangeError(
            f"Harvester has issued a token that lives for {token.seconds} s only, and the least is "
            f"{SHORTEST_SECONDS} s"
        )
    return replace(token, seconds=min(token.seconds, longest))
