"""Reads credentials from identity Secrets, and reports when they expire.

Expiry is reported ahead of time, because tokens of Rancher and Kubernetes expire without a warning, and then every
request is refused. One delayed requeue per cluster is enough; nothing polls.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from caphv.api import conditions, names
from caphv.api.names import ConditionType, Reason
from caphv.api.object import SECRETS, Key, Obj, annotations_of, being_deleted
from caphv.runtime.errors import AddressRefused, NotFound
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig
from caphv.runtime.text import off_loop
from reconciler import metrics
from reconciler.cluster.identityprotection import MISSING_RIGHT, RETRY_SECONDS, IdentityProtection
from reconciler.cluster.references import check_references, may_use, refusal
from reconciler.cluster.scope import ClusterScope
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
    """Namespace, name and annotations, which say who may use it."""


class PermissionWithdrawn(Exception):
    """The owner of an identity Secret no longer permits its use: the version that was read says so."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """What to report of an expiry: no reason if all is well; it changes after `check_after` seconds."""

    message: str
    reason: Reason | None = None
    check_after: float | None = None


class Identities:
    """Parsed identity Secrets, each version read once, and which cluster uses which of them.

    With a `namespace`, Secrets in other namespaces are refused: the provider neither watches them nor may read them.
    """

    def __init__(self, *, allow_insecure: bool, namespace: str = "") -> None:
        self._allow_insecure = allow_insecure
        self._namespace = namespace
        self._read: dict[Key, Identity] = {}
        self._uses: dict[Key, tuple[Key, str]] = {}

    async def read(self, scope: ClusterScope) -> Identity:
        """The identity of a cluster. Raises `Blocked` if it is invalid.

        It is read again when the Secret or the cluster's `caphv.io/reconcile-at` has changed. Raises
        `PermissionWithdrawn` for one that the version to be used does not permit: the cache may be older.
        """
        secret = secret_of(scope.obj)
        self.require_namespace(secret)
        use = secret, annotations_of(scope.obj).get(names.RECONCILE_AT_ANNOTATION, "")
        listed, known = scope.context.caches.secrets.get(*secret), self._read.get(secret)
        current = known and listed and known.version == listed["metadata"]["resourceVersion"]
        if known and current and self._uses.setdefault(scope.key, use) == use:
            _require_permission(known.metadata, scope.obj)
            return known
        try:
            full = await scope.context.client.get(SECRETS, secret.name, secret.namespace)
            _require_permission(full["metadata"], scope.obj)
            identity = await self._parse(secret, full)
        except NotFound:
            self._drop(secret)
            raise failed(f"identity Secret {secret}: not found; create it with key kubeconfig") from None
        except Blocked:
            self._drop(secret)
            raise
        self.release(scope.key)
        self._drop(secret)
        self._uses[scope.key] = use
        self._read[secret] = identity
        if identity.expires:
            metrics.IDENTITY_EXPIRY.labels(str(secret)).set_function(_seconds_until(identity.expires))
        return identity

    def require_namespace(self, secret: Key) -> None:
        """Raise `Blocked` for a Secret in a namespace that the provider does not read."""
        if self._namespace and secret.namespace != self._namespace:
            raise failed(
                f"identity Secret {secret}: this provider reads Secrets in namespace {self._namespace} only "
                "(--namespace); create it there, and set spec.identitySecret"
            )

    def release(self, cluster: Key) -> None:
        """Release the identity of a cluster that was deleted or uses another Secret."""
        secret, _ = self._uses.pop(cluster, (None, ""))
        if secret and not any(used == secret for used, _ in self._uses.values()):
            self._drop(secret)

    async def _parse(self, where: Key, secret: Obj) -> Identity:
        value = (secret.get("data") or {}).get("kubeconfig")
        if not value:
            raise failed(
                f"identity Secret {where}: key kubeconfig is missing; store the kubeconfig of Harvester under it"
            )
        try:
            raw = base64.b64decode(value)
            access = await off_loop(len(raw), lambda: parse_kubeconfig(raw, allow_insecure=self._allow_insecure))
        except (KubeconfigError, binascii.Error) as error:
            raise failed(f"identity Secret {where}: {error}") from None
        metadata = secret["metadata"]
        kept = {name: metadata[name] for name in ("namespace", "name", "annotations") if name in metadata}
        return Identity(metadata["resourceVersion"], access, access.expires(), kept)

    def _drop(self, secret: Key) -> None:
        self._read.pop(secret, None)
        with contextlib.suppress(KeyError):
            metrics.IDENTITY_EXPIRY.remove(str(secret))


async def ensure_session(scope: ClusterScope, identities: Identities, protection: IdentityProtection) -> None:
    """Read the identity and assign a session to the cluster; `spec.server` follows the kubeconfig (contract)."""
    identity = await open_session(scope, identities)
    protected = scope.read_only or being_deleted(scope.obj) or await protection.ensure(secret_of(scope.obj))
    _report_expiry(scope, identity, "" if protected else f"; {MISSING_RIGHT}")
    if not protected:
        scope.requeue_within(RETRY_SECONDS)
    server = identity.access.server
    fixed = scope.read_only or being_deleted(scope.obj)
    if scope.obj["spec"].get("server") != server and not fixed:
        await scope.patch_spec({"server": server})


async def open_session(scope: ClusterScope, identities: Identities) -> Identity:
    """Read the identity and assign a session to the cluster. Raises `Blocked`; writes nothing."""
    secret = secret_of(scope.obj)
    identities.require_namespace(secret)
    refused = (await check_references(scope, secret)).refused
    if any(reference.key == secret and reference.kind == SECRETS.kind for reference in refused):
        identities.release(scope.key)
        if scope.context.caches.secrets.get(*secret):
            await scope.context.sessions.release(scope.key)  # its owner has withdrawn the permission
        raise failed(refusal(scope, f"identity Secret {secret}"))
    try:
        identity = await identities.read(scope)
    except PermissionWithdrawn:
        identities.release(scope.key)
        await scope.context.sessions.release(scope.key)
        raise failed(refusal(scope, f"identity Secret {secret}")) from None
    await _assign(scope, identity.access)
    if isinstance(scope.connected().error, AddressRefused) and _predates_the_check(scope):
        scope.memory.any_address_for = identity.access.fingerprint
        await _assign(scope, identity.access)
    return identity


def _require_permission(metadata: Obj, cluster: Obj) -> None:
    if not may_use({"metadata": metadata}, cluster):
        raise PermissionWithdrawn


def _predates_the_check(scope: ClusterScope) -> bool:
    """Whether the cluster has used its Harvester since before addresses were checked: then a warning must do."""
    fields = scope.draft.fields
    harvester = fields.get("harvester") or {}
    return bool(harvester.get("uid") or fields.get("ready")) and not harvester.get("addressChecked")


async def _assign(scope: ClusterScope, access: Kubeconfig) -> None:
    if scope.memory.any_address_for == access.fingerprint:
        access = dataclasses.replace(access, any_address=True)
    try:
        scope.session = await scope.context.sessions.assign(
            scope.key,
            access,
            scope.target_namespace,
            identity=str(secret_of(scope.obj)),
            harvester_uid=str((scope.draft.fields.get("harvester") or {}).get("uid") or ""),
        )
    except KubeconfigError as error:
        raise failed(f"identity Secret {secret_of(scope.obj)}: {error}") from None


def secret_of(obj: Obj) -> Key:
    """The identity Secret that a HarvesterCluster names."""
    reference = obj["spec"].get("identitySecret") or {}
    return Key(str(reference.get("namespace") or ""), str(reference.get("name") or ""))


def failed(message: str, *triggers: Trigger, outage: bool = False) -> Blocked:
    """The connection fails until a user changes the identity, or until another trigger."""
    condition, reason = ConditionType.HARVESTER_CONNECTION_READY, Reason.HARVESTER_CONNECTION_FAILED
    return Blocked(condition, reason, message, Watched.SECRET, Watched.SELF, *triggers, warn=True, outage=outage)


def _seconds_until(moment: datetime) -> Callable[[], float]:
    def seconds() -> float:
        return (moment - datetime.now(UTC)).total_seconds()

    return seconds


def expiry_of(expires: datetime | None, now: datetime) -> Expiry:
    """What to report of credentials that expire at that time."""
    if expires is None:
        return Expiry("the credentials do not state an expiry date")
    left, date = expires - now, conditions.rfc3339(expires)
    if left > WARN_AHEAD:
        return Expiry(f"the credentials are valid until {date}", check_after=(left - WARN_AHEAD).total_seconds())
    if left > timedelta(0):
        message = f"the credentials expire at {date}; put a new kubeconfig into the Secret before"
        return Expiry(message, Reason.IDENTITY_EXPIRING, left.total_seconds())
    message = f"the credentials expired at {date}; put a new kubeconfig into the Secret"
    return Expiry(message, Reason.IDENTITY_EXPIRED)


def _report_expiry(scope: ClusterScope, identity: Identity, note: str) -> None:
    expiry = expiry_of(identity.expires, datetime.now(UTC))
    message = f"identity Secret {secret_of(scope.obj)}: {expiry.message}{note}"
    scope.requeue_after = expiry.check_after
    if expiry.reason is None:
        scope.draft.set_true(ConditionType.IDENTITY_UP_TO_DATE, message)
        return
    scope.draft.set_false(ConditionType.IDENTITY_UP_TO_DATE, expiry.reason, message)
    if not scope.draft.has_message(ConditionType.IDENTITY_UP_TO_DATE, message):
        scope.warning_event(expiry.reason, message)
