"""Which identities lead to which Harvester, when they expire, and which clusters depend on them: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from caphv.api import clusterapi
from caphv.api.object import Key, Obj, key_of, owner_reference
from caphv.api.resources import CLUSTER_API_GROUP
from overview.harvester import Account, identity_of
from overview.objects import Unseen

_SOON = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Identity:
    """One identity Secret; `ends` is empty if the credentials state no end, `error` says why it cannot be used."""

    secret: str
    server: str = ""
    ends: str = ""
    clusters: tuple[str, ...] = ()
    error: str = ""
    state: str = "valid"

    @property
    def wrong(self) -> bool:
        """Whether action is needed."""
        return self.state != "valid"


def identities_of(
    harvester_clusters: Iterable[Obj], accounts: Iterable[Account], unseen: Iterable[Unseen], now: datetime
) -> tuple[Identity, ...]:
    """Return the identities of these HarvesterClusters, by namespace and name."""
    clusters: dict[Key, set[str]] = {}
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
        text = ends.isoformat(timespec="seconds").replace("+00:00", "Z") if ends else ""
        found.append(Identity(str(key), account.access.server, text, tuple(sorted(names)), state=state))
    return tuple(found)


def _cluster_name(obj: Obj) -> str:
    reference = owner_reference(obj, "Cluster", CLUSTER_API_GROUP)
    return str(reference["name"]) if reference else clusterapi.cluster_name(obj) or key_of(obj).name
