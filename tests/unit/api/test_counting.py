"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from caphv.api.counting import counted

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
