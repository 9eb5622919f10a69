"""Read the credentials of a HarvesterCluster, open its session, and report when they expire.

A cluster names its Secret, or a HarvesterClusterIdentity: `reconciler.remote.clusteridentities`
decides which Secret that is, and `reconciler.clusteridentity` renews the token in it.

Expiry is reported ahead of time, because tokens of Rancher and Kubernetes expire without a warning,
and then every request is refused. One delayed requeue per cluster is enough, so nothing polls.
"""

from __future__ import annotations

import binascii
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from caphv.api import conditions, names
from caphv.api.identities import (
    Refused,
    decode_kubeconfig,
    describe,
    identity_of,
    is_cluster_identity,
    kubeconfig_key,
)
from caphv.api.names import ConditionType, Reason
from caphv.api.object import SECRETS, Key, Obj, annotations_of, being_deleted, key_of, text_at
from caphv.api.tokenrenewal import SECRET_TYPE, Issued, issued_of
from caphv.runtime.errors import NotFound, RequestError
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig
from caphv.runtime.text import off_loop
from reconciler import metrics
from reconciler.blocked import Blocked, Cause
from reconciler.cluster.identityprotection import MISSING_RIGHT, RETRY_SECONDS, IdentityProtection
from reconciler.cluster.references import (
    may_use,
    refusal,
    refused_references,
    resolve_identity,
)
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.session import Session
from reconciler.remote.clusteridentities import NotRead
from reconciler.triggers import Delay, Trigger, Watched

