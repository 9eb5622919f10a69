"""Read and change lists of conditions in the form of metav1.Condition, with pure functions.

A condition is a dict with `type`, `status` ("True", "False" or "Unknown"), `reason`, `message`,
`observedGeneration` and `lastTransitionTime` (RFC 3339, UTC, whole seconds). The limits equal those
in `schemas/definitions.json`, because the API server refuses the whole status if one condition
exceeds them.
"""

import re
from datetime import UTC, datetime
from typing import Literal

from caphv.api.object import Obj
from caphv.api.plaintext import plain

Status = Literal["True", "False", "Unknown"]

MAX_MESSAGE = 32768
MAX_REASON = 1024
_COMPARED = ("status", "reason", "message", "observedGeneration")
REASON_PATTERN = r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"


def set_condition(
    conditions: list[Obj],
    condition_type: str,
    status: Status,
    *,
    reason: str,
    message: str,
    generation: int,
    now: datetime,
) -> list[Obj]:
    """Return the conditions with this one at its old place, or at the end.

    Never changes the given list, and returns it if nothing differs, so that callers can see that
    there is nothing to write. Drops further conditions of the same type, which the atomic list of
    the CRD allows.

    :param message: the message; control characters become blanks, and it is cut at `MAX_MESSAGE`
        characters
    :param generation: generation of the object that has the condition
    :param now: `lastTransitionTime` if the status differs from before

    Raises:
        ValueError: the reason is not one that the CRD accepts, or `now` has no time zone.
    """
    same_type = [condition for condition in conditions if condition.get("type") == condition_type]
    old = same_type[0] if same_type else None

    # Most calls repeat the old condition. Return early, because the checks below cost as much as
    # the rest of a reconcile that changes nothing.
    if old is not None and len(same_type) == 1 and old.get("lastTransitionTime"):
        values = tuple(old.get(name) for name in _COMPARED)
        if values == (status, reason, message, generation):
            return conditions

    if len(reason) > MAX_REASON or not re.fullmatch(REASON_PATTERN, reason):
        msg = (
            f"reason {reason[:80]!r} of condition {condition_type}: must be one word like "
            "InProgress"
        )
        raise ValueError(msg)
    changed_at = old.get("lastTransitionTime") if old and old.get("status") == status else None
    new: Obj = {
        "type": str(condition_type),
        "status": status,
        "reason": str(reason),
        "message": plain(message, MAX_MESSAGE),
        "observedGeneration": generation,
        "lastTransitionTime": changed_at or rfc3339(now),
    }

    if old is None:
        return [*conditions, new]
    index = conditions.index(old)
    following = conditions[index + 1 :]
    others = [condition for condition in following if condition.get("type") != condition_type]
    result = [*conditions[:index], new, *others]
    return conditions if result == conditions else result


def get_condition(conditions: list[Obj], condition_type: str) -> Obj | None:
    """Return the first condition of this type, or None."""
    for condition in conditions:
        if condition.get("type") == condition_type:
            return condition
    return None


def is_true(conditions: list[Obj], condition_type: str) -> bool:
    """Return whether the condition of this type exists with status "True"."""
    condition = get_condition(conditions, condition_type)
    return condition is not None and condition.get("status") == "True"


def rfc3339(moment: datetime) -> str:
    """Format `moment` as metav1.Time: RFC 3339, UTC, whole seconds.

    Raises:
        ValueError: `moment` has no time zone.
    """
    if moment.tzinfo is None:
        msg = f"time {moment.isoformat()} has no time zone: pass datetime.now(UTC)"
        raise ValueError(msg)
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def current_time() -> str:
    """Return the current time as metav1.Time."""
    return rfc3339(datetime.now(UTC))


def seconds_since(timestamp: str) -> float:
    """Return how long ago a timestamp of an API server was; 0 if it is invalid or in the future."""
    try:
        elapsed = datetime.now(UTC) - datetime.fromisoformat(timestamp)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(0.0, elapsed.total_seconds())
