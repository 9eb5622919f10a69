"""Parking a cluster: what its annotations ask for, and what they record.

A parked cluster keeps its objects, disks and addresses, and none of its VMs runs. Everything that
an interrupted park or resume needs to continue is in annotations.
"""

from __future__ import annotations

from caphv.api.names import (
    MOVING_ANNOTATION,
    PARK_ANNOTATION,
    PARK_SCHEDULE_ANNOTATION,
    PARKED_BY_SCHEDULE_ANNOTATION,
    PARKED_SINCE_ANNOTATION,
    PAUSED_BY_PARK_ANNOTATION,
    STOPS_LAST_ANNOTATION,
)
from caphv.api.object import Obj, annotations_of, at, being_deleted

RECORDS = frozenset(
    {
        PARKED_BY_SCHEDULE_ANNOTATION,
        PARKED_SINCE_ANNOTATION,
        PAUSED_BY_PARK_ANNOTATION,
        STOPS_LAST_ANNOTATION,
    }
)
"""Annotations of a Cluster that the provider writes and removes while it parks and resumes it."""
PAUSED_BY_RESTORE = "restore"
"""Value of the record of the pause, from a restore until the user has confirmed it."""


def is_wanted(cluster: Obj) -> bool:
    """Return whether a Cluster is to be parked, or to stay so.

    What a user has set wins over the schedule, of which the provider records what it says now.
    """
    annotations = annotations_of(cluster)
    by_hand = annotations.get(PARK_ANNOTATION)
    if by_hand is None:
        return annotations.get(PARKED_BY_SCHEDULE_ANNOTATION) == "true"
    return by_hand == "true"


def schedule_of(cluster: Obj) -> str | None:
    """Return the text of a Cluster's schedule; None if it has none."""
    return annotations_of(cluster).get(PARK_SCHEDULE_ANNOTATION)


def has_begun(cluster: Obj) -> bool:
    """Return whether parking has begun, and resuming has not ended."""
    return PARKED_SINCE_ANNOTATION in annotations_of(cluster)


def concerns(cluster: Obj) -> bool:
    """Return whether a Cluster is being parked, parked or being resumed.

    One that is being deleted is not parked any more once its record is removed.
    """
    return has_begun(cluster) or (is_wanted(cluster) and not being_deleted(cluster))


def owns_pause(cluster: Obj) -> bool:
    """Return whether parking has paused the Cluster, so that resuming ends the pause."""
    return annotations_of(cluster).get(PAUSED_BY_PARK_ANNOTATION) == "true"


def awaits_confirmation(cluster: Obj) -> bool:
    """Return whether a Cluster was restored while it was parked, and is not released yet.

    Its VMs may still belong to the old management cluster, and its Machines may not exist yet.
    """
    is_paused = bool(at(cluster, "spec", "paused"))
    return is_paused and (
        annotations_of(cluster).get(PAUSED_BY_PARK_ANNOTATION) == PAUSED_BY_RESTORE
    )


def is_moving(cluster: Obj) -> bool:
    """Return whether `caphv move` has the Cluster, whose pause no one else may end."""
    return MOVING_ANNOTATION in annotations_of(cluster)


def is_resumed_unpaused(cluster: Obj) -> bool:
    """Return whether a user has ended the pause of a Cluster that is being resumed.

    Its machines are replaced and added as ever, while VMs start and Nodes return.
    """
    is_paused = bool(at(cluster, "spec", "paused"))
    return has_begun(cluster) and not (is_wanted(cluster) or is_paused or being_deleted(cluster))


def invalid_value(cluster: Obj) -> str:
    """Return a value of the annotation that means nothing; empty for a valid one."""
    value = annotations_of(cluster).get(PARK_ANNOTATION, "false")
    return "" if value in ("true", "false") else (value or '""')


def begin(cluster: Obj, since: str) -> Obj:
    """Return the patch with which parking begins: the record, and the pause if none is there."""
    annotations = {PARKED_SINCE_ANNOTATION: since}
    if at(cluster, "spec", "paused"):
        return {"metadata": {"annotations": annotations}}
    return {
        "metadata": {"annotations": annotations | {PAUSED_BY_PARK_ANNOTATION: "true"}},
        "spec": {"paused": True},
    }


def finish(cluster: Obj) -> Obj:
    """Return the patch with which resuming ends. A pause that a user set before stays."""
    recorded = (PARKED_SINCE_ANNOTATION, PAUSED_BY_PARK_ANNOTATION, STOPS_LAST_ANNOTATION)
    patch: Obj = {"metadata": {"annotations": dict.fromkeys(recorded)}}
    if owns_pause(cluster):
        patch["spec"] = {"paused": False}
    return patch
