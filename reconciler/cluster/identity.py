"""Read credentials from identity Secrets, and report when they expire.

Expiry is reported ahead of time, because tokens of Rancher and Kubernetes expire without a warning,
and then every request is refused. One delayed requeue per cluster is enough, so nothing polls.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from caphv.api import conditions, names
from caphv.api.names import ConditionType, Reason
from caphv.api.object import SECRETS, Key, Obj, annotations_of, at, being_deleted
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig
from caphv.runtime.text import off_loop
from reconciler import metrics
from reconciler.cluster.identityprotection import MISSING_RIGHT, RETRY_SECONDS, IdentityProtection
from reconciler.cluster.references import may_use, refusal, refused_references
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.session import Session
from reconciler.status import Blocked
from reconciler.triggers import Trigger, Watched

WARN_AHEAD = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of one version of an identity Secret."""

    version: str
    access: Kubeconfig
    expires: datetime | None
    metadata: Obj = field(repr=False)
    """Namespace, name and annotations of the Secret, which decide who may use it."""


class PermissionWithdrawn(Exception):
    """The present version of an identity Secret does not permit its use any more."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """The report about an expiry; it has no reason if no action is due.

    The report changes after `check_after` seconds.
    """

    message: str
    reason: Reason | None = None
    check_after: float | None = None


class Identities:
    """Read each version of an identity Secret once, and track which clusters use it.

    With a `namespace`, Secrets in other namespaces are refused, because the provider neither
    watches them nor may read them.
    """

    def __init__(self, *, allow_insecure: bool, namespace: str = "") -> None:
        self._allow_insecure = allow_insecure
        self._namespace = namespace
        self._read: dict[Key, Identity] = {}
        self._uses: dict[Key, tuple[Key, str]] = {}

    async def read(self, scope: ClusterScope) -> Identity:
        """Return the identity of a cluster, from memory while its Secret has the same version.

        Also reads the Secret again after a change of the cluster's annotation
        `caphv.io/reconcile-at`. Raises `Blocked` if the identity is invalid, and
        `PermissionWithdrawn` if the version on the server does not permit its use, whatever the
        cache says.
        """
        secret = secret_of(scope.obj)
        self.require_namespace(secret)

        use = secret, annotations_of(scope.obj).get(names.RECONCILE_AT_ANNOTATION, "")
        listed, parsed = scope.context.caches.secrets.get(*secret), self._read.get(secret)
        current = parsed and listed and parsed.version == listed["metadata"]["resourceVersion"]
        if parsed and current and self._uses.setdefault(scope.key, use) == use:
            _require_permission(parsed.metadata, scope.obj)
            return parsed

        try:
            full = await scope.context.client.get(SECRETS, secret.name, secret.namespace)
            _require_permission(full["metadata"], scope.obj)
            identity = await self._parse(secret, full)
        except NotFound:
            self._drop(secret)
            message = f"identity Secret {secret}: not found; create it with key kubeconfig"
            raise connection_failure(message) from None
        except Blocked:
            self._drop(secret)
            raise

        self.release(scope.key)
        self._drop(secret)
        self._uses[scope.key] = use
        self._read[secret] = identity
        if identity.expires:
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
        secret, _ = self._uses.pop(cluster, (None, ""))
        if secret and not any(used == secret for used, _ in self._uses.values()):
            self._drop(secret)

    async def _parse(self, where: Key, secret: Obj) -> Identity:
        """Parse the kubeconfig in a Secret. Raises `Blocked` if it is invalid."""
        value = at(secret, "data", "kubeconfig")
        if not value:
            raise connection_failure(
                f"identity Secret {where}: key kubeconfig is missing; store the kubeconfig of "
                "Harvester under it"
            )
        try:
            raw = base64.b64decode(value)
            access = await off_loop(
                len(raw), lambda: parse_kubeconfig(raw, allow_insecure=self._allow_insecure)
            )
        except (KubeconfigError, binascii.Error) as error:
            raise connection_failure(f"identity Secret {where}: {error}") from None

        metadata = secret["metadata"]
        kept = {
            name: metadata[name]
            for name in ("namespace", "name", "annotations")
            if name in metadata
        }
        return Identity(metadata["resourceVersion"], access, access.expires(), kept)

    def _drop(self, secret: Key) -> None:
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
    identity = await _permitted_identity(scope, identities)
    # Assign the session first, so that its limits are reported even if a later request fails.
    scope.session = await _assign(scope, identity.access)

    # Only the status of a cluster that is paused or being deleted may be written.
    fixed = scope.read_only or being_deleted(scope.obj)
    protected = fixed or await protection.ensure(secret_of(scope.obj))
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
    secret = secret_of(scope.obj)
    identities.require_namespace(secret)

    refused = await refused_references(scope, secret)
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


def _require_permission(metadata: Obj, cluster: Obj) -> None:
    if not may_use({"metadata": metadata}, cluster):
        raise PermissionWithdrawn


async def _assign(scope: ClusterScope, access: Kubeconfig) -> Session:
    """Return the cluster's session with these credentials. Raises `Blocked` if they are invalid."""
    try:
        return await scope.context.sessions.assign(
            scope.key,
            access,
            scope.target_namespace,
            identity=str(secret_of(scope.obj)),
            harvester_uid=str(at(scope.draft.fields, "harvester", "uid") or ""),
        )
    except KubeconfigError as error:
        message = f"identity Secret {secret_of(scope.obj)}: {error}"
        raise connection_failure(message) from None


def secret_of(obj: Obj) -> Key:
    """Return the key of the identity Secret that a HarvesterCluster names."""
    reference = obj["spec"].get("identitySecret") or {}
    return Key(str(reference.get("namespace") or ""), str(reference.get("name") or ""))


def connection_failure(message: str, *triggers: Trigger, outage: bool = False) -> Blocked:
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
        outage=outage,
    )


def _seconds_until(moment: datetime) -> Callable[[], float]:
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

    remaining, date = expires - at_time, conditions.rfc3339(expires)
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


def _report_expiry(scope: ClusterScope, identity: Identity, note: str) -> None:
    """Report in the condition when the credentials expire.

    :param note: text that is appended to the message
    """
    expiry = expiry_of(identity.expires, datetime.now(UTC))
    message = f"identity Secret {secret_of(scope.obj)}: {expiry.message}{note}"
    scope.requeue_within(expiry.check_after)

    if expiry.reason is None:
        scope.draft.set_true(ConditionType.IDENTITY_UP_TO_DATE, message)
        return
    scope.draft.set_false(ConditionType.IDENTITY_UP_TO_DATE, expiry.reason, message)
    if not scope.draft.has_message(ConditionType.IDENTITY_UP_TO_DATE, message):
        scope.warning_event(expiry.reason, message)
