"""Checks of what Fleet deploys to clusters: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from caphv.api import names, remedies, resources
from caphv.api.object import Key, Obj, key_of, labels_of, owner_reference
from overview.doctor.model import Check, Result, ok
from overview.objects import condition_of

_SILENT = timedelta(minutes=30)
"""Agents report every 15 minutes."""


def checks(fleet_clusters: Iterable[Obj], clusters: Iterable[Key], now: datetime) -> Iterator[Check]:
    """Yield a check for each of these clusters that Fleet manages."""
    wanted = frozenset(clusters)
    for obj in sorted(fleet_clusters, key=key_of):
        cluster = _cluster_of(obj)
        if cluster in wanted:
            yield _check(obj, cluster, now)


def _check(obj: Obj, cluster: Key, now: datetime) -> Check:
    subject, status = f"Cluster {cluster}", obj.get("status") or {}
    seen = _time((status.get("agent") or {}).get("lastSeen"))
    if seen and now - seen > _SILENT:
        message = f"Fleet Cluster {key_of(obj)}: its agent last reported at {seen:%Y-%m-%d %H:%M} UTC"
        remedy = (
            "Check Deployment cattle-fleet-system/fleet-agent in the cluster, and whether it reaches the API server"
        )
        return Check("fleet", subject, Result.WARNING, message, remedy)
    ready = condition_of(obj, "Ready")
    bundles = str((status.get("display") or {}).get("readyBundles") or "")
    if ready.get("status") == "False":
        # Fleet's text of a change ends with the values, which may be those of a Secret.
        reason = str(ready.get("message") or "").partition(" {")[0]
        message = f"Fleet Cluster {key_of(obj)}: {bundles or 'not all'} bundles are ready: {reason}"
        remedy = f"Follow a setting to where it stopped: {remedies.TRACE_BUNDLES(ref=cluster)}"
        return Check("fleet", subject, Result.WARNING, message.rstrip(": "), remedy)
    return ok("fleet", subject, f"Fleet Cluster {key_of(obj)}: {bundles or 'all'} bundles are ready")


def _cluster_of(obj: Obj) -> Key:
    """Rancher's carries labels with its Cluster; CAAPF's is owned by it, or has its name."""
    labels = labels_of(obj)
    namespace, name = labels.get(names.CAPI_OWNER_NAMESPACE_LABEL), labels.get(names.CAPI_OWNER_LABEL)
    if namespace and name:
        return Key(namespace, name)
    owner = owner_reference(obj, "Cluster", resources.CLUSTER_API_GROUP)
    return Key(key_of(obj).namespace, str((owner or {}).get("name") or key_of(obj).name))


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None
