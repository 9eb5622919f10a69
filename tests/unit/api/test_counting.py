"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from caphv.api.counting import counted, name_some

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("number", "noun", "plural", "text"),
    [
        (1, "machine", "", "1 machine"),
        (0, "machine", "", "0 machines"),
        (2, "error", "", "2 errors"),
        (3, "address", "", "3 addresses"),
        (1, "address is", "addresses are", "1 address is"),
        (4, "address is", "addresses are", "4 addresses are"),
    ],
)
def test_a_noun_has_the_form_that_its_number_needs(number: int, noun: str, plural: str, text: str) -> None:
    assert counted(number, noun, plural) == text


@pytest.mark.parametrize(
    ("names", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a; b"), (["a", "b", "c"], "a; b and 1 more")],
)
def test_the_first_are_named_and_the_others_counted(names: list[str], text: str) -> None:
    assert name_some(names, 2, "; ") == text
