"""How a reconcile reports that it cannot continue, and how it writes its findings: once, at the end.

A phase either completes or raises `Blocked`, which is not an error: its condition tells the user what is missing, and
its trigger requeues the object.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson

from caphv.api import conditions
from caphv.api.names import ConditionType, Reason, reason_when_true
from caphv.api.object import Obj
from reconciler.triggers import Delay, Trigger


class Blocked(Exception):
    """The rest of this reconcile has to wait for one of `triggers`, which requeues the object.

    `warn`: a user has to act. `unknown`: the state cannot be determined, for example while Harvester does not answer.
    `outage`: Harvester answers no request, or rejects these credentials, which says nothing about what runs there: what
    was ready stays so. An unknown state is an outage, too.
    """

    def __init__(
        self,
        condition: ConditionType,
        reason: Reason,
        message: str,
        first: Trigger,
        *others: Trigger,
        warn: bool = False,
        unknown: bool = False,
        outage: bool = False,
    ) -> None:
        super().__init__(message)
        self.condition, self.reason, self.message = condition, reason, message
        self.warn, self.unknown, self.outage = warn, unknown, outage or unknown
        self.triggers = (first, *others)

    @property
    def requeue_after(self) -> float | None:
        """Delay in seconds, None if only events requeue the object."""
        return min((trigger.seconds for trigger in self.triggers if isinstance(trigger, Delay)), default=None)


class StatusDraft:
    """A working copy of an object's status; `patch` returns the difference to the status on the server."""

    def __init__(self, obj: Obj) -> None:
        self._before: dict[str, Any] = obj.get("status") or {}
        self._generation = int(obj["metadata"].get("generation") or 0)
        self.version = obj["metadata"].get("resourceVersion")
        self.fields: dict[str, Any] = _copy(self._before)
        self.warned = ""

    def set_true(self, condition: ConditionType, message: str = "") -> None:
        """Set a condition to True, with the contract's reason for it."""
        self._set(condition, "True", reason_when_true(condition), message)

    def set_false(self, condition: ConditionType, reason: str, message: str = "") -> None:
        """Set a condition to False."""
        self._set(condition, "False", reason, message)

    def set_unknown(self, condition: ConditionType, reason: str, message: str = "") -> None:
        """Set a condition to Unknown."""
        self._set(condition, "Unknown", reason, message)

    def is_true(self, condition: ConditionType) -> bool:
        """Whether a condition holds in the working copy."""
        return conditions.is_true(self.fields.get("conditions") or [], condition)

    def has_message(self, condition: ConditionType, message: str, reason: str = "") -> bool:
        """Whether the status on the server has this message already: only a change deserves an Event.

        With a reason, the server must have that, too: what was in progress may have failed.
        """
        known = conditions.get_condition(self._before.get("conditions") or [], condition)
        return known is not None and known.get("message") == message and reason in ("", known.get("reason"))

    def has(self, condition: ConditionType) -> bool:
        """Whether the working copy has the condition, with any status."""
        return conditions.get_condition(self.fields.get("conditions") or [], condition) is not None

    def drop(self, condition: ConditionType) -> None:
        """Remove a condition that no longer applies."""
        kept = [c for c in self.fields.get("conditions") or [] if c.get("type") != condition]
        if len(kept) != len(self.fields.get("conditions") or []):
            self.fields["conditions"] = kept

    def provisioned(self, ready: bool) -> None:
        """Set `status.ready`, and `initialization.provisioned`, which never returns to false (v1beta2 contract)."""
        self.fields["ready"] = ready
        if ready:
            self.fields["initialization"] = {"provisioned": True}

    def moved_to(self, obj: Obj) -> None:
        """Our own write to the spec created this generation: findings for the previous one apply to it, too."""
        before, self._generation = self._generation, int(obj["metadata"].get("generation") or 0)
        for condition in self.fields.get("conditions") or ():
            if condition.get("observedGeneration") == before:
                condition["observedGeneration"] = self._generation
        if (obj.get("status") or {}) == self._before:
            self.version = obj["metadata"].get("resourceVersion")  # else another client wrote the status: a conflict

    def written(self, obj: Obj) -> None:
        """The server has this status now."""
        self._before = _copy(self.fields)
        self.version = obj["metadata"].get("resourceVersion")

    def readiness_news(self) -> str:
        """What to log about a condition `Ready` that differs from the server's; empty for nothing new.

        What a warning has reported already is no news.
        """
        now = conditions.get_condition(self.fields.get("conditions") or [], ConditionType.READY) or {}
        before = conditions.get_condition(self._before.get("conditions") or [], ConditionType.READY) or {}
        if all(now.get(name) == before.get(name) for name in ("status", "reason", "message")):
            return ""
        if now.get("status") == "True":
            return "Ready"
        message = now.get("message") or ""
        return "" if message == self.warned else f"not Ready: {now.get('reason')}: {message}"

    def patch(self) -> dict[str, Any] | None:
        """Merge patch from the server's status to this one, None when they are equal."""
        changed = {name: value for name, value in self.fields.items() if self._before.get(name) != value}
        changed.update({name: None for name in self._before if name not in self.fields})
        return changed or None

    def _set(self, condition: ConditionType, status: conditions.Status, reason: str, message: str) -> None:
        self.fields["conditions"] = conditions.set_condition(
            self.fields.get("conditions") or [],
            condition,
            status,
            reason=reason,
            message=message,
            generation=self._generation,
            now=datetime.now(UTC),
        )


def _copy(status: dict[str, Any]) -> dict[str, Any]:
    # There and back is a twentieth of the price of copy.deepcopy, which was a tenth of all that a reconcile costs.
    copied: dict[str, Any] = orjson.loads(orjson.dumps(status))  # noqa: TID251 - a copy of our own object
    return copied
