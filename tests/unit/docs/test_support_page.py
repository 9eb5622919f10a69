"""The table of supported releases, its page, and how versions compare with it."""

from __future__ import annotations

import pytest

from caphv.api.supported import page, support
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit


def test_page_is_fresh() -> None:
    """After a change: `python -m caphv.api.supported`."""
    assert (CHECKOUT / "docs" / "reference" / "support.md").read_text(encoding="utf-8") == page(support())


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("v0.16.1", ""),
        ("v0.13.0", ""),
        ("v0.12.9", "older than 0.13.0"),
        ("v0.15.0", "leaves what others changed"),
        ("v0.15.1", ""),
        ("v0.17.0", "newer than 0.16"),
        ("main", ""),
    ],
)
def test_versions_of_fleet(version: str, problem: str) -> None:
    found = support().components["fleet"].problem(version)
    assert problem in found
    assert bool(found) == bool(problem)
