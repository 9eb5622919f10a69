"""A failure is written once and then counted, so that it hides no other line."""

import gc
import logging
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.runtime.repeats import FAILURE_OF_ANY_OBJECT, MAX_FAILURES, WINDOW_SECONDS, Repeats

pytestmark = pytest.mark.unit


class Log:
    """Takes lines at a time of its own and keeps what is written."""

    def __init__(self) -> None:
        self.now = 0.0
        self.written: list[str] = []
        self.repeats = Repeats(lambda: self.now)

    def line(
        self, text: str, level: int = logging.WARNING, *, obj: str = "", server: str = "", **extra: object
    ) -> None:
        record = logging.LogRecord("caphv.test", level, "", 0, "%s", (text,), extra.pop("exc_info", None))
        fields = {name: value for name, value in (("object", obj), ("server", server)) if value}
        record.__dict__.update({"caphv_fields": fields, **extra})
        self.written += [taken.getMessage() for taken in self.repeats.take(record)]


def test_first_is_written_and_the_others_are_counted_after_ten_minutes() -> None:
    log = Log()
    for _ in range(38):
        log.line("harvester: connection refused")
    assert log.written == ["harvester: connection refused"]
    log.now = WINDOW_SECONDS
    log.line("something else")
    assert log.written[1:] == ["harvester: connection refused (again, 37 times in 10m)", "something else"]


def test_failure_that_lasts_is_counted_every_ten_minutes() -> None:
    log = Log()
    for _ in range(60 * 60):
        log.now += 1
        log.line("away")
    assert log.written == ["away", "away (again, 599 times in 10m)", *["away (again, 600 times in 10m)"] * 4]


def test_failure_that_ended_is_forgotten_and_new_when_it_returns() -> None:
    log = Log()
    log.line("away")
    log.now += WINDOW_SECONDS
    log.line("away")
    assert log.written == ["away", "away"]


def test_the_same_failure_of_another_object_is_another_one() -> None:
    log = Log()
    for name in ("ns/a", "ns/b", "ns/a"):
        log.line("request was refused", obj=name)
    assert len(log.written) == 2


def test_what_fails_for_every_object_is_one_failure() -> None:
    log = Log()
    for number in range(200):
        log.line("harvester: connection refused", obj=f"ns/m{number}", **FAILURE_OF_ANY_OBJECT)
    assert len(log.written) == 1


def test_error_is_part_of_the_line_and_stays_in_the_count() -> None:
    log = Log()
    for error in (ValueError("one"), ValueError("two"), ValueError("one")):
        log.line("reconcile failed", logging.ERROR, exc_info=(type(error), error, None))
    assert log.written == ["reconcile failed", "reconcile failed"]
    log.now += WINDOW_SECONDS
    log.line("later", logging.INFO)
    assert log.written[2:] == ["reconcile failed: ValueError: one (again, once in 10m)", "later"]


class Answer:
    """Stands for what a server has sent."""


def test_no_more_than_the_text_of_a_failure_is_kept() -> None:
    """A trace holds the local variables of its functions, such as an answer, until it is released."""

    def fail(answer: Answer) -> None:
        raise KeyError("x" * 10**6, repr(answer))

    log = Log()
    answers = []
    for _ in range(3):
        answer = Answer()
        answers.append(weakref.ref(answer))
        try:
            fail(answer)
        except KeyError as error:
            log.line("cannot process the objects", logging.ERROR, exc_info=(KeyError, error, error.__traceback__))
        del answer
    gc.collect()
    assert [answer() for answer in answers] == [None] * 3
    log.now += WINDOW_SECONDS
    log.line("later", logging.INFO)
    (counted,) = [line for line in log.written if "again" in line]
    assert len(counted) < 5000


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 300)), max_size=60))
def test_no_line_is_lost_nor_counted_twice(lines: list[tuple[str, float]]) -> None:
    log = Log()
    for text, pause in lines:
        log.now += pause
        log.line(text)
    log.now += WINDOW_SECONDS + 1
    log.line("end")
    for text in "abc":
        total = sum(
            int(counts.removesuffix(" times") if counts != "once" else 1) if counts else 1
            for line in log.written
            if line[0] == text
            for counts in [line.partition("(again, ")[2].partition(" in ")[0]]
        )
        assert total == sum(name == text for name, _ in lines)


@given(st.sampled_from([logging.DEBUG, logging.INFO]), st.integers(1, 20))
def test_what_is_no_failure_is_always_written(level: int, times: int) -> None:
    log = Log()
    for _ in range(times):
        log.line("machine is Ready", level)
    assert len(log.written) == times


def test_memory_is_bounded() -> None:
    log = Log()
    for number in range(3000):
        log.line(f"failure {number}")
    log.line("failure 2999")
    assert len(log.written) == 3000
    log.line("failure 0")
    assert len(log.written) == 3001, "the oldest is forgotten"


def test_different_failures_of_one_server_are_limited_and_those_of_others_are_not() -> None:
    log = Log()
    for number in range(1000):
        log.line(f"invalid response {number}", server="https://hostile.example.com")
    log.line("invalid response 1", server="https://hostile.example.com")
    assert len(log.written) == MAX_FAILURES + 1
    assert log.written[-1] == (
        "https://hostile.example.com: more than 60 different failures in 10m; further ones are not logged"
    )
    log.line("away", server="https://healthy.example.com")
    log.line("again", logging.INFO, server="https://hostile.example.com")
    assert log.written[-2:] == ["away", "again"]
    log.now = WINDOW_SECONDS
    log.line("invalid response 2000", server="https://hostile.example.com")
    assert log.written[-1] == "invalid response 2000"


def test_server_whose_failures_are_left_out_is_known_until_its_ten_minutes_have_passed() -> None:
    log = Log()
    for number in range(MAX_FAILURES + 1):
        assert not log.repeats.is_limited("https://hostile")
        log.line(f"failure {number}", server="https://hostile")
    assert log.repeats.is_limited("https://hostile")
    assert not log.repeats.is_limited("https://healthy")
    log.now = WINDOW_SECONDS
    assert not log.repeats.is_limited("https://hostile")
