"""No function or method of the product that takes text needs more than linear time for it, with or without patterns."""

from __future__ import annotations

import functools

import pytest

from tests.support import outsidetext
from tests.support.outsidetext import TextFunction

pytestmark = pytest.mark.unit

# YAML takes 10 microseconds for each of its values, and those of two characters are the shortest.
SECONDS_PER_CHARACTER = 20e-6
SHORT, LONG, LONGEST = 2_000, 64_000, 1_000_000
# The texts of each function that are tried at 1 MB, the slowest ones of 64 kB first.
WORST = 5
FUNCTIONS = outsidetext.find_all()


@functools.cache
def texts_of(size: int) -> tuple[str, ...]:
    return tuple(outsidetext.attacks(size))


def allowed_seconds(size: int) -> float:
    return 0.02 + SECONDS_PER_CHARACTER * size


def check_time(function: TextFunction, text: str) -> float:
    """The CPU seconds of a function for a text, which are within what is allowed for its length."""
    allowed = allowed_seconds(len(text))
    seconds = function.seconds_of(text)
    if seconds > allowed:
        # Again: another process may have had the processor's caches.
        seconds = function.seconds_of(text)
        assert seconds <= allowed, f"{seconds:.3f} s for {len(text)} characters like {text[:60]!r}"
    return seconds


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_a_function_takes_linear_time(function: TextFunction) -> None:
    for text in texts_of(SHORT):
        check_time(function, text)


@pytest.mark.long
@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_the_worst_texts_take_linear_time_at_a_megabyte(function: TextFunction) -> None:
    growth = (LONGEST / LONG) ** 2
    seconds = {number: check_time(function, text) for number, text in enumerate(texts_of(LONG))}
    # Of the others, even quadratic growth would be within what is allowed.
    suspects = [number for number, spent in seconds.items() if spent * growth > allowed_seconds(LONGEST)]
    for number in sorted(suspects, key=lambda number: -seconds[number])[:WORST]:
        check_time(function, texts_of(LONGEST)[number])


def test_functions_that_read_outside_text_are_found() -> None:
    places = {function.place for function in FUNCTIONS}
    assert places >= {
        "caphv.runtime.kubeconfig.parse_kubeconfig",
        "caphv.runtime.text.load_yaml",
        "caphv.validation.yaml.documents.documents",
        "reconciler.machine.cloudinit.userdata",
        "reconciler.machine.jinjamask.mask",
        "operations.doctor.redact.redact_text",
        # Methods, and functions that need more than text.
        "caphv.runtime.answers.Answers.parse",
        "operations.change.upgradeplan.Version.parse",
        "packager.checks.references.references",
        "reconciler.harvester.slim.virtual_machine",
    }
    assert len(places) > 400
