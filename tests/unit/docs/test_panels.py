"""The picture of the dashboard: values, legends and axes, and that it has all panels of the dashboard."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import CHECKOUT
from tools.website import panels

pytestmark = pytest.mark.unit

DASHBOARD = json.loads((CHECKOUT / "deploy/kustomize/monitoring/caphv-dashboard.json").read_text(encoding="utf-8"))
PICTURE = (CHECKOUT / "docs/images/dashboard.svg").read_text(encoding="utf-8")
# What did not happen in the recorded run.
WITHOUT_DATA = {"Clusters that are not ready", "Clusters whose bundles are not ready"}


def dashboard(kind: str, unit: str = "none", **defaults: Any) -> dict[str, Any]:
    panel = {
        "type": kind,
        "title": "Panel <A>",
        "gridPos": {"x": 0, "y": 0, "w": 8, "h": 8},
        "targets": [{"expr": 'a{x=~"$x"}', "legendFormat": "{{name}} of {{ other }}"}],
        "fieldConfig": {"defaults": {"unit": unit, **defaults}, "overrides": []},
    }
    return {"title": "All", "panels": [panel]}


def texts(board: dict[str, Any], series: dict[tuple[tuple[str, str], ...], dict[int, float]]) -> list[str]:
    svg = panels.picture(board, {'a{x=~".*"}': series}, {"x": ".*"}, 13)
    return [element.text or "" for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (1.5, "s", "1.5 s"),
        (90, "s", "1.5 min"),
        (86400 * 364, "s", "364 d"),
        (3 * 1024**2, "bytes", "3 MiB"),
        (0.5, "reqps", "0.5 req/s"),
        (0.015, "percentunit", "1.5 %"),
        (12345, "none", "12,345"),
        (float("nan"), "none", "nan"),
    ],
)
def test_values_have_their_unit(value: float, unit: str, text: str) -> None:
    assert panels.in_unit(value, unit) == text


def test_a_graph_has_title_axes_and_legend() -> None:
    labels = (("name", "<b>"), ("other", "c"))
    shown = texts(dashboard("timeseries", "s"), {labels: {scrape: float(scrape) for scrape in range(13)}})
    assert {"Panel <A>", "<b> of c", "0", "5 s", "15 s", "1 min"} - {*shown} <= {"1 min"}


@given(st.lists(st.text("abc", min_size=1, max_size=80), min_size=1, max_size=20))
def test_a_legend_stays_in_its_panel_and_counts_what_it_leaves_out(names: list[str]) -> None:
    lines = list(panels._wrap(names, 300))
    shown = [index for line in lines for index, _, _ in line if index >= 0]
    notes = [text for line in lines for index, text, _ in line if index < 0]
    assert shown == list(range(len(shown)))
    assert notes == ([f"and {len(names) - len(shown)} more"] if len(shown) < len(names) else [])
    assert len(lines) <= 3
    assert all(offset + 14 + len(text) * panels._CHARACTER <= 310 for line in lines for _, text, offset in line)


def test_what_has_no_values_says_so() -> None:
    for kind in ("timeseries", "stat", "table"):
        assert texts(dashboard(kind), {}) == ["Panel <A>", "No data"]


def test_a_stat_has_the_last_value_in_the_colour_of_its_threshold() -> None:
    steps = [{"color": "green", "value": None}, {"color": "red", "value": 2}]
    board = dashboard("stat", thresholds={"steps": steps})
    svg = panels.picture(board, {'a{x=~".*"}': {(): {0: 3.0, 12: 1.0}}}, {"x": ".*"}, 13)
    assert ">1</text>" in svg
    assert "#1a7f37" in svg
    assert "#cf222e" not in svg


def test_a_table_has_the_series_of_the_end() -> None:
    rows = {(("cluster", "shop"),): {12: 0.0}, (("cluster", "gone"),): {3: 0.0}}
    board = dashboard("table")
    assert texts(board, rows) == ["Panel <A>", "cluster", "shop", "Value", "0"]
    board["panels"][0]["transformations"] = [{"id": "organize", "options": {"excludeByName": {"Value": True}}}]
    assert texts(board, rows) == ["Panel <A>", "cluster", "shop"]


@given(st.dictionaries(st.integers(0, 12), st.floats(0, 1e12), min_size=1))
def test_lines_stay_in_their_panel(points: dict[int, float]) -> None:
    svg = panels.picture(dashboard("timeseries"), {'a{x=~".*"}': {(): points}}, {"x": ".*"}, 13)
    numbers = [
        (float(x), float(y))
        for path in re.findall(r'<path stroke="[^"]+" d="(M[^"]+)"/>', svg)
        for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path)
    ]
    assert numbers
    assert all(0 <= x <= 400 and 0 <= y <= 8 * 26 for x, y in numbers)


def test_the_picture_of_the_documentation_has_all_panels_with_values() -> None:
    shown = [element.text or "" for element in ET.fromstring(PICTURE).iter() if element.tag.endswith("text")]
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert [title for title in titles if title not in shown] == []
    empty = {shown[index - 1] for index, text in enumerate(shown) if text == "No data"}
    assert empty <= WITHOUT_DATA
