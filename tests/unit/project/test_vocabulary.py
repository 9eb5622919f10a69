"""The repository uses the field's words: nothing of `tests/vocabulary.txt` is in code, docs, manifests or tests."""

import pytest

from tests.support import vocabulary
from tests.support.vocabulary import Match, matches, rules

pytestmark = pytest.mark.unit

RULES = rules(vocabulary.WORDS.read_text(encoding="utf-8"))


def test_repository_uses_the_vocabulary_of_the_field() -> None:
    found = vocabulary.findings(without=vocabulary.pending())
    assert not found, "\n".join(map(str, found[:40]))


def found(text: str, path: str = "page.md") -> list[str]:
    return [match.text for match in matches(path, text, RULES)]


@pytest.mark.parametrize(
    "text",
    [
        "The user is told.",
        "def is_told():",
        "let it go",
        "look\n    at",
        "the VM is gone",
        "Somebody else",
        "goes on",
        "Care only for objects",
    ],
)
def test_unwanted_words_are_found(text: str) -> None:
    assert found(text)


@pytest.mark.parametrize(
    "text",
    [
        "gold, retold",
        "It goes to the queue.",
        "410 Gone",
        "troubleshooting",
        "There is no list.",
        "lets the user choose",
    ],
)
def test_ordinary_english_is_allowed(text: str) -> None:
    assert not found(text)


def test_identifiers_count_in_python_only() -> None:
    assert found("from x import LostRaces", "a.py")
    assert not found("from x import LostRaces", "a.md")


def test_history_of_released_versions_is_left_alone() -> None:
    text = "## [Unreleased]\n\nnews\n\n## [0.11.0]\n\nThe user is told.\n"
    assert found(text)
    assert not found(text, "CHANGELOG.md")
    assert found("## [Unreleased]\n\nThe user is told.\n", "CHANGELOG.md")


def test_matches_say_where_and_what_to_write() -> None:
    (match,) = matches("docs/a.md", "one\ntwo told\n", rules("[phrases: x]\ntold => reported\n"))
    assert match == Match("docs/a.md", 2, "told", "reported")
    assert str(match) == "docs/a.md:2: 'told': write reported"


@pytest.mark.parametrize("text", ["told => reported", "[phrases: x]\ntold\n", "[names]\na => b"])
def test_a_line_that_is_not_a_rule_fails(text: str) -> None:
    with pytest.raises(ValueError, match="not a rule"):
        rules(text)
