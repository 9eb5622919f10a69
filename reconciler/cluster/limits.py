"""Report while a server or a cluster has reached a limit of the resources that it may use.

This module blocks nothing. If a limit has an effect, for example because caches cannot be filled,
the affected condition has the message, too.
"""

from __future__ import annotations

from caphv.api.names import ConditionType, Reason
from reconciler.cluster.scope import ClusterScope

_CONDITION = ConditionType.WITHIN_LIMITS
_AGAIN_SECONDS = 60.0


def report_limits(scope: ClusterScope) -> None:
    """Set the condition while a limit is reached, and remove it afterwards."""
    servers = {
        "Harvester": scope.session.client if scope.session else None,
        "the workload cluster": scope.context.workloads.client(scope.cluster_key),
    }
    reached = []
    for name, client in servers.items():
        if client and client.limits:
            reached.append(f"{name} at {client.server}: {', '.join(client.limits)}")
    if scope.context.events.is_limited(scope.obj):
        reached.append("this HarvesterCluster has too many Events; further ones are not written")

    if not reached:
        scope.draft.drop(_CONDITION)
        return

    # Check again after a time, because no event reports the end of a limit.
    scope.requeue_within(_AGAIN_SECONDS)
    scope.draft.set_false(_CONDITION, Reason.LIMIT_REACHED, "; ".join(reached))
