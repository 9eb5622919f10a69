"""Text of others reaches conditions, Events, errors and logs bounded and without escape sequences."""

import io
import logging
import time
from datetime import UTC, datetime

import pytest

from caphv.api.conditions import set_condition
from caphv.api.plaintext import plain
from caphv.runtime import logs
from caphv.runtime.errors import error_from

pytestmark = pytest.mark.unit

HOSTILE = "\x1b]0;title\x07\x1b[31mred\x1b[0m \x1b[2J\x9b1m\u202egnp.exe\x00\ud800 end"


def test_escape_sequences_and_control_characters_are_removed() -> None:
    found = plain(HOSTILE, 1000)
    assert "red" in found
    assert found.endswith("end")
    assert found.isprintable()
    assert plain("one\n\ttwo", 100) == "one\n\ttwo"


def test_text_is_bounded_and_costs_no_time() -> None:
    started = time.process_time()
    for text in ("x" * 5_000_000, "\x1b[" * 2_500_000, "\x1b]" * 2_500_000, "\x1b" * 5_000_000):
        assert len(plain(text, 16 * 1024)) <= 16 * 1024
    assert time.process_time() - started < 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 500, 503])
def test_messages_of_servers_are_bounded(status: int) -> None:
    error = error_from(status, {"message": HOSTILE + "x" * 5_000_000, "reason": "\x1b[31m" + "R" * 10_000})
    assert len(str(error)) <= 4096
    assert "\x1b" not in f"{error}{error.reason}"
    assert len(error.reason) <= 256


def test_conditions_hold_no_escape_sequences() -> None:
    now = datetime.now(UTC)
    (condition,) = set_condition([], "Ready", "False", reason="Failed", message=HOSTILE, generation=1, now=now)
    assert "\x1b" not in condition["message"]
    assert "red" in condition["message"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_log_lines_are_bounded_and_harmless(form: logs.Format, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    stream = io.StringIO()
    try:
        logs.configure("info", form, stream)
        logging.getLogger("caphv.test").error("%s", HOSTILE + "x" * 5_000_000)
    finally:
        root.handlers.clear()
        root.setLevel(level)
    assert len(stream.getvalue()) < 20_000
    assert "\x1b" not in stream.getvalue()
