"""The changelog's section of the next release has known parts, and fits on a page."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

# Those of Keep a Changelog, and what a release does not have yet.
PARTS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Not there yet"}
LONGEST = 60


@pytest.fixture(scope="module")
def unreleased() -> str:
    text = (Path(__file__).parents[3] / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## \[|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, "no section Unreleased"
    return section[1]


def test_parts_are_known_and_appear_once(unreleased: str) -> None:
    parts = re.findall(r"^### (.*)", unreleased, re.MULTILINE)
    assert len(parts) == len(set(parts))
    assert {*parts} <= PARTS


def test_a_reader_sees_it_at_a_glance(unreleased: str) -> None:
    assert unreleased.count("\n") <= LONGEST
