"""The account of a cluster's cloud provider on Harvester, with its binding and tokens.

All of them have the Cluster's name (contract). If that name is taken, by another cluster or by an unrelated object, a
hash of the HarvesterCluster's uid makes it unique: bindings are cluster-scoped on Harvester, and a Cluster can be
called `default` or `cluster-admin`.

Where `caphv identity create` has made a binding for all guests of the target namespace, the account becomes one of its
subjects instead, so that the provider needs no right to any other binding.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime

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
    uid_of,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound
from reconciler.cluster.adoption import may_adopt
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.guestaccount import LABEL, grant, grants
from reconciler.harvester.kubeconfig import virtual_address
from reconciler.harvester.ownership import Owner, Ownership, ownership_of, record
from reconciler.status import Blocked
from reconciler.triggers import Delay

_INGRESS = Key("kube-system", "ingress-expose")
_ROOT_CA = "kube-root-ca.crt"
# Seconds until objects are read again that a user has to correct and nothing watches.
_UNWATCHED = 60.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """A token with the CA (PEM) of the server that takes it; `expires` is None for one that never expires."""

    token: str = field(repr=False)
    ca: str = field(repr=False)
    expires: datetime | None = None


async def ensure_account(scope: ClusterScope) -> str:
    """Ensure that account and binding exist and are ours; return their name. Raises `Blocked` if names are taken."""
    client, namespace, wanted = scope.connected().client, scope.target_namespace, record(scope.owner)
    for name in account_names(scope):
        account, binding = await _read(client, namespace, name)
        if not await _usable(scope, account, binding, name):
            continue
        if account is None or ownership_of(account, scope.owner) is not Ownership.OURS:
            metadata = {"name": name, "namespace": namespace, "annotations": wanted}
            await _write(client, SERVICE_ACCOUNTS, account, {"metadata": metadata})
        if binding is not None and ownership_of(binding, scope.owner) is Ownership.OURS:
            return name
        if not await _join(scope, name):
            metadata = {"name": name, "annotations": wanted}
            await _write(client, CLUSTER_ROLE_BINDINGS, binding, {"metadata": metadata, **grant(Key(namespace, name))})
        return name
    raise Blocked(
        ConditionType.CLOUD_PROVIDER_CONFIG_READY,
        Reason.CLOUD_PROVIDER_CONFIG_FAILED,
        f"ServiceAccount or ClusterRoleBinding {scope.cluster_key.name} on Harvester belongs to another owner, and so "
        "does the one with a hash in its name; delete them",
        Delay(_UNWATCHED),
        warn=True,
    )


async def lasting_credentials(scope: ClusterScope, account: str) -> Credentials:
    """A token that never expires, from Secret `<account>-token` (contract). Raises `Blocked` until it is filled."""
    client, name = scope.connected().client, f"{account}-token"
    try:
        secret = await client.get(SECRETS, name, scope.target_namespace)
    except NotFound:
        annotations = {SERVICE_ACCOUNT_ANNOTATION: account, **record(scope.owner)}
        metadata = {"name": name, "namespace": scope.target_namespace, "annotations": annotations}
        secret = await client.create(SECRETS, {"metadata": metadata, "type": SERVICE_ACCOUNT_TOKEN_TYPE})
    return _lasting(secret, account)


async def existing_credentials(scope: ClusterScope) -> Credentials | None:
    """Like `lasting_credentials`, but writes nothing: None unless account, binding and Secret exist."""
    account = await _existing(scope)
    secret = account and await _find(scope.connected().client, SECRETS, f"{account}-token", scope.target_namespace)
    return _lasting(secret, account) if secret else None


def _lasting(secret: Obj, account: str) -> Credentials:
    """The token in a Secret. Raises `Blocked` if it is another account's, or until Harvester has filled it."""
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
    return Credentials(base64.b64decode(data["token"]).decode(), base64.b64decode(data["ca.crt"]).decode())


