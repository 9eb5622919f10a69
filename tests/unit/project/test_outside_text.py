"""No function or method of the product that takes text needs more than linear time for it, with or without patterns."""

from __future__ import annotations

import os

import pytest

from tests.support import outsidetext
from tests.support.outsidetext import TextFunction

pytestmark = pytest.mark.unit

SIZES = (64_000, 1_000_000) if os.environ.get("CAPHV_TEST_LONG") else (2_000,)
# YAML takes 10 microseconds for each of its values, and those of two characters are the shortest.
SECONDS_PER_CHARACTER = 20e-6
FUNCTIONS = outsidetext.find_all()
TEXTS = {size: tuple(outsidetext.attacks(size)) for size in SIZES}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_a_function_takes_linear_time(function: TextFunction, size: int) -> None:
    for text in TEXTS[size]:
        allowed = 0.02 + SECONDS_PER_CHARACTER * len(text)
        if function.seconds_of(text) > allowed:
            # Again: another process may have had the processor's caches.
            seconds = function.seconds_of(text)
            assert seconds <= allowed, f"{seconds:.3f} s for {len(text)} characters like {text[:60]!r}"


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
