"""Report the progress of parking or resuming, which hides all other problems of a cluster.

Its VMs are stopped, and its conditions are those that it had when it was paused.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from caphv.api import parking, remedies
from caphv.api.clusterapi import externally_managed, paused
from caphv.api.names import PARK_ANNOTATION, PARKED_SINCE_ANNOTATION, ConditionType, Reason
from caphv.api.object import annotations_of, being_deleted
from caphv.api.parkschedule import ScheduleError, load_zone, parse_schedule, state_at
from caphv.api.plaintext import one_line
from operations.read.objects import condition_of
from operations.status.conditionproblems import flatten, object_name
from operations.status.model import Problem, Severity
from operations.status.parts import Parts

PARKED = "Parked"
_REASONS = frozenset({PARKED, Reason.PARKING, Reason.RESUMING, Reason.PARK_BLOCKED})


def is_parked(parts: Parts) -> bool:
    """Return whether a cluster is to be parked, and all its VMs are stopped."""
    condition = condition_of(parts.harvester_cluster, ConditionType.PARKED)
    return parking.is_wanted(parts.cluster) and condition.get("status") == "True"


def parking_problem(parts: Parts, now: datetime) -> Problem | None:
    """Return a problem that reports the progress of parking or resuming; None without either."""
    if being_deleted(parts.cluster):
        return None
    condition = condition_of(parts.harvester_cluster, ConditionType.PARKED)
    blocked = condition.get("reason") == Reason.PARK_BLOCKED
    if not parking.concerns(parts.cluster) and not blocked:
        return None

    objects = (object_name(parts.harvester_cluster or parts.cluster, _kind(parts)),)
    message = flatten(str(condition.get("message") or ""))
    since = str(condition.get("lastTransitionTime") or "")
    describe = remedies.DESCRIBE(kind="cluster", name=parts.key.name, namespace=parts.key.namespace)
    if blocked:
        step = f"Do what it says: {describe}"
        return Problem(
            Severity.WARNING,
            objects,
            Reason.PARK_BLOCKED,
            cause=message,
            next_step=step,
            since=since,
        )
    if is_parked(parts):
        since = annotations_of(parts.cluster).get(PARKED_SINCE_ANNOTATION, since)
        if change := _next_change(parts, now):
            message = f"{message}; {change}"
        step = f"Resume it: {remedies.RESUME_PARKED(ref=parts.key)}"
        return Problem(Severity.NOTE, objects, PARKED, cause=message, next_step=step, since=since)

    reason = Reason.PARKING if parking.is_wanted(parts.cluster) else Reason.RESUMING
    verb = "being parked" if reason is Reason.PARKING else "being resumed"
    # The provider has not reported a change of the annotation yet.
    current = message if condition.get("reason") == reason else ""
    cause = f"{verb}: {current}" if current else verb
    step = f"Follow it: {remedies.FOLLOW(ref=parts.key)}"
    return Problem(Severity.WAITING, objects, reason, cause=cause, next_step=step, since=since)


def schedule_note(parts: Parts, now: datetime) -> Problem | None:
    """Return when the schedule parks a cluster that is reconciled; None without a schedule."""
    infrastructure = parts.harvester_cluster
    if infrastructure is None or externally_managed(infrastructure):
        return None
    if parking.concerns(parts.cluster) or paused(parts.cluster, infrastructure):
        return None
    change = _next_change(parts, now)
    if not change:
        return None
    place = {"kind": "cluster", "name": parts.key.name, "namespace": parts.key.namespace}
    if PARK_ANNOTATION in annotations_of(parts.cluster):
        command = remedies.REMOVE_ANNOTATION(**place, annotation=PARK_ANNOTATION)
        step = f"Have it follow the schedule: {command}"
    else:
        command = remedies.SET_ANNOTATION(**place, annotation=PARK_ANNOTATION, value="false")
        step = f"Keep it running: {command}"
    return Problem(
        Severity.NOTE,
        (object_name(parts.cluster, "Cluster"),),
        "ParkSchedule",
        cause=change,
        next_step=step,
    )


def _next_change(parts: Parts, now: datetime) -> str:
    """Return a sentence on the next change by the schedule; empty if there is none."""
    text = parking.schedule_of(parts.cluster)
    if text is None:
        return ""
    by_hand = annotations_of(parts.cluster).get(PARK_ANNOTATION)
    if by_hand is not None:
        return (
            f"annotation {PARK_ANNOTATION}: {one_line(by_hand)} overrides schedule {one_line(text)}"
        )
    try:
        schedule = parse_schedule(text)
        zone = load_zone(schedule.zone)
        moment = state_at(schedule, zone, now)
    except ScheduleError:
        return ""  # the provider reports it
    verb = "resumed" if moment.parked else "parked"
    if moment.until is None:
        return f"schedule {text} never has it {verb}"
    return f"schedule {text} has it {verb} at {moment.until.astimezone(zone):%Y-%m-%d %H:%M %Z}"


def explains_all(problems: Iterable[Problem]) -> bool:
    """Return whether a problem says that the cluster is parked, or is on the way to or from it."""
    return any(problem.reason in _REASONS - {Reason.PARK_BLOCKED} for problem in problems)


def _kind(parts: Parts) -> str:
    return "HarvesterCluster" if parts.harvester_cluster else "Cluster"
