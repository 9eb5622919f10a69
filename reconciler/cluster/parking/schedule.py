"""Record on a Cluster whether its schedule parks it now.

All other code reads only this record, so that it does not depend on the clocks of its readers. A
timer requeues the cluster for the next change.
"""

from __future__ import annotations

from datetime import datetime

from caphv.api import clusterapi, parking
from caphv.api.names import PARKED_BY_SCHEDULE_ANNOTATION, Reason
from caphv.api.object import annotations_of, being_deleted
from caphv.api.parkschedule import Moment, ScheduleError, load_zone, parse_schedule, state_at
from caphv.runtime.errors import Forbidden, Invalid
from reconciler.cluster.scope import ClusterScope

# A timer of days would miss a correction of the host's clock.
_MAX_TIMER_SECONDS = 3600.0
# A timer may fire a moment before the clock reaches its time.
_MARGIN_SECONDS = 0.05
_REFUSED_SECONDS = 60.0


async def follow_schedule(scope: ClusterScope, now: datetime) -> float | None:
    """Write the record if it has changed, and return the seconds until it may change again.

    Return None if no schedule applies. Raises `ApiError`, `Unreachable`.
    """
    cluster = scope.cluster
    text = parking.schedule_of(cluster)
    was_parked = annotations_of(cluster).get(PARKED_BY_SCHEDULE_ANNOTATION) == "true"
    moment = Moment(parked=False, until=None)
    if text is not None:
        try:
            schedule = parse_schedule(text)
            moment = state_at(schedule, load_zone(schedule.zone), now)
        except ScheduleError as error:
            _report(scope, str(error))
            return None  # the record stays as it is, until a user corrects the schedule

    is_held = parking.is_moving(cluster) or parking.is_restoring_etcd(cluster)
    if is_held or being_deleted(cluster) or being_deleted(scope.obj):
        _report(scope, "")
        return None
    # A pause that a user or a restore has set suspends the schedule as well.
    if clusterapi.paused(cluster, scope.obj) and not parking.owns_pause(cluster):
        if parking.has_begun(cluster):
            _report(scope, "")
            return None
        # A record from before the pause must not stop VMs now.
        moment = Moment(parked=False, until=None)

    if moment.parked is not was_parked:
        try:
            await _record(scope, parked=moment.parked)
        except (Forbidden, Invalid) as error:
            _report(
                scope,
                "the schedule of the Cluster is not followed, because its record was refused: "
                f"grant the provider's ServiceAccount patch on clusters.cluster.x-k8s.io; {error}",
            )
            return _REFUSED_SECONDS
    _report(scope, "")
    if moment.until is None:
        return None
    seconds = max((moment.until - now).total_seconds(), 0.0) + _MARGIN_SECONDS
    return min(seconds, _MAX_TIMER_SECONDS)


async def _record(scope: ClusterScope, *, parked: bool) -> None:
    """Write the record, or remove it. Raises `ApiError`, `Unreachable`."""
    informer = scope.context.caches.clusters
    metadata = scope.cluster["metadata"]
    annotations = {PARKED_BY_SCHEDULE_ANNOTATION: "true" if parked else None}
    version = metadata["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version, "annotations": annotations}}
    if not parked and not parking.has_begun(scope.cluster):
        # Even if the request fails, this reconcile must not begin to park for an old record.
        remaining = dict(annotations_of(scope.cluster))
        remaining.pop(PARKED_BY_SCHEDULE_ANNOTATION, None)
        scope.cluster = {**scope.cluster, "metadata": {**metadata, "annotations": remaining}}
    scope.cluster = await scope.context.client.patch(
        informer.resource, metadata["name"], metadata["namespace"], patch
    )
    informer.observe(scope.cluster)


def _report(scope: ClusterScope, problem: str) -> None:
    """Remember why the schedule is not followed, and emit an Event about a new problem."""
    if problem and problem != scope.memory.parking.schedule_problem:
        scope.warning_event(Reason.PARK_BLOCKED, problem)
    scope.memory.parking.schedule_problem = problem