WARN_AHEAD = timedelta(days=7)
_NOT_READ_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of one version of an identity Secret."""

    version: str
    access: Kubeconfig
    expires: datetime | None
    metadata: Obj = field(repr=False)
    """Namespace, name and annotations of the Secret, which decide who may use it."""
    renewed: Issued | None = None
    """The record of a token that the provider renews, None for credentials of a user."""


class PermissionWithdrawn(Exception):
    """The present version of an identity no longer permits its use."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """The report about an expiry; it has no reason if no action is due.

    The report changes after `check_after` seconds.
    """

    message: str
    reason: Reason | None = None
    check_after: float | None = None


class _Use(NamedTuple):
    """The Secret that a cluster uses, and its annotation `caphv.io/reconcile-at` at that time."""

    secret: Key
    reconcile_at: str


class Identities:
    """Read each version of an identity Secret once, and track which clusters use it.

    With a `namespace`, Secrets in other namespaces are refused, because the provider neither
    watches them nor may read them.
    """

    def __init__(self, *, allow_insecure: bool, namespace: str = "") -> None:
        self._allow_insecure = allow_insecure
        self._namespace = namespace
        self._read: dict[Key, Identity] = {}
        self._uses: dict[Key, _Use] = {}

    async def read(self, scope: ClusterScope) -> Identity:
        """Return the identity of a cluster, from memory while its Secret has the same version.

        Also reads the Secret again after a change of the cluster's annotation
        `caphv.io/reconcile-at`. Raises `Blocked` if the identity is invalid, and
        `PermissionWithdrawn` if the version on the server does not permit its use, whatever the
        cache says.
        """
        secret = permitted_secret(scope)
        self.require_namespace(secret)

        use = _Use(secret, annotations_of(scope.obj).get(names.RECONCILE_AT_ANNOTATION, ""))
        listed = scope.context.caches.secrets.get(*secret)
        parsed = self._read.get(secret)
        if parsed and listed and parsed.version == listed["metadata"]["resourceVersion"]:
            # A cluster whose use has changed reads the Secret again, although another cluster may
            # have read this version. Its first use needs no request.
            last_use = self._uses.setdefault(scope.key, use)
            if last_use == use:
                _require_permission(scope, secret, parsed.metadata)
                return parsed

        try:
            full = await scope.context.client.get(SECRETS, secret.name, secret.namespace)
            _require_permission(scope, secret, full["metadata"])
            # A tenant's Secret may have any type and annotations.
            renewed = scope.context.cluster_identities.renewed
            may_renew = bool(renewed.identity_of(secret))
            identity = await self._parse(secret_text(scope.obj), full, may_renew=may_renew)
        except NotFound:
            self._drop(secret)
            message = f"{secret_text(scope.obj)}: not found; create it with key kubeconfig"
            raise connection_failure(message) from None
        except Blocked:
            self._drop(secret)
            raise

        self.release(scope.key)
        self._drop(secret)
        self._uses[scope.key] = use
        self._read[secret] = identity
        # The metric is for credentials that a user has to replace.
        if identity.expires and identity.renewed is None:
            metrics.IDENTITY_EXPIRY.labels(str(secret)).set_function(
                _seconds_until(identity.expires)
            )
        return identity

    def require_namespace(self, secret: Key) -> None:
        """Raise `Blocked` for a Secret in a namespace that the provider does not read."""
        if self._namespace and secret.namespace != self._namespace:
            raise connection_failure(
                f"identity Secret {secret}: this provider reads Secrets in namespace "
                f"{self._namespace} only (--namespace); create it there, and set "
                "spec.identitySecret"
            )

    def release(self, cluster: Key) -> None:
        """Release the identity of a cluster that was deleted or uses another Secret."""
        former = self._uses.pop(cluster, None)
        if former and not any(use.secret == former.secret for use in self._uses.values()):
            self._drop(former.secret)

    async def _parse(self, where: str, secret: Obj, *, may_renew: bool) -> Identity:
        """Parse the kubeconfig in a Secret. Raises `Blocked` if it is invalid.

        :param where: how messages name the Secret
        :param secret: the Secret with its content
        :param may_renew: whether it has the place of a token that the provider renews
        """
        key = kubeconfig_key(secret)
        if not key:
            raise connection_failure(
                f"{where}: key kubeconfig is missing; store the kubeconfig of Harvester under it"
            )
        try:
            raw = decode_kubeconfig(key, text_at(secret, "data", key))
            access = await off_loop(
                len(raw), lambda: parse_kubeconfig(raw, allow_insecure=self._allow_insecure)
            )
        except (KubeconfigError, binascii.Error) as error:
            raise connection_failure(f"{where}: {error}") from None

        metadata = secret["metadata"]
        needed = {
            name: metadata[name]
            for name in ("namespace", "name", "annotations")
            if name in metadata
        }
        is_renewed = may_renew and secret.get("type") == SECRET_TYPE
        renewed = issued_of(secret) if is_renewed else None
        return Identity(metadata["resourceVersion"], access, access.expires(), needed, renewed)

    def _drop(self, secret: Key) -> None:
        """Forget the content of a Secret, and remove its metric."""
        self._read.pop(secret, None)
        with contextlib.suppress(KeyError):
            metrics.IDENTITY_EXPIRY.remove(str(secret))


async def ensure_session(
    scope: ClusterScope, identities: Identities, protection: IdentityProtection
) -> None:
    """Assign the session of its identity to the cluster, and protect the Secret by a finalizer.

    Sets `spec.server` to the server of the kubeconfig (contract). Raises `Blocked` while there is
    no valid identity.
    """
    try:
        identity = await _permitted_identity(scope, identities)
        # Assign the session first, so that its limits are reported even if a later request fails.
        scope.session = await _assign(scope, identity)
    except (Blocked, RequestError):
        await _release_former(scope, identities)
        raise

    # Only the status of a cluster that is paused or being deleted may be written.
    fixed = scope.read_only or being_deleted(scope.obj)
    # The namespace of the provider is not deleted while it deletes clusters.
    is_shared = is_cluster_identity(identity_of(scope.obj))
    protected = fixed or is_shared or await protection.ensure(identity_of(scope.obj))
    _report_expiry(scope, identity, "" if protected else f"; {MISSING_RIGHT}")
    if not protected:
        scope.requeue_within(RETRY_SECONDS)

    server = identity.access.server
    if scope.obj["spec"].get("server") != server and not fixed:
        await scope.patch_spec({"server": server})


async def _permitted_identity(scope: ClusterScope, identities: Identities) -> Identity:
    """Return the identity of the cluster.

    Raises `Blocked` if the owner of the Secret does not permit its use, and releases a session that
    was opened with a former permission.
    """
    secret = identity_of(scope.obj)
    if is_cluster_identity(secret):
        return await _shared_identity(scope, identities)
    identities.require_namespace(secret)

    refused = await refused_references(scope)
    if any(reference.key == secret and reference.kind == SECRETS.kind for reference in refused):
        identities.release(scope.key)
        if scope.context.caches.secrets.get(*secret):
            # The owner of the Secret has withdrawn the permission.
            await scope.context.sessions.release(scope.key)
        raise connection_failure(refusal(scope, f"identity Secret {secret}"))

    try:
        return await identities.read(scope)
    except PermissionWithdrawn:
        identities.release(scope.key)
        await scope.context.sessions.release(scope.key)
        raise connection_failure(refusal(scope, f"identity Secret {secret}")) from None


async def _release_former(scope: ClusterScope, identities: Identities) -> None:
    """Release a session with credentials that the cluster may no longer use or no longer names.

    Otherwise a cluster that names another Secret, which need not exist or be of use, would keep the
    credentials, and would not notice that their owner withdraws the permission.
    """
    # What the session has counts, not what was read last: a Secret may be read and then not load.
    former = scope.context.sessions.identity_of(scope.key)
    if not former:
        return
    with contextlib.suppress(PermissionWithdrawn, NotRead):
        if str(permitted_secret(scope)) == former:
            return
    identities.release(scope.key)
    await scope.context.sessions.release(scope.key)


async def _shared_identity(scope: ClusterScope, identities: Identities) -> Identity:
    """Return the identity of a cluster that names a HarvesterClusterIdentity.

    Raises `Blocked` unless the namespace of the cluster is allowed, upon which the caller releases
    a session that was opened before. An identity about which nothing is known allows nothing.
    """
    await refused_references(scope)
    try:
        return await identities.read(scope)
    except (PermissionWithdrawn, NotRead) as error:
        raise _unresolved(scope, error) from None


def _unresolved(scope: ClusterScope, error: PermissionWithdrawn | NotRead) -> Blocked:
    """Return why a HarvesterClusterIdentity gives a cluster no credentials."""
    if isinstance(error, PermissionWithdrawn):
        return connection_failure(str(error), Watched.CLUSTER_IDENTITY)

    identity = describe(identity_of(scope.obj))
    if error.is_lasting:
        cause = str(error)
        if isinstance(error.error, NotFound):
            cause = "the management cluster does not serve this kind (HTTP 404)"
        # A deletion can be forced, and what runs stays ready: nothing is known to be withdrawn.
        return connection_failure(
            f"{identity} cannot be read: {cause}; apply CRDs and roles of this release",
            Watched.CLUSTER_IDENTITY,
            Delay(_NOT_READ_SECONDS),
            cause=Cause.OUTAGE,
        )
    return Blocked(
        ConditionType.HARVESTER_CONNECTION_READY,
        Reason.HARVESTER_CONNECTION_IN_PROGRESS,
        f"{identity} cannot be read: {error}" if error.error else f"reading {identity}",
        Watched.CLUSTER_IDENTITY,
        Watched.SELF,
        Delay(_NOT_READ_SECONDS),
        warn=error.error is not None,
        cause=Cause.UNKNOWN,
    )


def permitted_secret(scope: ClusterScope) -> Key:
    """Return the key of the Secret with the credentials of a cluster.

    The owner of a Secret that the cluster names itself permits its use in an annotation, which is
    checked when the Secret is read. Raises `PermissionWithdrawn` for a HarvesterClusterIdentity
    that does not permit its use, and `NotRead` while that is not known.
    """
    identity = identity_of(scope.obj)
    if not is_cluster_identity(identity):
        return identity
    answer = resolve_identity(scope)
    if isinstance(answer, Refused):
        raise PermissionWithdrawn(answer.message)
    return answer


def _require_permission(scope: ClusterScope, secret: Key, metadata: Obj) -> None:
    """Raise `PermissionWithdrawn` if a cluster may no longer use a Secret."""
    if is_cluster_identity(identity_of(scope.obj)):
        if permitted_secret(scope) != secret:
            raise PermissionWithdrawn(f"{describe(identity_of(scope.obj))} was changed")
    elif not may_use({"metadata": metadata}, scope.obj):
        raise PermissionWithdrawn


async def _assign(scope: ClusterScope, identity: Identity) -> Session:
    """Return the cluster's session with these credentials. Raises `Blocked` if they are invalid."""
    try:
        return await scope.context.sessions.assign(
            scope.key,
            identity.access,
            scope.target_namespace,
            identity=str(key_of({"metadata": identity.metadata})),
            harvester_uid=text_at(scope.draft.fields, "harvester", "uid"),
        )
    except KubeconfigError as error:
        message = f"{secret_text(scope.obj)}: {error}"
        raise connection_failure(message) from None


