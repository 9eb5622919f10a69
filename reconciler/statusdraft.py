"""The status of an object, drafted by all steps of a reconcile and written once, at its end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson

from caphv.api import conditions
from caphv.api.names import ConditionType, reason_when_true
from caphv.api.object import Obj


class StatusDraft:
    """A working copy of an object's status; `patch` returns the difference to the server."""

    def __init__(self, obj: Obj) -> None:
        self._before: dict[str, Any] = obj.get("status") or {}
        self._generation = int(obj["metadata"].get("generation") or 0)
        self.version = obj["metadata"].get("resourceVersion")
        self.fields: dict[str, Any] = _copy(self._before)
        self.warned = ""

    def set_true(self, condition: ConditionType, message: str = "") -> None:
        """Set a condition to True, with the reason that the contract has for it."""
        self._set(condition, "True", reason_when_true(condition), message)

    def set_false(self, condition: ConditionType, reason: str, message: str = "") -> None:
        """Set a condition to False."""
        self._set(condition, "False", reason, message)

    def set_unknown(self, condition: ConditionType, reason: str, message: str = "") -> None:
        """Set a condition to Unknown."""
        self._set(condition, "Unknown", reason, message)

    def is_true(self, condition: ConditionType) -> bool:
        """Return whether a condition is True in the working copy."""
        return conditions.is_true(self.fields.get("conditions") or [], condition)

    def has_message(self, condition: ConditionType, message: str, reason: str = "") -> bool:
        """Return whether the server's status has this message already.

        Only a change deserves an Event. If a reason is given, the server must have that reason,
        too, because work in progress may have failed with the same message.
        """
        reported = conditions.get_condition(self._before.get("conditions") or [], condition)
        if reported is None or reported.get("message") != message:
            return False
        return reason in ("", reported.get("reason"))

    def has_reason(self, condition: ConditionType, reason: str) -> bool:
        """Return whether the condition of the server's status has this reason already."""
        reported = conditions.get_condition(self._before.get("conditions") or [], condition)
        return reported is not None and reported.get("reason") == reason

    def has(self, condition: ConditionType) -> bool:
        """Return whether the working copy has the condition, with any status."""
        return conditions.get_condition(self.fields.get("conditions") or [], condition) is not None

    def drop(self, condition: ConditionType) -> None:
        """Remove a condition that no longer applies."""
        present = self.fields.get("conditions") or []
        remaining = [entry for entry in present if entry.get("type") != condition]
        if len(remaining) != len(present):
            self.fields["conditions"] = remaining

    def set_ready(self, ready: bool) -> None:
        """Set `status.ready`, and `initialization.provisioned` once it is true.

        The latter never returns to false (v1beta2 contract).
        """
        self.fields["ready"] = ready
        if ready:
            self.fields["initialization"] = {"provisioned": True}

    def rebase(self, obj: Obj) -> None:
        """Move the findings to the object that our own write to metadata or spec has returned."""
        former = self._generation
        self._generation = int(obj["metadata"].get("generation") or 0)
        for condition in self.fields.get("conditions") or ():
            if condition.get("observedGeneration") == former:
                condition["observedGeneration"] = self._generation
        # If another client wrote the status meanwhile, the former version stays, so that our write
        # fails with a conflict.
        if (obj.get("status") or {}) == self._before:
            self.version = obj["metadata"].get("resourceVersion")

    def confirm(self, obj: Obj) -> None:
        """Record that the server has this status now."""
        self._before = _copy(self.fields)
        self.version = obj["metadata"].get("resourceVersion")

    def readiness_news(self) -> str:
        """Return the text to log about a change of condition `Ready`.

        Returns an empty text if nothing changed, or if a warning has reported the message already.
        """
        ready = _ready_condition(self.fields)
        former = _ready_condition(self._before)
        if all(ready.get(name) == former.get(name) for name in ("status", "reason", "message")):
            return ""
        if ready.get("status") == "True":
            return "Ready"
        message = ready.get("message") or ""
        return "" if message == self.warned else f"not Ready: {ready.get('reason')}: {message}"

    def patch(self) -> dict[str, Any] | None:
        """Return the merge patch from the server's status to this one, None if they are equal."""
        changed = {
            name: value for name, value in self.fields.items() if self._before.get(name) != value
        }
        # A merge patch removes only fields whose value is null.
        changed.update({name: None for name in self._before if name not in self.fields})
        return changed or None

    def _set(
        self, condition: ConditionType, status: conditions.Status, reason: str, message: str
    ) -> None:
        """Set a condition in the working copy."""
        self.fields["conditions"] = conditions.set_condition(
            self.fields.get("conditions") or [],
            condition,
            status,
            reason=reason,
            message=message,
            generation=self._generation,
            now=datetime.now(UTC),
        )


def _ready_condition(status: Obj) -> Obj:
    """Return condition `Ready`, empty without it."""
    return conditions.get_condition(status.get("conditions") or [], ConditionType.READY) or {}


def _copy(status: Obj) -> Obj:
    """Return a deep copy of a status."""
    # A round trip through JSON costs a twentieth of copy.deepcopy, which took a tenth of the time
    # of a reconcile.
    copied: Obj = orjson.loads(orjson.dumps(status))  # noqa: TID251 - our own object
    return copied
