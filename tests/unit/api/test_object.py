"""Reads of nested objects, whatever shape they have."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import at

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
