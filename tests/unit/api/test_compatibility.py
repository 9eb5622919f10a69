"""Which charts fit which Harvester, by the shipped table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.compatibility import CLOUD_PROVIDER, CSI_DRIVER, compatibility, in_range, parse_table
from caphv.api.supported import parse, support

pytestmark = pytest.mark.unit

TABLE = compatibility()
# Harvester v1.8.0, pkg/settings/settings.go.
ACCEPTED = {"harvester-cloud-provider": ">=0.0.1 <0.3.0", "harvester-csi-provider": ">=0.0.1 <0.3.0"}


@pytest.mark.parametrize(
    ("version", "cloud_provider", "csi_driver"),
    [
        ("v1.28.4+rke2r1", "0.2.2", "0.1.16"),
        ("v1.28.8+rke2r1", "0.2.2", "0.1.17"),
        ("v1.31.14+rke2r1", "0.2.11", "0.1.25"),
        ("v1.34.4+rke2r1", "0.2.11", "0.1.25"),
        ("v1.36.2+rke2r1", "0.2.11", "0.1.28"),
        ("v1.36.30+rke2r1", "0.2.14", "0.1.30"),
        ("v1.33.13+rke2r1", "0.2.11", "0.1.28"),
        ("v1.33.13", "0.2.11", "0.1.28"),
        ("v1.33.13+rke2r2", "0.2.14", "0.1.30"),
        ("v1.30.14+rke2r1", "0.2.10", "0.1.23"),
        ("v1.30.14+rke2r5", "0.2.10", "0.1.24"),
        ("v1.31.1+rke2r1", "0.2.6", "0.1.18"),
        ("v1.31.2+rke2r1", "0.2.6", "0.1.20"),
    ],
)
def test_rke2_installs_charts_by_its_release(version: str, cloud_provider: str, csi_driver: str) -> None:
    """As in rke2 at these tags: charts/chart_versions.yaml, whose versions are these times 100."""
    assert TABLE.rke2_charts(version) == {CLOUD_PROVIDER: cloud_provider, CSI_DRIVER: csi_driver}


@pytest.mark.parametrize("version", ["v1.28.1+rke2r1", "v1.99.0+rke2r1", "v1.34.4+k3s1", "", "latest"])
def test_of_other_releases_nothing_is_claimed(version: str) -> None:
    assert TABLE.rke2_charts(version) == {}


def test_the_table_has_each_minor_version_that_is_supported() -> None:
    rke2 = support().components["rke2"]
    (_, oldest), (_, newest) = parse(rke2.oldest), parse(rke2.newest)
    assert {row[:2] for row in TABLE.rke2} == {(1, minor) for minor in range(oldest, newest + 1)}


@pytest.mark.parametrize("chart", [CLOUD_PROVIDER, CSI_DRIVER])
def test_charts_of_a_minor_version_never_get_older(chart: str) -> None:
    for minor in {row[:2] for row in TABLE.rke2}:
        versions = [parse(TABLE.rke2[row][chart]) for row in sorted(TABLE.rke2) if row[:2] == minor]
        assert versions == sorted(versions), minor


def test_the_bundles_fit_every_supported_harvester() -> None:
    harvester = support().components["harvester"]
    for major, minor in (parse(harvester.oldest), parse(harvester.newest)):
        release = (major, minor)
        assert TABLE.problems(TABLE.charts, release, ACCEPTED) == []


def test_a_cloud_provider_that_an_old_harvester_cannot_serve() -> None:
    charts = TABLE.rke2_charts("v1.28.8+rke2r1")
    assert TABLE.problems(charts, (1, 1), {}) == ["harvester-cloud-provider 0.2.2 needs Harvester 1.2 or later"]
    assert TABLE.problems(charts, (1, 2), {}) == []
    assert TABLE.problems(charts, None, {}) == []
    assert TABLE.problems({CLOUD_PROVIDER: "0.1.14"}, (1, 1), {}) == []


def test_charts_that_harvester_does_not_accept_are_named() -> None:
    charts = {CLOUD_PROVIDER: "0.3.0", CSI_DRIVER: "0.1.31"}
    (only,) = TABLE.problems(charts, (1, 8), ACCEPTED)
    assert only == ("harvester-cloud-provider 0.3.0 is not accepted by this Harvester, which takes >=0.0.1 <0.3.0")
    assert TABLE.problems(charts, (1, 8), {"harvester-cloud-provider": 3}) == []


def test_a_table_of_an_operator_needs_neither_list() -> None:
    row: dict[str, Any] = {"name": "x", "charts": {}, "supports": {"harvester": {"from": "1.7", "to": "1.8"}}}
    table = parse_table({"releases": [row]})
    assert (table.rke2_charts("v1.34.4+rke2r1"), table.problems({CLOUD_PROVIDER: "0.2.2"}, (1, 1), {})) == ({}, [])


NUMBERS = st.tuples(*[st.integers(0, 20)] * 3)


def text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


@given(NUMBERS, NUMBERS, NUMBERS)
def test_comparisons_are_those_of_numbers(
    version: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...]
) -> None:
    assert in_range(text(version), f">={text(low)} <{text(high)}") == (low <= version < high)
    assert in_range(text(version), f">{text(low)} <={text(high)}") == (low < version <= high)
    assert in_range(text(version), text(low)) == in_range(text(version), f"={text(low)}") == (low == version)


def test_a_comparison_in_another_form_refuses_nothing() -> None:
    assert in_range("0.2.0", "^0.1")
    assert in_range("0.2.0", "")
    assert in_range("0.2.11", "0.1.0 - 0.3.0")
    assert in_range("0.2.11", "<0.1.0 || ^0.2.0")
    assert in_range("0.2.11", "<0.1.0 ||")
    assert in_range("latest", "<0.1.0")


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_one_of_several_ranges_is_enough(
    version: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...], later: tuple[int, ...]
) -> None:
    ranges = f">={text(low)} <{text(high)} || >={text(later)}"
    assert in_range(text(version), ranges) == (low <= version < high or version >= later)
