"""Annotations that request the parking of a cluster, and those that record its progress.

A parked cluster keeps its objects, disks and addresses, and none of its VMs runs. Annotations
record everything that an interrupted park or resume needs to continue.
"""

from __future__ import annotations

from caphv.api.names import (
    ETCD_RESTORE_ANNOTATION,
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
"""Value of `PAUSED_BY_PARK_ANNOTATION` from a restore until the user has confirmed it."""


def is_wanted(cluster: Obj) -> bool:
    """Return whether a Cluster is to be parked, or to stay so.

    The annotation of a user wins over the one in which the provider records the schedule.
    """
    annotations = annotations_of(cluster)
    by_schedule = annotations.get(PARKED_BY_SCHEDULE_ANNOTATION)
    return annotations.get(PARK_ANNOTATION, by_schedule) == "true"


def schedule_of(cluster: Obj) -> str | None:
    """Return the text of a Cluster's schedule; None if it has none."""
    return annotations_of(cluster).get(PARK_SCHEDULE_ANNOTATION)


def has_begun(cluster: Obj) -> bool:
    """Return whether parking has begun and resuming has not ended."""
    return PARKED_SINCE_ANNOTATION in annotations_of(cluster)


def concerns(cluster: Obj) -> bool:
    """Return whether a Cluster is being parked, parked or being resumed.

    A Cluster in deletion is no longer parked once its record is removed.
    """
    return has_begun(cluster) or (is_wanted(cluster) and not being_deleted(cluster))


def owns_pause(cluster: Obj) -> bool:
    """Return whether parking has paused the Cluster, so that resuming ends the pause."""
    return annotations_of(cluster).get(PAUSED_BY_PARK_ANNOTATION) == "true"


def awaits_confirmation(cluster: Obj) -> bool:
    """Return whether a Cluster was restored while it was parked, and a user has yet to confirm.

    Its VMs may still belong to the old management cluster, and its Machines may not exist yet.
    """
    paused_by = annotations_of(cluster).get(PAUSED_BY_PARK_ANNOTATION)
    return bool(at(cluster, "spec", "paused")) and paused_by == PAUSED_BY_RESTORE


def is_moving(cluster: Obj) -> bool:
    """Return whether `caphv move` is moving the Cluster. Nothing else may end its pause then.

    A user who gives up a move ends the pause, and may leave the annotation.
    """
    return MOVING_ANNOTATION in annotations_of(cluster) and bool(at(cluster, "spec", "paused"))


def is_restoring_etcd(cluster: Obj) -> bool:
    """Return whether etcd is being restored, for which all control plane machines must run."""
    return ETCD_RESTORE_ANNOTATION in annotations_of(cluster) and not being_deleted(cluster)


def is_resumed_unpaused(cluster: Obj) -> bool:
    """Return whether a user has ended the pause of a Cluster that is being resumed.

    While its VMs start and Nodes return, its machines are reconciled like those of other clusters.
    """
    is_paused = bool(at(cluster, "spec", "paused"))
    return has_begun(cluster) and not (is_wanted(cluster) or is_paused or being_deleted(cluster))


def invalid_value(cluster: Obj) -> str:
    """Return the value of the park annotation if it is invalid, else an empty text."""
    value = annotations_of(cluster).get(PARK_ANNOTATION, "false")
    return "" if value in ("true", "false") else (value or '""')


def begin(cluster: Obj, since: str) -> Obj:
    """Return the patch that begins parking: the record, and the pause unless there is one.

    :param since: when parking began
    """
    annotations: dict[str, str | None] = {PARKED_SINCE_ANNOTATION: since}
    if at(cluster, "spec", "paused"):
        return {"metadata": {"annotations": annotations}}
    annotations[PAUSED_BY_PARK_ANNOTATION] = "true"
    if MOVING_ANNOTATION in annotations_of(cluster):
        # With this pause, the annotation of a move that was given up would count again.
        annotations[MOVING_ANNOTATION] = None
    return {"metadata": {"annotations": annotations}, "spec": {"paused": True}}


def finish(cluster: Obj) -> Obj:
    """Return the patch that ends resuming. A pause that a user set before parking stays."""
    recorded = (PARKED_SINCE_ANNOTATION, PAUSED_BY_PARK_ANNOTATION, STOPS_LAST_ANNOTATION)
    patch: Obj = {"metadata": {"annotations": dict.fromkeys(recorded)}}
    if owns_pause(cluster):
        patch["spec"] = {"paused": False}
    return patch
