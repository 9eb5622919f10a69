"""Maintain the account of a cluster's cloud provider on Harvester, with its binding and tokens.

All of them have the Cluster's name (contract). Another cluster or an unrelated object may have that
name, because bindings are cluster-scoped on Harvester, and a Cluster can be called `default` or
`cluster-admin`. Then a hash of the HarvesterCluster's uid makes the name unique. After a move or
restore, that is the former uid: guests may have a token of that account that never expires.

If `caphv identity create` has created a binding for all guests of the target namespace, the account
becomes one of its subjects instead, so that the provider needs no right to any other binding.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from caphv.api.names import (
    GUESTS_PREFIX,
    SERVICE_ACCOUNT_ANNOTATION,
    SERVICE_ACCOUNT_TOKEN_TYPE,
    ConditionType,
    Reason,
)
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Key,
    Obj,
    Resource,
    annotations_of,
    key_of,
    labels_of,
    list_at,
    uid_of,
)
from caphv.api.ownership import (
    Owner,
    Ownership,
    former_owner,
    ownership_of,
    record,
    same_name,
)
from caphv.api.tokens import token_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound
from caphv.runtime.kubeconfig import token_claims
from reconciler.blocked import Blocked
from reconciler.cluster.adoption import may_adopt
from reconciler.cluster.guestsecret import TOKEN_SECONDS
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.guestaccount import LABEL, grant, grants
from reconciler.harvester.kubeconfig import virtual_address
from reconciler.triggers import Delay

_INGRESS = Key("kube-system", "ingress-expose")
_ROOT_CA = "kube-root-ca.crt"
# Seconds until objects that a user has to correct are read again, because nothing watches them.
_UNWATCHED = 60.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """A token with the CA (PEM) of the server that accepts it."""

    token: str = field(repr=False)
    ca: str = field(repr=False)


async def ensure_account(scope: ClusterScope) -> str:
    """Ensure that account and binding exist and are ours; return their name.

    Raises `Blocked` if others own both names.
    """
    client = scope.require_session().client
    namespace = scope.target_namespace
    annotations = record(scope.owner)

    for name in account_names(scope):
        account, binding = await _read(client, namespace, name)
        if not await _usable(scope, account, binding, name):
            continue

        if account is None or ownership_of(account, scope.owner) is not Ownership.OURS:
            metadata = {"name": name, "namespace": namespace, "annotations": annotations}
            await _write(client, SERVICE_ACCOUNTS, account, {"metadata": metadata})
        if binding is not None and ownership_of(binding, scope.owner) is Ownership.OURS:
            return name
        if not await _join(scope, name):
            metadata = {"name": name, "annotations": annotations}
            intended = {"metadata": metadata, **grant(Key(namespace, name))}
            await _write(client, CLUSTER_ROLE_BINDINGS, binding, intended)
        return name

    raise Blocked(
        ConditionType.CLOUD_PROVIDER_CONFIG_READY,
        Reason.CLOUD_PROVIDER_CONFIG_FAILED,
        f"ServiceAccount or ClusterRoleBinding {scope.cluster_key.name} on Harvester belongs to "
        "another owner, and so does the one with a hash in its name; delete them",
        Delay(_UNWATCHED),
        warn=True,
    )


async def lasting_credentials(scope: ClusterScope, account: str) -> Credentials:
    """Return a token that never expires, from Secret `<account>-token` (contract).

    Creates the Secret where it is missing. Raises `Blocked` until Harvester has filled it.
    """
    client = scope.require_session().client
    name = f"{account}-token"
    try:
        secret = await client.get(SECRETS, name, scope.target_namespace)
    except NotFound:
        annotations = {SERVICE_ACCOUNT_ANNOTATION: account, **record(scope.owner)}
        metadata = {"name": name, "namespace": scope.target_namespace, "annotations": annotations}
        secret = await client.create(
            SECRETS, {"metadata": metadata, "type": SERVICE_ACCOUNT_TOKEN_TYPE}
        )
    return _lasting_token(secret, account)


async def existing_credentials(scope: ClusterScope) -> Credentials | None:
    """Return the token of `lasting_credentials` without writing anything.

    Returns None unless account, binding and Secret exist.
    """
    account = await _existing_account(scope)
    if not account:
        return None
    client = scope.require_session().client
    secret = await _find(client, SECRETS, f"{account}-token", scope.target_namespace)
    return _lasting_token(secret, account) if secret else None


def _lasting_token(secret: Obj, account: str) -> Credentials:
    """Return the token in a Secret.

    Raises `Blocked` if the Secret belongs to another account, or until Harvester has filled it.
    """
    key = key_of(secret)
    if annotations_of(secret).get(SERVICE_ACCOUNT_ANNOTATION) != account:
        raise Blocked(
            ConditionType.CLOUD_PROVIDER_CONFIG_READY,
            Reason.CLOUD_PROVIDER_CONFIG_FAILED,
            f"Secret {key} on Harvester is not the token of ServiceAccount {account}; delete it",
            Delay(_UNWATCHED),
            warn=True,
        )

    data = secret.get("data") or {}
    if not data.get("token") or not data.get("ca.crt"):
        raise Blocked(
            ConditionType.CLOUD_PROVIDER_CONFIG_READY,
            Reason.CLOUD_PROVIDER_CONFIG_IN_PROGRESS,
            f"waiting for Harvester to fill Secret {key}",
            Delay(0.5),
        )
    token = base64.b64decode(data["token"])
    ca = base64.b64decode(data["ca.crt"])
    return Credentials(token.decode(), ca.decode())


class BoundCredentials(NamedTuple):
    """Credentials, and for how long they are valid."""

    credentials: Credentials
    lifetime: timedelta


async def bound_credentials(scope: ClusterScope, account: str) -> BoundCredentials:
    """Return a new token that expires.

    It asks for a lifetime of `TOKEN_SECONDS`, which Harvester may limit.
    """
    # No object on Harvester holds a bound token. It becomes invalid when it expires, or when its
    # account is deleted.
    session = scope.require_session()
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_SECONDS},
    }
    path = SERVICE_ACCOUNTS.path(scope.target_namespace, account, "token")
    answer = await session.client.request("POST", path, resource=SERVICE_ACCOUNTS, body=request)

    try:
        published = await session.client.get(CONFIG_MAPS, _ROOT_CA, scope.target_namespace)
        ca = str(published["data"]["ca.crt"])
    except (NotFound, KeyError):
        ca = session.ca

    token = str(answer["status"]["token"])
    seconds = _seconds(token, str(answer["status"]["expirationTimestamp"]))
    lifetime = timedelta(seconds=min(seconds, TOKEN_SECONDS))
    return BoundCredentials(Credentials(token, ca), lifetime)


def _seconds(token: str, expires_at: str) -> float:
    """Return for how many seconds a new token is valid.

    :param expires_at: the time when it expires, by the clock of Harvester, for a token that does
        not say that itself
    """
    # Both times of a token come from one clock. The clocks of two clusters may differ by days.
    claimed = token_of(token_claims(token))
    if claimed is not None and claimed.seconds:
        return claimed.seconds
    return (datetime.fromisoformat(expires_at) - datetime.now(UTC)).total_seconds()


async def server(scope: ClusterScope) -> str:
    """Return the URL at which guests reach Harvester (contract).

    Guests use Harvester's virtual address, or the server of the identity if there is none.
    """
    client = scope.require_session().client
    service = await _find(client, SERVICES, _INGRESS.name, _INGRESS.namespace)
    return virtual_address(service) or str(scope.obj["spec"]["server"])


async def exists(scope: ClusterScope, *, token: bool) -> bool:
    """Return whether account and binding exist on Harvester. Adopts them after a move.

    :param token: whether the Secret with the token has to exist, too
    """
    account = await _existing_account(scope, adopts=True)
    if not account or not token:
        return bool(account)
    client = scope.require_session().client
    secret = await _find(client, SECRETS, f"{account}-token", scope.target_namespace)
    return secret is not None


async def _existing_account(scope: ClusterScope, *, adopts: bool = False) -> str:
    """Return the name of a usable account that exists with its binding; empty for none.

    :param adopts: write our record on what has the record of another owner, as after a move
    """
    client = scope.require_session().client
    namespace = scope.target_namespace
    annotations = record(scope.owner)
    for name in account_names(scope):
        account, binding = await _read(client, namespace, name)
        bound = account and (binding or await _is_joined(scope, name))
        if not bound or not await _usable(scope, account, binding, name):
            continue
        for resource, obj in ((SERVICE_ACCOUNTS, account), (CLUSTER_ROLE_BINDINGS, binding)):
            if adopts and obj and ownership_of(obj, scope.owner) is Ownership.FOREIGN:
                await _write(client, resource, obj, {"metadata": {"annotations": annotations}})
        return name
    return ""


async def delete_account(scope: ClusterScope) -> list[str]:
    """Delete binding, token and account under all names that they may have.

    Returns the names under which something stays that names this cluster under another uid: without
    its machines, nothing proves that it was moved.
    """
    return [name for name in account_names(scope) if not await _delete_account(scope, name)]


async def _delete_account(scope: ClusterScope, name: str) -> bool:
    """Delete binding, token and account of a name, if they are ours.

    Returns False if they are not, although their record has the name of this HarvesterCluster.
    """
    client = scope.require_session().client
    namespace = scope.target_namespace
    account, binding = await _read(client, namespace, name)
    if not await _usable(scope, account, binding, name):
        return not any(
            obj
            and ownership_of(obj, scope.owner) is Ownership.FOREIGN
            and same_name(obj, scope.owner)
            for obj in (account, binding)
        )
    if _may_be_a_users(scope, account, binding):
        return True
    # Leave the binding even if the account does not exist, because a later account with this name
    # would have the role.
    await _leave(scope, name)

    # Any Secret may have this name, but only a Secret that names the account holds its token.
    token = None
    if account or binding:
        secret = await _find(client, SECRETS, f"{name}-token", namespace)
        if secret and _is_token_of(secret, name):
            token = secret

    # Delete the binding first, so that a token that remains after a failure has no rights.
    if binding:
        await _delete(client, CLUSTER_ROLE_BINDINGS, binding)
    if token:
        await _delete(client, SECRETS, token)
    if account:
        await _delete(client, SERVICE_ACCOUNTS, account)
    return True


def _may_be_a_users(scope: ClusterScope, account: Obj | None, binding: Obj | None) -> bool:
    """Return whether a user may have created account and binding, which guests still use.

    Harvester's script `generate_addon.sh` creates them without a record, with a name and a role
    that the user chose. Without `updateCloudProviderConfig`, the Go provider has created none.
    """
    present = [obj for obj in (account, binding) if obj is not None]
    ownerships = {ownership_of(obj, scope.owner) for obj in present}
    is_requested = bool(scope.obj["spec"].get("updateCloudProviderConfig"))
    return ownerships == {Ownership.UNRECORDED} and not is_requested


def _is_token_of(secret: Obj, account: str) -> bool:
    """Return whether a Secret holds the token of an account."""
    holder = annotations_of(secret).get(SERVICE_ACCOUNT_ANNOTATION)
    return secret.get("type") == SERVICE_ACCOUNT_TOKEN_TYPE and holder == account


def account_names(scope: ClusterScope) -> tuple[str, ...]:
    """Return the name that the contract requires, and the names to use if that one is taken."""
    name = scope.cluster_key.name
    former = former_owner(scope.obj, scope.owner)
    uids = [former.uid] if former else []
    uids.append(uid_of(scope.obj))
    return name, *(f"{name}-{hashlib.sha256(uid.encode()).hexdigest()[:8]}" for uid in uids)


def usable(
    account: Obj | None,
    binding: Obj | None,
    key: Key,
    owner: Owner,
    *,
    adopt: bool = False,
    joined: bool = False,
) -> bool:
    """Return whether a name is free, or its account and binding are ours or may become ours.

    Objects without a record (and objects of another owner, with `adopt`) are adopted only as a pair
    of account and binding with exactly our role, as the Go provider left it. A binding to another
    role, or an account alone, has the name by chance.

    :param account: the ServiceAccount, None if there is none
    :param binding: the ClusterRoleBinding of the same name, None if there is none
    :param key: key of the account
    :param owner: the HarvesterCluster
    :param adopt: whether objects of other owners may be adopted
    :param joined: whether the account is a subject of the binding of the namespace
    """
    present = [obj for obj in (account, binding) if obj is not None]
    ownerships = [ownership_of(obj, owner) for obj in present]
    if Ownership.FOREIGN in ownerships and not adopt:
        return False

    for obj, ownership in zip(present, ownerships, strict=True):
        if LABEL in labels_of(obj) and ownership is Ownership.UNRECORDED:
            # `caphv cloud-config` has created the object for a cluster outside Cluster API.
            return False

    if binding is not None:
        return grants(binding, key)
    return joined or all(ownership is Ownership.OURS for ownership in ownerships)


async def _usable(scope: ClusterScope, account: Obj | None, binding: Obj | None, name: str) -> bool:
    """Return whether this cluster may use the account and binding of a name on Harvester."""
    key = Key(scope.target_namespace, name)
    owner = scope.owner
    is_joined = account is not None and binding is None and await _is_joined(scope, name)
    foreign = [
        obj for obj in (account, binding) if obj and ownership_of(obj, owner) is Ownership.FOREIGN
    ]
    adopt = all(may_adopt(scope, obj) for obj in foreign)
    return usable(account, binding, key, owner, adopt=adopt, joined=is_joined)


class _AccountObjects(NamedTuple):
    """ServiceAccount and ClusterRoleBinding of one name; None for an object that does not exist."""

    account: Obj | None
    binding: Obj | None


async def _read(client: ApiClient, namespace: str, name: str) -> _AccountObjects:
    """Read the objects of an account."""
    return _AccountObjects(
        account=await _find(client, SERVICE_ACCOUNTS, name, namespace),
        binding=await _find(client, CLUSTER_ROLE_BINDINGS, name),
    )


async def _join(scope: ClusterScope, name: str) -> bool:
    """Make the account a subject of the binding for all guests of its namespace.

    Returns False if there is no such binding, or the provider may not change it.
    """
    shared = await _shared_binding(scope)
    subject = _subject(scope, name)
    if shared is None:
        return False
    if subject not in _subjects(shared):
        try:
            await _write_subjects(scope, shared, [*_subjects(shared), subject])
        except Forbidden:
            return False
    return True


async def _is_joined(scope: ClusterScope, name: str) -> bool:
    """Return whether the account is a subject of the binding for all guests of its namespace."""
    return _subject(scope, name) in _subjects(await _shared_binding(scope))


async def _leave(scope: ClusterScope, name: str) -> None:
    """Remove the account from the binding for all guests of its namespace."""
    shared = await _shared_binding(scope)
    subject = _subject(scope, name)
    if shared and subject in _subjects(shared):
        remaining = [other for other in _subjects(shared) if other != subject]
        await _write_subjects(scope, shared, remaining)


async def _shared_binding(scope: ClusterScope) -> Obj | None:
    """Return the binding for all guests of the target namespace, None if we cannot use one."""
    client = scope.require_session().client
    name = f"{GUESTS_PREFIX}{scope.target_namespace}"
    shared = await _find(client, CLUSTER_ROLE_BINDINGS, name)
    # A binding to another role has the name by chance: it would give guests other rights.
    role = grant(Key("", ""))["roleRef"]
    return shared if shared and shared["roleRef"] == role else None


def _subject(scope: ClusterScope, name: str) -> Obj:
    """Return the subject of a binding for an account in the target namespace."""
    (subject,) = grant(Key(scope.target_namespace, name))["subjects"]
    return dict(subject)


def _subjects(binding: Obj | None) -> list[Obj]:
    return list(list_at(binding, "subjects"))


async def _write_subjects(scope: ClusterScope, shared: Obj, subjects: list[Obj]) -> None:
    """Replace the subjects of the binding for all guests of the target namespace."""
    # The patch replaces the whole list. Without the precondition, it could remove the subject of
    # another cluster that joins at the same time.
    metadata = shared["metadata"]
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "subjects": subjects}
    await scope.require_session().client.patch(CLUSTER_ROLE_BINDINGS, metadata["name"], "", patch)


async def _find(
    client: ApiClient, resource: Resource, name: str, namespace: str = ""
) -> Obj | None:
    """Return an object, None if it does not exist."""
    try:
        return await client.get(resource, name, namespace)
    except NotFound:
        return None


async def _write(client: ApiClient, resource: Resource, present: Obj | None, intended: Obj) -> None:
    """Create an object, or write the record on the existing one."""
    if present is None:
        await client.create(resource, intended)
        return
    metadata = present["metadata"]
    patch = {
        "annotations": intended["metadata"]["annotations"],
        "resourceVersion": metadata["resourceVersion"],
    }
    await client.patch(
        resource, metadata["name"], metadata.get("namespace", ""), {"metadata": patch}
    )


async def _delete(client: ApiClient, resource: Resource, obj: Obj) -> None:
    """Delete an object that was read, but none that has replaced it meanwhile."""
    metadata = obj["metadata"]
    try:
        await client.delete(
            resource, metadata["name"], metadata.get("namespace", ""), uid=metadata["uid"]
        )
    except NotFound:
        return