def secret_text(obj: Obj) -> str:
    """Return how messages name the Secret with the credentials of a HarvesterCluster."""
    identity = identity_of(obj)
    text = describe(identity)
    return f"Secret of {text}" if is_cluster_identity(identity) else text


def connection_failure(message: str, *triggers: Trigger, cause: Cause = Cause.MISSING) -> Blocked:
    """Return the `Blocked` of a connection until a user changes the identity.

    :param triggers: further triggers that end it
    """
    return Blocked(
        ConditionType.HARVESTER_CONNECTION_READY,
        Reason.HARVESTER_CONNECTION_FAILED,
        message,
        Watched.SECRET,
        Watched.SELF,
        *triggers,
        warn=True,
        cause=cause,
    )


def _seconds_until(moment: datetime) -> Callable[[], float]:
    """Return a function that returns the seconds until a moment, for a metric."""

    def seconds() -> float:
        return (moment - datetime.now(UTC)).total_seconds()

    return seconds


def expiry_of(expires: datetime | None, at_time: datetime) -> Expiry:
    """Return the report about the expiry of credentials.

    :param expires: when the credentials expire, None if they do not state it
    :param at_time: the time of the report
    """
    if expires is None:
        return Expiry("the credentials do not state an expiry date")

    remaining = expires - at_time
    date = conditions.rfc3339(expires)
    if remaining > WARN_AHEAD:
        return Expiry(
            f"the credentials are valid until {date}",
            check_after=(remaining - WARN_AHEAD).total_seconds(),
        )
    if remaining > timedelta(0):
        message = f"the credentials expire at {date}; put a new kubeconfig into the Secret before"
        return Expiry(message, Reason.IDENTITY_EXPIRING, remaining.total_seconds())
    message = f"the credentials expired at {date}; put a new kubeconfig into the Secret"
    return Expiry(message, Reason.IDENTITY_EXPIRED)


