"""Conditions: what changes, what stays, and that the API server would accept the result."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from caphv import data
from caphv.api import names
from caphv.api.conditions import MAX_MESSAGE, get_condition, is_true, rfc3339, set_condition
from caphv.api.object import Obj

pytestmark = pytest.mark.unit

SCHEMA = json.loads((data.folder("schemas") / "definitions.json").read_text())["$defs"]["condition"]
T0 = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
T1 = T0 + timedelta(minutes=5)

types = st.sampled_from(["Ready", "Paused", "VMIPAllocated"])
statuses = st.sampled_from(["True", "False", "Unknown"])
condition = st.fixed_dictionaries(
    {
        "type": types,
        "status": statuses,
        "reason": st.just("Because"),
        "message": st.text("ab \n", max_size=5),
        "observedGeneration": st.integers(0, 5),
        "lastTransitionTime": st.just("2026-01-01T00:00:00Z"),
    }
)
change = st.fixed_dictionaries(
    {
        "condition_type": types,
        "status": statuses,
        "reason": st.sampled_from(["Because", "Other"]),
        "message": st.text("ab \n", max_size=5),
        "generation": st.integers(0, 5),
    }
)


def because(status: Literal["True", "False", "Unknown"], reason: str = "Because", message: str = "") -> list[Obj]:
    """A list with one condition of type Ready."""
    return set_condition([], "Ready", status, reason=reason, message=message, generation=1, now=T0)


@given(st.lists(condition, max_size=6), change)
def test_set_replaces_exactly_one_type(before: list[Obj], new: Obj) -> None:
    copied = json.loads(json.dumps(before))
    after = set_condition(before, **new, now=T1)
    assert before == copied
    assert [c for c in after if c["type"] != new["condition_type"]] == [
        c for c in before if c["type"] != new["condition_type"]
    ]
    [one] = [c for c in after if c["type"] == new["condition_type"]]
    written = {"condition_type": "type", "generation": "observedGeneration"}
    assert {name: one[written.get(name, name)] for name in new} == new
    Draft202012Validator({"type": "array", "items": SCHEMA}).validate(after)


@given(st.lists(condition, max_size=6), change)
def test_setting_again_changes_nothing(before: list[Obj], new: Obj) -> None:
    once = set_condition(before, **new, now=T0)
    assert set_condition(once, **new, now=T1) is once


@given(st.lists(condition, max_size=6, unique_by=lambda c: c["type"]), change)
def test_transition_time_follows_the_status(before: list[Obj], new: Obj) -> None:
    old = get_condition(before, new["condition_type"])
    after = get_condition(set_condition(before, **new, now=T1), new["condition_type"])
    assert after is not None
    kept = old is not None and old["status"] == new["status"]
    assert after["lastTransitionTime"] == ("2026-01-01T00:00:00Z" if kept else "2026-11-21T09:05:00Z")
    if old is not None:
        assert [c["type"] for c in set_condition(before, **new, now=T1)] == [c["type"] for c in before]


@given(st.integers(0, 40000))
def test_message_fits_the_crd(length: int) -> None:
    [one] = because("False", message="ü" * length)
    assert len(one["message"]) == min(length, MAX_MESSAGE)
    assert one["message"].endswith("…") == (length > MAX_MESSAGE)
    assert SCHEMA["properties"]["message"]["maxLength"] == MAX_MESSAGE


@given(st.text(max_size=8) | st.sampled_from(["a" * 1024, "a" * 1025, "InProgress\n", ""]))
def test_reason_is_refused_as_the_crd_would(reason: str) -> None:
    rule = SCHEMA["properties"]["reason"]
    accepted = re.fullmatch(rule["pattern"].strip("^$"), reason) and len(reason) <= rule["maxLength"]
    if accepted:
        assert because("False", reason)[0]["reason"] == reason
    else:
        with pytest.raises(ValueError, match="condition Ready"):
            because("False", reason)


@pytest.mark.parametrize(("status", "expected"), [("True", True), ("False", False), ("Unknown", False)])
def test_is_true(status: Literal["True", "False", "Unknown"], expected: bool) -> None:
    assert is_true(because(status), "Ready") is expected
    assert is_true(because(status), "Paused") is False


def test_enums_become_plain_strings() -> None:
    [one] = set_condition(
        [], names.ConditionType.PAUSED, "False", reason=names.Reason.NOT_PAUSED, message="", generation=1, now=T0
    )
    assert {type(value) for value in one.values()} == {str, int}


def test_times_are_utc_seconds() -> None:
    assert rfc3339(datetime(2026, 1, 1, 1, 0, 0, 999, tzinfo=timezone(timedelta(hours=2)))) == "2025-12-31T23:00:00Z"
    with pytest.raises(ValueError, match="no time zone"):
        rfc3339(datetime(2026, 1, 1))


@pytest.mark.parametrize("value", [*names.ConditionType, *names.Reason])
def test_names_fit_the_crd(value: str) -> None:
    assert re.fullmatch(SCHEMA["properties"]["reason"]["pattern"], value)


def test_reason_of_true_conditions() -> None:
    reasons = {str(kind): names.reason_when_true(kind) for kind in names.ConditionType}
    exceptions = {kind: reason for kind, reason in reasons.items() if kind != reason}
    assert exceptions == {
        "CloudProviderConfigReady": "CloudProviderConfigGeneratedSuccessfully",
        "CustomIPPoolCreated": "CustomIPPoolCreatedSuccessfully",
    }
