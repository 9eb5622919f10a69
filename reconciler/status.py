"""How a reconcile says that it cannot go on, and how it writes what it found out: once, at the end.

A phase either does its part or raises `Blocked`. That is no error: the condition it names tells the operator what is
missing, and the watch of what is missing (or a timer, where only time can tell) brings the object back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from typing import Any

import orjson

from caphv.api import conditions
from caphv.api.names import ConditionType, Reason, reason_when_true
from caphv.api.object import Key, Obj


class Blocked(Exception):
    """The rest of this reconcile has to wait. `after` is a delay in seconds where no watch tells of the change.

    `warn`: somebody has to do something. `unknown`: nobody can tell how things are, for example while Harvester does
    not answer; what was ready may well be.
    """

    def __init__(
        self,
        condition: ConditionType,
        reason: Reason,
        message: str,
        *,
        warn: bool = False,
        unknown: bool = False,
        after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.condition, self.reason, self.message = condition, reason, message
        self.warn, self.unknown = warn, unknown
        self.after = after


class StatusDraft:
    """A working copy of an object's status; `patch` answers what differs from what the server has."""

    def __init__(self, obj: Obj) -> None:
        self._before: dict[str, Any] = obj.get("status") or {}
        self._generation = int(obj["metadata"].get("generation") or 0)
        self.fields: dict[str, Any] = _copy(self._before)

    def set_true(self, condition: ConditionType, message: str = "") -> None:
        """Say that a condition holds, with the contract's reason for it."""
        self._set(condition, "True", reason_when_true(condition), message)

    def set_false(self, condition: ConditionType, reason: str, message: str = "") -> None:
        """Say why a condition does not hold."""
        self._set(condition, "False", reason, message)

    def set_unknown(self, condition: ConditionType, reason: str, message: str = "") -> None:
        """Say why nobody can tell whether a condition holds."""
        self._set(condition, "Unknown", reason, message)

    def is_true(self, condition: ConditionType) -> bool:
        """Whether a condition holds in the working copy."""
        return conditions.is_true(self.fields.get("conditions") or [], condition)

    def has_message(self, condition: ConditionType, message: str) -> bool:
        """Whether the server's status has this message already: an Event is for the change."""
        known = conditions.get_condition(self._before.get("conditions") or [], condition)
        return known is not None and known.get("message") == message

    def has(self, condition: ConditionType) -> bool:
        """Whether the working copy has the condition, with any status."""
        return conditions.get_condition(self.fields.get("conditions") or [], condition) is not None

    def drop(self, condition: ConditionType) -> None:
        """Forget a condition that does not apply any more."""
        kept = [c for c in self.fields.get("conditions") or [] if c.get("type") != condition]
        if len(kept) != len(self.fields.get("conditions") or []):
            self.fields["conditions"] = kept

    def provisioned(self, ready: bool) -> None:
        """Set `status.ready`, and `initialization.provisioned`, which never returns to false (v1beta2 contract)."""
        self.fields["ready"] = ready
        if ready:
            self.fields["initialization"] = {"provisioned": True}

    def moved_to(self, obj: Obj) -> None:
        """An own write to the spec made this generation: what was observed of the one before holds for it, too."""
        before, self._generation = self._generation, int(obj["metadata"].get("generation") or 0)
        for condition in self.fields.get("conditions") or ():
            if condition.get("observedGeneration") == before:
                condition["observedGeneration"] = self._generation

    def written(self) -> None:
        """The server has this status now."""
        self._before = _copy(self.fields)

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
    copied: dict[str, Any] = orjson.loads(orjson.dumps(status))
    return copied


class Waiters:
    """Objects that wait for something which has no owner to map back from, such as an image or a free address."""

    def __init__(self, enqueue: Callable[[Key], None]) -> None:
        self._enqueue = enqueue
        self._waiting: dict[Hashable, set[Key]] = defaultdict(set)

    def wait(self, topic: Hashable, key: Key) -> None:
        """Have the object reconciled at the next `notify` of this topic."""
        self._waiting[topic].add(key)

    def notify(self, topic: Hashable) -> None:
        """The topic changed: wake all that wait for it."""
        for key in self._waiting.pop(topic, ()):
            self._enqueue(key)
