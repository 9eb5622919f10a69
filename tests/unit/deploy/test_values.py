"""The two files that describe the chart's values, `values.yaml` and its schema, agree."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from caphv.api.object import Obj
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

CHART = CHECKOUT / "deploy" / "chart"
TEXT = (CHART / "values.yaml").read_text(encoding="utf-8")
VALUES: Obj = yaml.safe_load(TEXT)
SCHEMA: Obj = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
# Helm passes it to each chart.
NOT_OURS = "global"


def properties(schema: Obj, path: str = "") -> Iterator[tuple[str, Obj]]:
    """Path and schema of all values that are not groups of values."""
    for name, found in schema["properties"].items():
        if "properties" in found:
            yield from properties(found, f"{path}{name}.")
        else:
            yield f"{path}{name}", found


def value(path: str) -> object:
    found = VALUES
    for name in path.split("."):
        found = found[name]
    return found


PROPERTIES = {path: schema for path, schema in properties(SCHEMA) if path != NOT_OURS}


def leaves(values: Obj, path: str = "") -> Iterator[str]:
    for name, found in values.items():
        yield from [f"{path}{name}"] if f"{path}{name}" in PROPERTIES else leaves(found, f"{path}{name}.")


def test_both_have_the_same_values() -> None:
    assert [*leaves(VALUES)] != []
    assert {*leaves(VALUES)} == PROPERTIES.keys()


def test_what_an_empty_value_means_is_the_same_in_both() -> None:
    comments = " ".join(re.findall(r"^ *# (.*)", TEXT, re.MULTILINE))
    empty = {
        path: meaning[1].strip()
        for path, schema in PROPERTIES.items()
        if (meaning := re.search(r"\bempty:(.*)", schema.get("description", "")))
    }
    assert {"metrics.certificateSecret", "serviceMonitor.tlsConfig", "watchNamespace"} <= empty.keys()
    assert {
        path: text for path, text in empty.items() if not re.search(f"(?i)empty: {re.escape(text)}", comments)
    } == {}
    assert {path: value(path) for path in empty if value(path)} == {}
