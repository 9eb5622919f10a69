"""Reads of nested objects, whatever shape they have."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import at, dict_at, list_at, text_at

pytestmark = pytest.mark.unit

MACHINE = {"spec": {"cpu": 4, "volumes": [{"volumeSize": "40Gi"}]}, "status": None}


def test_value_of_a_nested_field_is_read() -> None:
    assert at(MACHINE, "spec", "cpu") == 4
    assert at(MACHINE, "spec", "volumes") == [{"volumeSize": "40Gi"}]


def test_empty_path_is_the_object_itself() -> None:
    assert at(MACHINE) is MACHINE


@pytest.mark.parametrize(
    "path",
    [
        ("metadata", "name"),  # absent
        ("status", "ready"),  # null
        ("spec", "cpu", "cores"),  # a number
        ("spec", "volumes", "volumeSize"),  # a list
        ("spec", "volumes", 0),
    ],
)
def test_only_mappings_have_values_below_them(path: tuple[str | int, ...]) -> None:
    assert at(MACHINE, *path) is None


@pytest.mark.parametrize("value", [None, "text", 1, [], True])
def test_any_value_may_be_asked(value: Any) -> None:
    assert at(value, "spec") is None


@pytest.mark.parametrize("value", [None, 5, "text", {"a": 1}, [1], (1,), 0, False])
def test_reads_of_a_shape_give_an_empty_one_for_any_other(value: Any) -> None:
    obj = {"spec": {"field": value}}
    assert list_at(obj, "spec", "field") == (value if isinstance(value, list) else [])
    assert dict_at(obj, "spec", "field") == (value if isinstance(value, dict) else {})
    assert list_at(obj, "spec", "absent") == list_at(obj, "spec", "field", "below") == []
    assert dict_at(obj, "spec", "absent") == {}


@pytest.mark.parametrize(("value", "text"), [("a", "a"), (5, "5"), (None, ""), ("", "")])
def test_text_is_read_from_any_value(value: Any, text: str) -> None:
    assert text_at({"field": value}, "field") == text
    assert text_at({}, "field") == ""