async def bound_credentials(scope: ClusterScope, account: str, seconds: int) -> Credentials:
    """A token that expires after `seconds`, or sooner if Harvester limits it, and with the account."""
    session = scope.connected()
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds},
    }
    path = SERVICE_ACCOUNTS.path(scope.target_namespace, account, "token")
    answer = await session.client.request("POST", path, resource=SERVICE_ACCOUNTS, body=request)
    try:
        published = await session.client.get(CONFIG_MAPS, _ROOT_CA, scope.target_namespace)
        ca = str(published["data"]["ca.crt"])
    except (NotFound, KeyError):
        ca = session.ca
    status = answer["status"]
    return Credentials(status["token"], ca, datetime.fromisoformat(status["expirationTimestamp"]).astimezone(UTC))


async def server(scope: ClusterScope) -> str:
    """URL at which guests reach Harvester: its virtual address, else the server of the identity (contract)."""
    try:
        service = await scope.connected().client.get(SERVICES, _INGRESS.name, _INGRESS.namespace)
    except NotFound:
        service = None
    return virtual_address(service) or str(scope.obj["spec"]["server"])


async def exists(scope: ClusterScope, *, token: bool) -> bool:
    """Whether account and binding exist on Harvester, and the Secret with a lasting token where one is needed."""
    name = await _existing(scope)
    if not name or not token:
        return bool(name)
    return await _find(scope.connected().client, SECRETS, f"{name}-token", scope.target_namespace) is not None


async def _existing(scope: ClusterScope) -> str:
    """Name of the account that exists with its binding and is ours, or may be; empty for none."""
    client, namespace = scope.connected().client, scope.target_namespace
    for name in account_names(scope):
        account, binding = await _read(client, namespace, name)
        bound = account and (binding or await _joined(scope, name))
        if bound and await _usable(scope, account, binding, name):
            return name
    return ""


async def delete_account(scope: ClusterScope) -> None:
    """Delete binding, token and account, in this order: what remains is of no use to a token."""
    for name in account_names(scope):
        await _delete_account(scope, name)


async def _delete_account(scope: ClusterScope, name: str) -> None:
    client, namespace = scope.connected().client, scope.target_namespace
    account, binding = await _read(client, namespace, name)
    if not await _usable(scope, account, binding, name):
        return
    # Also without an account: a later one of this name would have the role.
    await _leave(scope, name)
    token = await _find(client, SECRETS, f"{name}-token", namespace) if account or binding else None
    if token and not _is_token_of(token, name):
        token = None
    for resource, obj in ((CLUSTER_ROLE_BINDINGS, binding), (SECRETS, token), (SERVICE_ACCOUNTS, account)):
        if obj:
            await _delete(client, resource, obj)


def _is_token_of(secret: Obj, account: str) -> bool:
    of = annotations_of(secret).get(SERVICE_ACCOUNT_ANNOTATION)
    return secret.get("type") == SERVICE_ACCOUNT_TOKEN_TYPE and of == account


def account_names(scope: ClusterScope) -> tuple[str, str]:
    """The contract's name, and the one for when that is taken."""
    name = scope.cluster_key.name
    return name, f"{name}-{hashlib.sha256(uid_of(scope.obj).encode()).hexdigest()[:8]}"


def usable(
    account: Obj | None, binding: Obj | None, key: Key, owner: Owner, *, adopt: bool = False, joined: bool = False
) -> bool:
    """Whether account and binding of a name are free, ours, or a pair that the Go provider left.

    Objects without a record, or with `adopt` those of another owner, are taken over only as a pair that means exactly
    what it would mean for us: a binding of any other role, or an account alone, is something else that happens to have
    the name. An account that the binding of its namespace names (`joined`) is not alone. What `caphv cloud-config`
    created has no record either, and serves a cluster outside Cluster API.
    """
    present = [obj for obj in (account, binding) if obj is not None]
    ownerships = [ownership_of(obj, owner) for obj in present]
    if Ownership.FOREIGN in ownerships and not adopt:
        return False
    if any(LABEL in labels_of(obj) and ownership_of(obj, owner) is Ownership.UNRECORDED for obj in present):
        return False
    if binding is not None and not grants(binding, key):
        return False
    return binding is not None or joined or all(ownership is Ownership.OURS for ownership in ownerships)


