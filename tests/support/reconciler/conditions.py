"""Tests for the conditions of an object, for `Case.until()`."""

from __future__ import annotations

from collections.abc import Callable

from caphv.api.object import Obj


def condition_of(obj: Obj, kind: str) -> Obj:
    """A condition of an object, empty when it has none of that type."""
    found = (obj.get("status") or {}).get("conditions") or ()
    return next((condition for condition in found if condition["type"] == kind), {})


def is_true(kind: str) -> Callable[[Obj], bool]:
    """A test for objects whose condition is true."""
    return lambda obj: condition_of(obj, kind).get("status") == "True"


def is_unknown(kind: str, reason: str) -> Callable[[Obj], bool]:
    """A test for objects whose condition is unknown for a reason."""

    def matches(obj: Obj) -> bool:
        condition = condition_of(obj, kind)
        return condition.get("status") == "Unknown" and condition["reason"] == reason

    return matches


def is_false(kind: str, reason: str, text: str = "") -> Callable[[Obj], bool]:
    """A test for objects whose condition is false for a reason and with a text in its message."""

    def matches(obj: Obj) -> bool:
        condition = condition_of(obj, kind)
        found = (condition.get("status"), condition.get("reason"))
        return found == ("False", reason) and text in condition["message"]

    return matches


def is_ready(obj: Obj) -> bool:
    """Whether a HarvesterCluster or HarvesterMachine is ready, in all the ways to say so."""
    status = obj.get("status") or {}
    provisioned = (status.get("initialization") or {}).get("provisioned")
    return bool(status.get("ready") and provisioned and is_true("Ready")(obj) and is_true("InfrastructureReady")(obj))
