"""The changelog's section of the next release: sections of Keep a Changelog, and each change once."""

import re
from itertools import combinations
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def entries(text: str) -> list[str]:
    return [
        re.sub(r"\s+", " ", entry) for entry in re.findall(r"^- (.*?)(?=^- |^#|^$)", text, re.MULTILINE | re.DOTALL)
    ]


def alike(text: str) -> list[tuple[str, str]]:
    """Pairs of entries that share more than half of their words: one change that two commits have announced."""
    words = [(entry, frozenset(re.findall(r"[\w.-]+", entry.lower()))) for entry in entries(text)]
    return [(one, two) for (one, a), (two, b) in combinations(words, 2) if 2 * len(a & b) > len(a | b)]


@pytest.fixture(scope="module")
def unreleased() -> str:
    text = (Path(__file__).parents[3] / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(r"^## \[Unreleased\]\n(.*?)^## \[", text, re.MULTILINE | re.DOTALL)
    assert found, "no section Unreleased"
    return found[1]


def test_sections_are_those_of_keep_a_changelog(unreleased: str) -> None:
    found = re.findall(r"^### (.*)", unreleased, re.MULTILINE)
    assert len(found) == len(set(found))
    assert {name for name in found if not name.startswith("Upgrade from ")} <= SECTIONS


def test_no_change_is_listed_twice(unreleased: str) -> None:
    assert alike(unreleased) == []


def test_two_entries_about_one_command_are_found() -> None:
    text = """
- `caphv status` shows a line for each cluster, and for whatever is wrong the cause
  and the next step.
- `caphv scale` changes the number of machines.
- `caphv status` shows one line per cluster, and for each problem the cause and the next step.
"""
    assert [one[:14] for pair in alike(text) for one in pair] == ["`caphv status`"] * 2
