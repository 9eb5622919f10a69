"""No regular expression of the product takes more than linear time, whatever text it reads."""

import os

import pytest

from tests.support import regexes
from tests.support.regexes import Regex

pytestmark = pytest.mark.unit

SIZES = (1_000, 4_000, 16_000, 64_000, *((1_000_000,) if os.environ.get("CAPHV_TEST_LONG") else ()))
# Generous: linear patterns take 5 to 100 ns a character; quadratic ones reach it with a few thousand characters.
SECONDS_PER_CHARACTER = 2e-6
REGEXES = regexes.find_all()


@pytest.mark.parametrize("regex", REGEXES, ids=str)
def test_a_pattern_takes_linear_time(regex: Regex) -> None:
    for size in SIZES:
        for text in regexes.attacks(regex, size):
            if regexes.seconds_of(regex, text) > 0.01 + SECONDS_PER_CHARACTER * len(text):
                # Again: another process may have had the processor's caches.
                seconds = regexes.seconds_of(regex, text)
                assert seconds <= 0.01 + SECONDS_PER_CHARACTER * len(text), (
                    f"{seconds:.3f} s for {len(text)} characters like {text[:60]!r}"
                )