def renewal_report(issued: Issued, identity: str, at_time: datetime) -> Expiry:
    """Return the report about a token that the provider renews.

    :param issued: record of the token
    :param identity: the HarvesterClusterIdentity, for the message
    :param at_time: the time of the report
    """
    condition = f"condition {ConditionType.TOKEN_RENEWED} of {identity}"
    if not issued.is_overdue(at_time):
        # The message has no time, because it would change with each token.
        return Expiry(
            f"the provider renews the token, see {condition}",
            check_after=(issued.overdue_at - at_time).total_seconds(),
        )
    date = conditions.rfc3339(issued.expires_at)
    remaining = max(1.0, (issued.expires_at - at_time).total_seconds())
    message = f"the token ends at {date} and could not be renewed yet, see {condition}"
    return Expiry(message, Reason.IDENTITY_EXPIRING, remaining)


def _report_expiry(scope: ClusterScope, identity: Identity, note: str) -> None:
    """Report in the condition when the credentials expire.

    :param note: text that is appended to the message
    """
    if identity.renewed:
        name = describe(identity_of(scope.obj))
        expiry = renewal_report(identity.renewed, name, datetime.now(UTC))
    else:
        expiry = expiry_of(identity.expires, datetime.now(UTC))
    message = f"{secret_text(scope.obj)}: {expiry.message}{note}"
    scope.requeue_within(expiry.check_after)

    if expiry.reason is None:
        scope.draft.set_true(ConditionType.IDENTITY_UP_TO_DATE, message)
        return
    scope.draft.set_false(ConditionType.IDENTITY_UP_TO_DATE, expiry.reason, message)
    if not scope.draft.has_message(ConditionType.IDENTITY_UP_TO_DATE, message):
        scope.warning_event(expiry.reason, message)
