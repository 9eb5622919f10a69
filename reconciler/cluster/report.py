"""Report in status, Events and metric of a cluster that a phase has to wait."""

from __future__ import annotations

import contextlib

from caphv.api.conditions import get_condition
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, being_deleted
from caphv.runtime.errors import ApiError
from reconciler import metrics
from reconciler.blocked import Blocked
from reconciler.cluster import refusals
from reconciler.cluster.scope import ClusterScope
from reconciler.triggers import Watched


def report_wait(scope: ClusterScope, blocked: Blocked) -> None:
    """Set the conditions of a phase that waits, and emit an Event for a new failure."""
    scope.draft.set_false(blocked.condition, blocked.reason, blocked.message)

    # A ready cluster stays ready during an outage of Harvester's API, which stops no VM. Otherwise
    # Cluster API would report the cluster as unavailable.
    stays_ready = (
        blocked.is_outage and scope.draft.fields.get("ready") and not being_deleted(scope.obj)
    )
    if not stays_ready:
        for summary in (ConditionType.INFRASTRUCTURE_READY, ConditionType.READY):
            if summary is not blocked.condition:
                scope.draft.set_false(summary, blocked.reason, blocked.message)
        scope.draft.set_ready(ready=False)

    if blocked.warn and not scope.draft.has_message(blocked.condition, blocked.message):
        scope.warning_event(blocked.reason, blocked.message)


def seconds_of_grace(scope: ClusterScope, blocked: Blocked) -> float:
    """Return for how many seconds to keep the stored status, 0 to report the wait now.

    The status is kept for a while if this process or its connection has just started, and therefore
    knows less than the status.
    """
    if not blocked.is_unknown:
        scope.memory.grace.mark_known()
        return 0.0
    return scope.memory.grace.remaining(blocked.condition) if _says_more(scope, blocked) else 0.0


def _says_more(scope: ClusterScope, blocked: Blocked) -> bool:
    """Return whether the stored status says more than "unknown".

    It does if it reports that the cluster is ready, or why not. If a condition already reports a
    failure, it gets the current cause at once.
    """
    status = scope.obj.get("status") or {}
    reported = get_condition(status.get("conditions") or [], blocked.condition)
    if blocked.warn and reported is not None and reported.get("status") == "False":
        return False
    return bool(status.get("ready")) or (not blocked.warn and reported is not None)


def refused_request(scope: ClusterScope, error: ApiError) -> Blocked:
    """Return the `Blocked` of a cluster after a server has refused a request."""
    return Blocked(
        ConditionType.INFRASTRUCTURE_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
        f"a request was refused {refusals.explain(error, scope.target_namespace)}",
        Watched.SELF,  # in addition to the back-off of the failed reconcile
        warn=True,
    )


def set_metric(scope: ClusterScope) -> None:
    """Set the metric of readiness from the drafted status."""
    ready = bool(scope.draft.fields.get("ready"))
    metrics.CLUSTER_READY.labels(str(scope.key)).set(int(ready))


def remove_metric(key: Key) -> None:
    """Remove the metric of a cluster that was deleted, or is paused or managed by others."""
    with contextlib.suppress(KeyError):
        metrics.CLUSTER_READY.remove(str(key))
