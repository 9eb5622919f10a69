"""Follow the schedule of a Cluster: record on it whether the schedule parks it now.

Everything else reads only the record, so that all agree about it, whatever their clocks say. A
timer requeues the cluster for the next change.
"""

from __future__ import annotations

from datetime import datetime

from caphv.api import clusterapi, parking
from caphv.api.names import PARKED_BY_SCHEDULE_ANNOTATION, Reason
from caphv.api.object import annotations_of, being_deleted
from caphv.api.parkschedule import ScheduleError, load_zone, parse_schedule, state_at
from caphv.runtime.errors import Forbidden, Invalid
from reconciler.cluster.scope import ClusterScope

# A timer of days would not notice that the clock of the host was corrected.
_LONGEST_SECONDS = 3600.0
# A timer may end a moment before the clock shows its time.
_MARGIN_SECONDS = 0.05
_REFUSED_SECONDS = 60.0


async def follow_schedule(scope: ClusterScope, now: datetime) -> float | None:
    """Write the record if the schedule has changed it, and return the seconds until it may change.

    None for a cluster that follows none. Raises `ApiError`, `Unreachable`.
    """
    cluster, text = scope.cluster, parking.schedule_of(scope.cluster)
    was_parked = annotations_of(cluster).get(PARKED_BY_SCHEDULE_ANNOTATION) == "true"
    parked, until = False, None
    if text is not None:
        try:
            schedule = parse_schedule(text)
            moment = state_at(schedule, load_zone(schedule.zone), now)
        except ScheduleError as error:
            _report(scope, str(error))
            return None  # the record stays as it is, until a user corrects the schedule
        parked, until = moment.parked, moment.until

    if parking.is_moving(cluster) or being_deleted(cluster) or being_deleted(scope.obj):
        _report(scope, "")
        return None
    # A pause of a user or of a restore holds everything, this included.
    if clusterapi.paused(cluster, scope.obj) and not parking.owns_pause(cluster):
        if parking.has_begun(cluster):
            _report(scope, "")
            return None
        # A record of the time before the pause must not stop anything now.
        parked, until = False, None

    if parked is not was_parked:
        try:
            await _record(scope, parked=parked)
        except (Forbidden, Invalid) as error:
            _report(
                scope,
                "the schedule of the Cluster is not followed, because its record was refused: "
                f"grant the provider's ServiceAccount patch on clusters.cluster.x-k8s.io; {error}",
            )
            return _REFUSED_SECONDS
    _report(scope, "")
    if until is None:
        return None
    seconds = max((until - now).total_seconds(), 0.0) + _MARGIN_SECONDS
    return min(seconds, _LONGEST_SECONDS)


async def _record(scope: ClusterScope, *, parked: bool) -> None:
    """Write the record, or remove it. Raises `ApiError`, `Unreachable`.

    Although that fails, this reconcile must not begin to park the cluster for an old record.
    """
    informer, metadata = scope.context.caches.clusters, scope.cluster["metadata"]
    annotations = {PARKED_BY_SCHEDULE_ANNOTATION: "true" if parked else None}
    version = metadata["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version, "annotations": annotations}}
    if not parked and not parking.has_begun(scope.cluster):
        remaining = dict(annotations_of(scope.cluster))
        remaining.pop(PARKED_BY_SCHEDULE_ANNOTATION, None)
        scope.cluster = {**scope.cluster, "metadata": {**metadata, "annotations": remaining}}
    scope.cluster = await scope.context.client.patch(
        informer.resource, metadata["name"], metadata["namespace"], patch
    )
    informer.observe(scope.cluster)


def _report(scope: ClusterScope, problem: str) -> None:
    """Remember why the schedule is not followed, and emit an Event about what is new."""
    if problem and problem != scope.memory.schedule_problem:
        scope.warning_event(Reason.PARK_BLOCKED, problem)
    scope.memory.schedule_problem = problem
