"""Pure helpers for lists of conditions in the form of metav1.Condition, so that all reconcilers write them alike.

A condition is a dict with `type`, `status` ("True", "False" or "Unknown"), `reason`, `message`, `observedGeneration`
and `lastTransitionTime` (RFC 3339, UTC, whole seconds). Limits are those of `schemas/definitions.json`: the API server
would refuse the whole status for one condition that breaks them.
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
    """Return `conditions` with one condition of `condition_type` as given, in its old place or at the end.

    `lastTransitionTime` becomes `now` only if the status differs from before. The list given is never changed; it is
    itself returned if nothing differs, so that callers can see that there is nothing to write. Further conditions of
    the type, which the atomic list of the CRD lets pass, are dropped. A message over `MAX_MESSAGE` characters is
    cut, and control characters in it become blanks.

    Raises:
        ValueError: the reason is not one that the CRD accepts, or `now` has no time zone.
    """
    known = [condition for condition in conditions if condition.get("type") == condition_type]
    wanted = (status, reason, message, generation)
    # Most calls repeat what is known; the checks below cost as much as the rest of a reconcile that changes nothing.
    repeats = len(known) == 1 and tuple(known[0].get(name) for name in _COMPARED) == wanted
    if repeats and known[0].get("lastTransitionTime"):
        return conditions
    if len(reason) > MAX_REASON or not re.fullmatch(REASON_PATTERN, reason):
        msg = f"reason {reason[:80]!r} of condition {condition_type}: must be one word like InProgress"
        raise ValueError(msg)
    old = known[0] if known else None
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
    first = conditions.index(old)
    rest = [condition for condition in conditions[first + 1 :] if condition.get("type") != condition_type]
    result = [*conditions[:first], new, *rest]
    return conditions if result == conditions else result


def get_condition(conditions: list[Obj], condition_type: str) -> Obj | None:
    """Return the first condition of this type, or None."""
    return next((condition for condition in conditions if condition.get("type") == condition_type), None)


def is_true(conditions: list[Obj], condition_type: str) -> bool:
    """Return whether the condition of this type exists with status "True"."""
    condition = get_condition(conditions, condition_type)
    return condition is not None and condition.get("status") == "True"


def rfc3339(moment: datetime) -> str:
    """Return `moment` as metav1.Time has it: RFC 3339, UTC, whole seconds.

    Raises:
        ValueError: `moment` has no time zone.
    """
    if moment.tzinfo is None:
        msg = f"time {moment.isoformat()} has no time zone: pass datetime.now(UTC)"
        raise ValueError(msg)
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
