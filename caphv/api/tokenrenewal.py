"""When the provider renews the token of a HarvesterClusterIdentity, and which token counts: pure.

With field `tokenRenewal`, the provider exchanges the credentials in the user's Secret for a token
that ends soon. The provider keeps this token in a Secret of its own, whose annotations record the
exchanged credentials and the times. All times are by the clock of this process, because clocks of
servers may differ: a server only says how long a token lives.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from caphv.api.conditions import rfc3339
from caphv.api.names import (
    EXPIRES_AT_ANNOTATION,
    INPUTS_ANNOTATION,
    RENEW_AT_ANNOTATION,
)
from caphv.api.object import Key, Obj, annotations_of, at, list_at, text_at

DEFAULT_SECONDS = 3600
SECRET_TYPE = "infrastructure.cluster.x-k8s.io/renewed-token"  # noqa: S105 - a type
"""Type of the Secrets with renewed tokens. It never changes, so that no other Secret gets it."""
ALL_TARGETS = "*"
BOUND_PREFIX = "caphv-renewal-"
"""Start of the names of Secrets, Roles and RoleBindings on Harvester with which tokens end."""
_PREFIX = "renewed-token."
# A token is renewed at two thirds of its life at the latest, and up to this share of it earlier, so
# that tokens which were issued together are not renewed together.
_RENEWED_SHARE = 2 / 3
_SPREAD = 0.07
# No request starts with a token that ends within this share of its life, or so many seconds.
_MARGIN_SHARE = 0.05
_LONGEST_MARGIN = 30.0
_RETRY_SECONDS = (5.0, 60.0)
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
# kube-apiserver issues no token that lives less than 600 seconds.
SHORTEST_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Renewal:
    """Field `tokenRenewal` of a HarvesterClusterIdentity.

    :param seconds: life of each token
    :param account: the ServiceAccount on Harvester to create, None for that of the credentials
    :param targets: its target namespaces, empty for all
    :param server: URL of Harvester's API server, empty for the default
    """

    seconds: int = DEFAULT_SECONDS
    account: Key | None = None
    targets: tuple[str, ...] = ()
    server: str = ""


@dataclass(frozen=True, slots=True)
class Issued:
    """The record of a token in the annotations of its Secret.

    :param source: fingerprint of the credentials that were exchanged
    :param scope: hashes of owner and settings, see `scope_of`
    :param renew_at: when the token should be renewed
    :param expires_at: until when requests may start with the token
    """

    source: str
    scope: str
    renew_at: datetime
    expires_at: datetime

    def is_usable(self, now: datetime) -> bool:
        """Return whether requests may start with the token."""
        return now < self.expires_at

    def is_of(self, scope: str) -> bool:
        """Return whether a scope has the same owner, whatever the settings are."""
        return self.scope.partition("-")[0] == scope.partition("-")[0]

    def end(self) -> Issued:
        """Return the record with which this token is not used any more.

        The time when the token really ends stays in the record, in `renew_at`.
        """
        return replace(self, renew_at=self.ends_at, expires_at=_LONG_AGO)

    @property
    def ends_at(self) -> datetime:
        """When the token ends, even if it is not used any more, because it may have to be revoked.

        See `end`, which leaves the time in `renew_at`.
        """
        return max(self.renew_at, self.expires_at)

    @property
    def overdue_at(self) -> datetime:
        """When a token that is still in use should have been renewed."""
        return self.renew_at + (self.expires_at - self.renew_at) / 2

    def is_overdue(self, now: datetime) -> bool:
        """Return whether renewing has failed for so long that a user should know."""
        return now >= self.overdue_at

    def annotations(self) -> dict[str, str]:
        """Return the annotations that record this."""
        return {
            INPUTS_ANNOTATION: f"{self.source}.{self.scope}",
            RENEW_AT_ANNOTATION: rfc3339(self.renew_at),
            EXPIRES_AT_ANNOTATION: rfc3339(self.expires_at),
        }


def renewal_of(identity: Obj) -> Renewal | None:
    """Return the field of a HarvesterClusterIdentity, None without it."""
    spec = at(identity, "spec", "tokenRenewal")
    if spec is None:
        return None
    account = at(spec, "serviceAccount")
    targets = tuple(list_at(account, "targetNamespaces"))
    return Renewal(
        int(at(spec, "expirationSeconds") or DEFAULT_SECONDS),
        Key(str(account["namespace"]), str(account["name"])) if account else None,
        () if ALL_TARGETS in targets else targets,
        text_at(spec, "server").rstrip("/"),
    )


def secret_name(identity: str) -> str:
    """Return the name of the Secret with the renewed token of an identity."""
    return f"{_PREFIX}{identity}"


def identity_name(secret: str) -> str:
    """Return the identity of a Secret that has a name of `secret_name`, empty for other names."""
    return secret.removeprefix(_PREFIX) if secret.startswith(_PREFIX) else ""


def scope_of(renewal: Renewal, identity_uid: str, management_cluster: str) -> str:
    """Return two hashes, joined by a dash: of the owner of a token, and of its settings.

    The owner is an identity in a management cluster. A Secret with another owner was written by
    another management cluster, or for a former identity of this name, and its token is not revoked
    here. A token with former settings stays valid until there is a token with the new settings.
    """
    # The life of a token counts from the next renewal on.
    settings = renewal.account, renewal.targets, renewal.server
    return f"{_hash(identity_uid, management_cluster)}-{_hash(*settings)}"


def bound_name(identity_uid: str, management_cluster: str, account: str) -> str:
    """Return the name of the Secret on Harvester whose deletion revokes the tokens.

    :param account: name of the ServiceAccount that has them
    """
    return f"{BOUND_PREFIX}{_hash(identity_uid, management_cluster, account)}"


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def issued_at(now: datetime, seconds: float, source: str, scope: str) -> Issued:
    """Return the record of a token.

    :param now: a time before the token was requested
    :param seconds: how long the token lives
    :param source: fingerprint of the credentials that were exchanged
    :param scope: see `scope_of`
    """
    # The share depends on the token alone, so that a restart does not choose again.
    digest = hashlib.sha256(f"{scope} {now.isoformat()}".encode()).digest()
    share = _RENEWED_SHARE - _SPREAD * digest[0] / 255
    margin = min(_LONGEST_MARGIN, seconds * _MARGIN_SHARE)
    return Issued(
        source,
        scope,
        now + timedelta(seconds=seconds * share),
        now + timedelta(seconds=seconds - margin),
    )


def issued_of(secret: Obj) -> Issued | None:
    """Return the record in the annotations of a Secret, None if it has none that can be read."""
    notes = annotations_of(secret)
    source, _, scope = notes.get(INPUTS_ANNOTATION, "").partition(".")
    try:
        times = [
            datetime.fromisoformat(notes[name]).astimezone(UTC)
            for name in (RENEW_AT_ANNOTATION, EXPIRES_AT_ANNOTATION)
        ]
    except (KeyError, ValueError, OverflowError):
        return None
    return Issued(source, scope, *times) if source and scope else None


def seconds_to_retry(issued: Issued | None, now: datetime) -> float:
    """Return the wait after an attempt that failed: shorter, the sooner the token ends."""
    least, most = _RETRY_SECONDS
    if issued is None or not issued.is_usable(now):
        return most
    return max(least, min(most, (issued.expires_at - now).total_seconds() / 10))
