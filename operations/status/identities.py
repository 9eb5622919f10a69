"""Describe identities: the Harvester behind each, its expiry, and the clusters that use it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from caphv.api import clusterapi
from caphv.api.identities import KUBECONFIG_KEY, describe, identity_of
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, at, key_of, owner_reference
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.api.tokens import token_of
from caphv.runtime.kubeconfig import token_claims
from operations.read.accounts import Account
from operations.read.objects import Unseen, condition_of

_SOON = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Identity:
    """One identity Secret.

    `ends` is empty if the credentials state no expiry, `error` says why the Secret cannot be used.
    `state` is `rejected` if Harvester answers the provider with 401, however long they last.
    `lasting` says that the credentials are known not to expire, like a ServiceAccount's token in a
    Secret on Harvester. `renewed` says that the provider renews a token that ends soon.
    """

    secret: str
    server: str = ""
    ends: str = ""
    clusters: tuple[str, ...] = ()
    error: str = ""
    state: str = "valid"
    lasting: bool = False
    renewed: bool = False

    @property
    def wrong(self) -> bool:
        """Whether action is needed, because clusters use it and it is invalid or expires soon."""
        return bool(self.clusters) and self.state != "valid"


def unused_secrets(secrets: Iterable[Obj], used: Collection[Key]) -> list[Obj]:
    """Return the Secrets that have the form of an identity and are not in `used`."""
    return [
        obj
        for obj in secrets
        if obj.get("type", "Opaque") == "Opaque"
        and at(obj, "data", KUBECONFIG_KEY) is not None
        and key_of(obj) not in used
    ]


def identities_of(
    harvester_clusters: Iterable[Obj],
    accounts: Iterable[Account],
    unseen: Iterable[Unseen],
    now: datetime,
    unused: Iterable[Key] = (),
) -> tuple[Identity, ...]:
    """Return the identities of these HarvesterClusters, and `unused` ones, by namespace and name.

    Clusters that may not use the identity that they name have an entry of their own.

    :param harvester_clusters: the HarvesterClusters whose identities are returned
    :param accounts: the identities that could be read
    :param unseen: the identities that could not be read, and why
    :param now: the current time
    :param unused: identities that no HarvesterCluster refers to
    """
    accounts_by_key = {account.identity: account for account in accounts}
    clusters: dict[Key, set[str]] = {key: set() for key in unused}
    unserved: dict[Key, set[str]] = {}
    rejected = set()
    for obj in harvester_clusters:
        key = identity_of(obj)
        cluster = f"{key_of(obj).namespace}/{_cluster_name(obj)}"
        account = accounts_by_key.get(key)
        if account is None or not account.serves(obj):
            unserved.setdefault(key, set()).add(cluster)
            continue
        clusters.setdefault(key, set()).add(cluster)
        # Conditions of a paused HarvesterCluster may be older than the credentials.
        connection = condition_of(obj, ConditionType.HARVESTER_CONNECTION_READY)
        is_rejected = connection.get("reason") == Reason.HARVESTER_AUTHENTICATION_FAILED
        if is_rejected and condition_of(obj, "Paused").get("status") != "True":
            rejected.add(key)

    errors: dict[str, list[str]] = {}
    for item in unseen:
        errors.setdefault(item.what, []).append(item.why)
    identities = []
    for key in sorted(clusters.keys() | unserved.keys()):
        account = accounts_by_key.get(key)
        if account and key in clusters:
            identity = _identity(account, sorted(clusters[key]), now)
            if key in rejected and identity.state != "expired":
                identity = replace(identity, state="rejected")
            identities.append(identity)
        if account is None or key in unserved:
            names = unserved.get(key, set())
            error = "; ".join(errors.get(describe(key), ["cannot be read"]))
            unusable = Identity(
                str(key), clusters=tuple(sorted(names)), error=error, state="unusable"
            )
            identities.append(unusable)
    return tuple(identities)


def _identity(account: Account, clusters: Sequence[str], now: datetime) -> Identity:
    """Return an identity that can be used, with the end of its credentials."""
    ends = account.kubeconfig.expires()
    state = "valid"
    if account.renewed is not None:
        ends = account.renewed.expires_at
        state = "expiring" if account.renewed.is_overdue(now) else "valid"
    elif ends is not None and ends - now <= _SOON:
        state = "expired" if ends <= now else "expiring"
    elif not clusters:
        state = "unused"

    # A token of a Secret on Harvester does not expire. The expiry of other tokens may be unknown.
    token = token_of(token_claims(account.kubeconfig.token))
    return Identity(
        str(account.identity),
        account.kubeconfig.server,
        ends.isoformat(timespec="seconds").replace("+00:00", "Z") if ends else "",
        tuple(clusters),
        state=state,
        lasting=ends is None and token is not None and bool(token.secret),
        renewed=account.renewed is not None,
    )


def _cluster_name(obj: Obj) -> str:
    """Return the name of the Cluster of a HarvesterCluster, by owner, label or its own name."""
    reference = owner_reference(obj, "Cluster", CLUSTER_API_GROUP)
    if reference:
        return str(reference["name"])
    return clusterapi.cluster_name(obj) or key_of(obj).name
