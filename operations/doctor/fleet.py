"""Check the state of Fleet's bundles in clusters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from caphv.api import names, remedies, resources
from caphv.api.object import Key, Obj, at, key_of, labels_of, owner_reference, text_at
from operations.read.objects import condition_of, time_of
from operations.status.check import Check, Result, ok, skipped
from operations.status.model import Cluster, State

# Agents report every 15 minutes.
_SILENT = timedelta(minutes=30)


def checks(
    fleet_clusters: Iterable[Obj], clusters: Iterable[Cluster], now: datetime
) -> Iterator[Check]:
    """Yield a check for each of these clusters that Fleet manages."""
    states = {cluster.key: cluster.state for cluster in clusters}
    for obj in sorted(fleet_clusters, key=key_of):
        key = _cluster_of(obj)
        if states.get(key) is State.PARKED:
            yield skipped("fleet", f"Cluster {key}", "the cluster is parked, so no agent reports")
        elif key in states:
            yield _check(obj, key, now)


def _check(obj: Obj, cluster: Key, now: datetime) -> Check:
    """Check that Fleet's agent reports, and that its bundles are ready."""
    subject = f"Cluster {cluster}"
    name = f"Fleet Cluster {key_of(obj)}"
    reported_at = time_of(at(obj, "status", "agent", "lastSeen"))
    if reported_at and now - reported_at > _SILENT:
        message = f"{name}: its agent last reported at {reported_at:%Y-%m-%d %H:%M} UTC"
        remedy = (
            "Check Deployment cattle-fleet-system/fleet-agent in the cluster, and whether it "
            "reaches the API server"
        )
        return Check("fleet", subject, Result.WARNING, message=message, remedy=remedy)

    ready = condition_of(obj, "Ready")
    bundles = text_at(obj, "status", "display", "readyBundles")
    if ready.get("status") == "False":
        # Fleet's text about a modified object ends with its values, which may come from a Secret.
        reason = text_at(ready, "message").partition(" {")[0]
        message = f"{name}: {bundles or 'not all'} bundles are ready: {reason}"
        remedy = f"Follow a setting to where it stopped: {remedies.TRACE_BUNDLES(ref=cluster)}"
        return Check("fleet", subject, Result.WARNING, message=message.rstrip(": "), remedy=remedy)
    return ok("fleet", subject, f"{name}: {bundles or 'all'} bundles are ready")


def _cluster_of(obj: Obj) -> Key:
    """Return the Cluster of a Fleet Cluster."""
    # Rancher labels the clusters that it imports.
    labels = labels_of(obj)
    namespace = labels.get(names.CAPI_OWNER_NAMESPACE_LABEL)
    name = labels.get(names.CAPI_OWNER_LABEL)
    if namespace and name:
        return Key(namespace, name)

    # CAAPF makes the Cluster the owner, or only gives both the same name.
    owner = owner_reference(obj, "Cluster", resources.CLUSTER_API_GROUP)
    return Key(key_of(obj).namespace, str(at(owner, "name") or key_of(obj).name))