async def _usable(scope: ClusterScope, account: Obj | None, binding: Obj | None, name: str) -> bool:
    key = Key(scope.target_namespace, name)
    joined = account is not None and binding is None and await _joined(scope, name)
    return usable(account, binding, key, scope.owner, adopt=_may_adopt(scope, account, binding), joined=joined)


def _may_adopt(scope: ClusterScope, *objects: Obj | None) -> bool:
    foreign = [obj for obj in objects if obj and ownership_of(obj, scope.owner) is Ownership.FOREIGN]
    return all(may_adopt(scope, obj) for obj in foreign)


async def _read(client: ApiClient, namespace: str, name: str) -> tuple[Obj | None, Obj | None]:
    return (
        await _find(client, SERVICE_ACCOUNTS, name, namespace),
        await _find(client, CLUSTER_ROLE_BINDINGS, name),
    )


async def _join(scope: ClusterScope, name: str) -> bool:
    """Make the account a subject of the binding for all guests of its namespace; False if there is none for us."""
    shared, subject = await _shared(scope), _subject(scope, name)
    if shared is None:
        return False
    if subject not in _subjects(shared):
        try:
            await _write_subjects(scope, shared, [*_subjects(shared), subject])
        except Forbidden:
            return False
    return True


async def _joined(scope: ClusterScope, name: str) -> bool:
    return _subject(scope, name) in _subjects(await _shared(scope))


async def _leave(scope: ClusterScope, name: str) -> None:
    shared, subject = await _shared(scope), _subject(scope, name)
    if shared and subject in _subjects(shared):
        await _write_subjects(scope, shared, [each for each in _subjects(shared) if each != subject])


async def _shared(scope: ClusterScope) -> Obj | None:
    """The binding for all guests of the target namespace."""
    shared = await _find(scope.connected().client, CLUSTER_ROLE_BINDINGS, f"{GUESTS_PREFIX}{scope.target_namespace}")
    return shared if shared and shared["roleRef"] == grant(Key("", ""))["roleRef"] else None


def _subject(scope: ClusterScope, name: str) -> Obj:
    (subject,) = grant(Key(scope.target_namespace, name))["subjects"]
    return dict(subject)


def _subjects(binding: Obj | None) -> list[Obj]:
    return list((binding or {}).get("subjects") or [])


async def _write_subjects(scope: ClusterScope, shared: Obj, subjects: list[Obj]) -> None:
    metadata = shared["metadata"]
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "subjects": subjects}
    await scope.connected().client.patch(CLUSTER_ROLE_BINDINGS, metadata["name"], "", patch)


async def _find(client: ApiClient, resource: Resource, name: str, namespace: str = "") -> Obj | None:
    try:
        return await client.get(resource, name, namespace)
    except NotFound:
        return None


async def _write(client: ApiClient, resource: Resource, present: Obj | None, wanted: Obj) -> None:
    """Create the object, or write the record on the one that is there."""
    if present is None:
        await client.create(resource, wanted)
        return
    metadata = present["metadata"]
    patch = {"annotations": wanted["metadata"]["annotations"], "resourceVersion": metadata["resourceVersion"]}
    await client.patch(resource, metadata["name"], metadata.get("namespace", ""), {"metadata": patch})


async def _delete(client: ApiClient, resource: Resource, obj: Obj) -> None:
    metadata = obj["metadata"]
    try:
        await client.delete(resource, metadata["name"], metadata.get("namespace", ""), uid=metadata["uid"])
    except NotFound:
        return
