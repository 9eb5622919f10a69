"""Which identities lead to which Harvester, when they expire, and which clusters depend on them: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from caphv.api import clusterapi
from caphv.api.object import Key, Obj, key_of, owner_reference
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.api.tokens import token_of
from caphv.runtime.kubeconfig import token_claims
from overview.harvester import Account, identity_of
from overview.objects import Unseen

_SOON = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Identity:
    """One identity Secret; `ends` is empty if the credentials state no end, `error` says why it cannot be used.

    `lasting` says that they are known to have none, as tokens of a ServiceAccount that a Secret on Harvester holds.
    """

    secret: str
    server: str = ""
    ends: str = ""
    clusters: tuple[str, ...] = ()
    error: str = ""
    state: str = "valid"
    lasting: bool = False

    @property
    def wrong(self) -> bool:
        """Whether action is needed: clusters use it, and it is not valid, or not for long."""
        return bool(self.clusters) and self.state != "valid"


def unused_secrets(secrets: Iterable[Obj], used: Collection[Key]) -> list[Obj]:
    """Return the Secrets that have the form of an identity and are none of those `used`."""
    return [
        obj
        for obj in secrets
        if obj.get("type", "Opaque") == "Opaque" and "kubeconfig" in (obj.get("data") or {}) and key_of(obj) not in used
    ]


def identities_of(
    harvester_clusters: Iterable[Obj],
    accounts: Iterable[Account],
    unseen: Iterable[Unseen],
    now: datetime,
    unused: Iterable[Key] = (),
) -> tuple[Identity, ...]:
    """Return the identities of these HarvesterClusters, and `unused` ones, by namespace and name."""
    clusters: dict[Key, set[str]] = {key: set() for key in unused}
    for obj in harvester_clusters:
        clusters.setdefault(identity_of(obj), set()).add(f"{key_of(obj).namespace}/{_cluster_name(obj)}")
    known = {account.identity: account for account in accounts}
    errors = {each.what.removeprefix("identity Secret "): each.why for each in unseen}
    found = []
    for key, names in sorted(clusters.items()):
        account = known.get(key)
        if account is None:
            error = errors.get(str(key), "cannot be read")
            found.append(Identity(str(key), clusters=tuple(sorted(names)), error=error, state="unusable"))
            continue
        ends = account.access.expires()
        state = "valid" if ends is None or ends - now > _SOON else "expired" if ends <= now else "expiring"
        if not names and state == "valid":
            state = "unused"
        text = ends.isoformat(timespec="seconds").replace("+00:00", "Z") if ends else ""
        token = token_of(token_claims(account.access.token))
        lasting = ends is None and token is not None and bool(token.secret)
        found.append(
            Identity(str(key), account.access.server, text, tuple(sorted(names)), state=state, lasting=lasting)
        )
    return tuple(found)


def _cluster_name(obj: Obj) -> str:
    reference = owner_reference(obj, "Cluster", CLUSTER_API_GROUP)
    return str(reference["name"]) if reference else clusterapi.cluster_name(obj) or key_of(obj).name
